"""Errors of reading a table's metadata; ``jobs/test_damaged_tables.py`` damages real files."""

from __future__ import annotations

import zlib

import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.exceptions import NoSuchTableError, ServerError, ValidationError
from sqlalchemy.exc import OperationalError

from tidelog.pipeline.files.iceberg_errors import iceberg_errors
from tidelog.pipeline.job_errors import BadRequestError, JobError


@pytest.mark.parametrize(
    "error",
    [
        EOFError(),
        KeyError("data_file"),
        SystemError("Negative size"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        ValidationError("1 error:\n  Invalid JSON"),
        zlib.error("incorrect header check"),
    ],
)
def test_damage_is_reported_in_one_line(error: Exception) -> None:
    with (
        pytest.raises(JobError, match=f"lake.t: its metadata cannot be read: {type(error).__name__}: [^\n]+$"),
        iceberg_errors("lake.t"),
    ):
        raise error


@pytest.mark.parametrize(
    "error",
    [
        NoSuchTableError("lake.t"),
        ServerError("503"),
        OperationalError("select", None, Exception("locked")),
        FileNotFoundError("m0.avro"),
        BadRequestError("no"),
    ],
)
def test_responses_and_missing_files_are_raised_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)), iceberg_errors("lake.t"):
        raise error
