"""Names of a segment's files, among files with other digits, such as ``²``, which ``int`` refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.logs import PARTITION, LogBench, append, batch
from tidelog.broker.adoption.source import offset_of
from tidelog.broker.cleaning import unopened_status
from tidelog.broker.metadata.log_reader import parse_snapshot_name
from tidelog.cli import main
from tidelog.log.files.segment_names import base_offset_of
from tidelog.log.recovery.progress import unsynced_bytes
from tidelog.log.system.file_system import OsFileSystem
from tidelog.pipeline.files.segment_files import list_segments

DIGITS = ["²" * 20, "٠" * 20, "1" * 19 + "²"]
"""Names of twenty digits: superscripts, Arabic zeros, which ``int`` reads, and one among others."""


@pytest.mark.parametrize("suffix", [".log", ".timeindex", ".log.deleted", ""])
def test_a_name_begins_with_the_base_offset(suffix: str) -> None:
    assert base_offset_of(f"{42:020d}{suffix}") == offset_of(f"{42:020d}{suffix}") == 42


@pytest.mark.parametrize("name", ["", "42.log", "notes.txt", "-" * 20 + ".log", *DIGITS])
def test_another_name_has_none(name: str) -> None:
    assert (base_offset_of(name), offset_of(name)) == (None, -1)


@pytest.fixture(params=DIGITS)
def directory(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A log of one segment, and a file with other digits."""
    log = LogBench(str(tmp_path)).open()
    append(log, batch(1))
    log.close()
    (Path(log.directory) / f"{request.param}.log").write_bytes(b"x" * 1000)
    return Path(log.directory)


def test_a_check_ignores_other_names(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(directory)]) == 0
    assert capsys.readouterr().out == f"{directory}: in order\n"


def test_the_estimate_of_a_recovery_ignores_other_names(directory: Path) -> None:
    size = (directory / f"{0:020d}.log").stat().st_size
    assert unsynced_bytes(OsFileSystem(), str(directory), 0) == size


def test_the_status_of_a_log_that_is_not_open_ignores_other_names(directory: Path) -> None:
    broker: Any = SimpleNamespace(config=SimpleNamespace(log_dirs=[str(directory.parent)]))
    assert unopened_status(broker, PARTITION, None).first_dirty_offset == 0


def test_the_pipeline_ignores_other_names(directory: Path) -> None:
    assert [file.path for file in list_segments(str(directory))] == [str(directory / f"{0:020d}.log")]


@pytest.mark.parametrize("digits", DIGITS)
def test_a_metadata_snapshot_has_plain_digits(digits: str) -> None:
    assert parse_snapshot_name(f"{digits}-{1:010d}.checkpoint") is None
    assert parse_snapshot_name(f"{1:020d}-{digits[-10:]}.checkpoint") is None
    assert parse_snapshot_name(f"{1:020d}-{2:010d}.checkpoint") == (1, 2)
