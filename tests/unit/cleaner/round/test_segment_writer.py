"""Copies of unchanged bytes into a new segment: by the kernel, without it, and on a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.support.faulty_file_system import FaultyFileSystem, Killed
from tidelog.cleaner.round.segment_writer import COPY_STEP_BYTES, copy_range
from tidelog.log.files.file_records import FileRecords
from tidelog.log.system.file_system import LogStorageError, OsFileSystem


def records(path: Path, data: bytes = b"", file_system: FaultyFileSystem | None = None) -> FileRecords:
    path.write_bytes(data)
    return FileRecords(file_system or OsFileSystem(), str(path), len(data))


def test_a_span_is_copied_in_steps_with_a_callback_before_each(tmp_path: Path) -> None:
    data = os.urandom(COPY_STEP_BYTES + 1000)
    source, target = records(tmp_path / "source", data), records(tmp_path / "target", b"before")
    steps: list[int] = []

    copy_range(source, target, (10, len(data)), steps.append)

    assert (tmp_path / "target").read_bytes() == b"before" + data[10:]
    assert steps == [COPY_STEP_BYTES, 990]
    assert target.size == 6 + len(data) - 10


@pytest.mark.parametrize("code", [errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
def test_without_the_kernels_help_bytes_are_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, "no")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    source, target = records(tmp_path / "source", b"0123456789"), records(tmp_path / "target")

    copy_range(source, target, (2, 8), lambda _: None)

    assert (tmp_path / "target").read_bytes() == b"234567"


def test_error_of_the_kernel_is_a_storage_error_and_leaves_the_target_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        (tmp_path / "target").write_bytes(b"before and a part")
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "copy_file_range", fail)
    source, target = records(tmp_path / "source", b"0123456789"), records(tmp_path / "target", b"before")

    with pytest.raises(LogStorageError, match="No space left"):
        copy_range(source, target, (0, 10), lambda _: None)

    assert (tmp_path / "target").read_bytes() == b"before"
    assert target.size == 6


def test_source_that_ends_early_is_a_storage_error(tmp_path: Path) -> None:
    source, target = records(tmp_path / "source", b"0123"), records(tmp_path / "target")

    with pytest.raises(LogStorageError, match="read of"):
        copy_range(source, target, (0, 10), lambda _: None)


def test_copies_go_through_the_file_system_that_fails_and_kills(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"0123456789")
    faulty = FaultyFileSystem(str(tmp_path))
    source = records(tmp_path / "source", b"0123456789", faulty)
    target = records(tmp_path / "target", b"", faulty)
    faulty.fail_operation = {"write": errno.EIO}
    with pytest.raises(LogStorageError):
        copy_range(source, target, (0, 10), lambda _: None)
    faulty.fail_operation = {}

    faulty.kill_at = len(faulty.calls)
    with pytest.raises(Killed):
        copy_range(source, target, (0, 10), lambda _: None)
