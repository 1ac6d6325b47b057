"""The columns of a Delta table beside those of an export's files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")

from deltalake import DeltaTable, write_deltalake

from tidelog.pipeline.export.delta_columns import add_columns, require_distinct_names, require_fitting_columns
from tidelog.pipeline.job_errors import JobError

KNOWN = pa.schema([("offset", pa.int64()), ("headers", pa.list_(pa.struct([("key", pa.string())])))])


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    write_deltalake(str(tmp_path), KNOWN.empty_table())
    return DeltaTable(str(tmp_path))


def test_a_table_may_have_more_columns(table: DeltaTable) -> None:
    require_fitting_columns(table, "t", pa.schema([("offset", pa.int64())]))
    require_fitting_columns(None, "t", KNOWN)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (("time", pa.int64()), "has no column time"),
        (("offset", pa.int32()), "column offset is long: expected integer"),
        (("headers", pa.string()), "column headers is array: expected string"),
    ],
)
def test_a_column_that_does_not_fit_is_named(table: DeltaTable, kind: tuple[str, pa.DataType], message: str) -> None:
    with pytest.raises(JobError, match=f"Delta table t:? {message}"):
        require_fitting_columns(table, "t", pa.schema([kind]))


def test_columns_are_added_and_never_changed(table: DeltaTable) -> None:
    add_columns(table, "t", pa.schema([*KNOWN, ("name", pa.string())]))
    add_columns(table, "t", KNOWN)
    assert [one.name for one in table.schema().fields] == ["offset", "headers", "name"]
    with pytest.raises(JobError, match="the type of offset has changed"):
        add_columns(table, "t", pa.schema([("offset", pa.string())]))


def test_names_of_a_record_differ_in_any_case() -> None:
    inner = pa.struct([("x", pa.int64()), ("X", pa.int64())])
    require_distinct_names(
        "t", pa.schema([("a", pa.struct([("x", pa.int64())])), ("b", pa.struct([("x", pa.int64())]))])
    )
    for kind in (inner, pa.list_(inner), pa.map_(pa.string(), inner), pa.struct([("of", inner)])):
        with pytest.raises(JobError, match="column a has two fields 'X' in different case"):
            require_distinct_names("t", pa.schema([("a", kind)]))
