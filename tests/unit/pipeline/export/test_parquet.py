"""The writer of an exported file on a disk that becomes full: it raises the error, and removes the file."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.pipelines import NOW_MS
from tidelog.pipeline.export import file as export_file
from tidelog.pipeline.export.file import DeadLetters
from tidelog.pipeline.export.parquet import RowWriter
from tidelog.pipeline.export.store import LocalStore
from tidelog.pipeline.options.columns import Columns

SCHEMA = Columns.default(headers=False).arrow_schema()
ROWS = 1000


class FullFile:
    """A file that fails once it has a given number of bytes."""

    def __init__(self, path: str, room: int) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - the writer closes it
        self._room = room

    def write(self, data: bytes) -> int:
        self._room -= len(data)
        if self._room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@dataclass(frozen=True)
class FullDisk(LocalStore):
    """A disk on which a file fails once it has a given number of bytes."""

    room: int

    def open_output(self, path: str) -> Any:
        return pa.PythonFile(FullFile(path, self.room), mode="w")


def batch() -> pa.RecordBatch:
    chance = np.random.default_rng(1)
    columns = {
        "key": [b"key"] * ROWS,
        "value": [chance.bytes(100) for _ in range(ROWS)],
        "topic": ["t"] * ROWS,
        "partition": [0] * ROWS,
        "offset": range(ROWS),
        "timestamp": [NOW_MS * 1000] * ROWS,
        "timestampType": [0] * ROWS,
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names], schema=SCHEMA
    )


def write(path: Path, store: LocalStore) -> None:
    writer = RowWriter(str(path), SCHEMA, {}, store)
    writer.write([batch()])
    writer.close()


def open_files() -> list[str]:
    """Return the paths of the open descriptors."""
    found = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return sorted(os.readlink(path) for path in found if os.path.islink(path))


@pytest.mark.parametrize("part", [0.0, 0.5, 0.999], ids=["the first byte", "rows", "the footer"])
def test_a_full_disk_keeps_nothing_of_a_file(tmp_path: Path, part: float) -> None:
    write(tmp_path / "whole", LocalStore())
    room = int((tmp_path / "whole").stat().st_size * part)
    files, threads = open_files(), threading.active_count()
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "file", FullDisk(room))
    assert [name for name in open_files() if str(tmp_path) in name] == []
    assert open_files() == files
    assert threading.active_count() == threads
    assert os.listdir(tmp_path) == ["whole"]


@dataclass(frozen=True)
class UnreadableDisk(LocalStore):
    """A disk on which no file can be opened for syncs."""

    def begin_sync(self, path: str) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_file_without_syncs_leaves_nothing(tmp_path: Path) -> None:
    files = open_files()
    with pytest.raises(OSError, match="Too many open files"):
        write(tmp_path / "file", UnreadableDisk())
    assert open_files() == files
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("room", [0, 1000, 1 << 30])
def test_dead_letters_that_cannot_be_written_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    letters = DeadLetters()
    letters.add_rows(batch(), ["no reason"] * ROWS)
    files = open_files()
    monkeypatch.setattr(os, "fsync", fail_to_sync)
    with pytest.raises(OSError, match=r"No space left|the disk is gone"):
        export_file._write_dead_letters(str(tmp_path / "letters"), letters, FullDisk(room))
    assert open_files() == files
    assert os.listdir(tmp_path) == []


def fail_to_sync(descriptor: int) -> None:
    raise OSError(errno.EIO, "the disk is gone")
