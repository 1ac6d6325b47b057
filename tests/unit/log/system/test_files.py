"""The file system's interface and the record file: errors with names, retained descriptors, appends that fail."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.faulty_file_system import FaultyFileSystem
from tests.support.swapping import SwappingFileSystem
from tidelog.log.files.file_records import FileRecords
from tidelog.log.find import consume_queue, index_file
from tidelog.log.system import file_system
from tidelog.log.system.file_system import LogStorageError, OsFileSystem
from tidelog.log.system.retention_clock import BELIEVED_AFTER_MS, RetentionClock
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import KafkaStorageError

FILES = OsFileSystem()


def test_error_names_operation_path_and_errno(tmp_path: Path) -> None:
    with pytest.raises(LogStorageError, match=r"open of .*none failed: No such file") as caught:
        FILES.open_file(str(tmp_path / "none"))
    assert (caught.value.operation, caught.value.os_errno) == ("open", errno.ENOENT)


def test_an_open_file_that_cannot_be_looked_at_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    descriptors = os.listdir("/proc/self/fd")

    def fail(_descriptor: int) -> os.stat_result:
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fail)
        with pytest.raises(LogStorageError, match="open of"):
            FILES.read_file(str(path))
    assert os.listdir("/proc/self/fd") == descriptors


@pytest.mark.parametrize(
    ("operation", "code", "is_recoverable"),
    [
        ("write", errno.ENOSPC, True),
        ("write", errno.EROFS, True),
        ("write", errno.EIO, False),
        ("sync", errno.ENOSPC, False),
    ],
)
def test_errors_that_take_a_directory_offline(operation: str, code: int, is_recoverable: bool) -> None:
    assert LogStorageError(operation, "x", code).is_recoverable is is_recoverable


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(LogStorageError):
        FILES.open_file(str(tmp_path / "link"))
    kinds = {entry.name: (entry.is_file, entry.is_directory) for entry in FILES.list_directory(str(tmp_path))}
    assert kinds == {"real": (True, False), "link": (False, False)}


def test_replace_and_remove(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    FILES.replace_file(path, b"long content")
    FILES.replace_file(path, b"short", sync=False)
    assert FILES.read_file(path) == b"short"
    assert FILES.list_names(str(tmp_path)) == ["a"]
    FILES.make_directory(str(tmp_path / "d" / "e"))
    (tmp_path / "d" / "file").write_bytes(b"")
    (tmp_path / "d" / "link").symlink_to(tmp_path)
    FILES.remove_directory(str(tmp_path / "d"))
    FILES.remove_directory(str(tmp_path / "d"))
    FILES.unlink(path)
    FILES.unlink(path, missing_ok=True)
    with pytest.raises(LogStorageError):
        FILES.unlink(path)
    assert FILES.list_names(str(tmp_path)) == []


KINDS_OF_LINK = ("the directory itself", "a link to a file", "a link to a directory", "a link below")


@pytest.mark.parametrize("kind", KINDS_OF_LINK)
def test_removal_follows_no_link(tmp_path: Path, kind: str) -> None:
    outside, directory = tmp_path / "outside", tmp_path / "d"
    (outside / "below").mkdir(parents=True)
    (outside / "kept").write_bytes(b"kept")
    (outside / "below" / "kept").write_bytes(b"kept")
    if kind == "the directory itself":
        directory.symlink_to(outside)
    else:
        (directory / "below").mkdir(parents=True)
        place = directory / "below" / "link" if kind == "a link below" else directory / "link"
        place.symlink_to(outside / "kept" if kind == "a link to a file" else outside)
    FILES.remove_directory(str(directory))
    assert not os.path.lexists(directory)
    assert sorted(path.name for path in outside.rglob("*")) == ["below", "kept", "kept"]


def test_removal_takes_all_kinds_of_foreign_names(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    (directory / "of a user" / "below").mkdir(parents=True)
    (directory / "of a user" / "below" / "notes").write_bytes(b"x")
    (directory / "notes").write_bytes(b"x")
    (directory / "dangling").symlink_to("nowhere")
    os.mkfifo(directory / "fifo")
    with open(os.path.join(os.fsencode(directory), b"\xff\n"), "wb"):
        pass
    FILES.remove_directory(str(directory))
    assert not directory.exists()


def test_an_entry_that_cannot_be_removed_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a directory of another owner came first, the records once stayed on the disk at every start."""
    directory = tmp_path / "d"
    (directory / "of a user").mkdir(parents=True)
    (directory / "of a user" / "kept").write_bytes(b"x")
    (directory / "records").write_bytes(b"x")
    unlink = os.unlink

    def refuse(path: str) -> None:
        if path.endswith("kept"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(LogStorageError, match="Permission denied"):
        FILES.remove_directory(str(directory))
    assert sorted(path.name for path in directory.rglob("*")) == ["kept", "of a user"]


def test_lock_is_exclusive(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    held = FILES.lock_file(path)
    assert held is not None
    assert FILES.lock_file(path) is None
    held.close()
    again = FILES.lock_file(path)
    assert again is not None
    again.close()


def test_reading_past_the_end_is_short(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    file = FILES.open_file(str(tmp_path / "f"), writable=False)
    assert file.read_at(1, 100) == b"bc"
    file.close()
    file.close()


def test_failed_append_is_cut_back(tmp_path: Path) -> None:
    disk = FaultyFileSystem(str(tmp_path), seed=1)
    records = FileRecords(disk, str(tmp_path / "f"), 0)
    records.create()
    records.append(b"first")
    disk.fail_at = {len(disk.calls): errno.ENOSPC}
    with pytest.raises(KafkaStorageError):
        records.append(b"second" * 100)
    assert os.path.getsize(tmp_path / "f") == 5
    assert records.append(b"third") == 5
    records.close()


def test_cut_that_fails_too_comes_first_next_time(tmp_path: Path) -> None:
    disk = FaultyFileSystem(str(tmp_path), seed=1)
    records = FileRecords(disk, str(tmp_path / "f"), 0)
    records.create()
    records.append(b"first")
    disk.fail_operation = {"write": errno.ENOSPC, "truncate": errno.ENOSPC}
    for _ in range(2):
        with pytest.raises(KafkaStorageError):
            records.append(b"second" * 100)
    disk.fail_operation = {}
    assert records.append(b"x") == 5
    assert (tmp_path / "f").read_bytes() == b"firstx"
    records.close()


def test_descriptor_lives_until_the_last_release(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abcdef")
    records = FileRecords(FILES, str(tmp_path / "f"), 6)
    part = records.slice(2, 3)
    records.close()
    assert os.pread(part.file.fileno(), part.size, part.position) == b"cde"
    number = part.file.fileno()
    part.release()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(number)
    with pytest.raises(KafkaStorageError):
        part.file.retain()
    with pytest.raises(KafkaStorageError):
        records.slice(0, 1)


def test_a_file_with_content_is_not_created_again(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    with pytest.raises(KafkaStorageError, match="not empty"):
        FileRecords(FILES, str(tmp_path / "f"), 0).create()


def test_retention_clock_believes_small_drift_and_backward_jumps() -> None:
    time = ManualTime(1_000_000_000)
    clock = RetentionClock(time)
    assert clock.believe(time.milliseconds()) == 1_000_000_000
    time.jump_wall(60_000)
    assert clock.believe(time.milliseconds()) == 1_000_060_000
    time.jump_wall(-500_000)
    assert clock.believe(time.milliseconds()) == 999_560_000
    time.jump_wall(86_400_000)
    assert clock.believe(time.milliseconds()) == 999_560_000
    time.advance(BELIEVED_AFTER_MS)
    assert clock.believe(time.milliseconds()) == time.milliseconds()


@pytest.mark.parametrize("module", [file_system, consume_queue, index_file])
def test_a_file_that_is_dropped_at_the_end_of_the_interpreter_is_closed(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules lose their names before the last objects are freed: each file then printed an error without its name."""
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    monkeypatch.setattr(sys, "excepthook", lambda *what: complaints.append(what))
    opened: list[Any] = [open_one(module, str(tmp_path / "file"))]
    descriptors = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as end:
        end.setattr(module, "os", None)
        opened.clear()
    assert complaints == []
    assert len(os.listdir("/proc/self/fd")) == descriptors - 1


def open_one(module: ModuleType, path: str) -> object:
    if module is consume_queue:
        return consume_queue.ConsumeQueueFile.create(FILES, path, 0, 10)
    if module is index_file:
        return index_file.IndexFile.create(FILES, path, 10, 10)
    return FILES.open_file(path, create=True)


def test_a_name_that_another_record_file_has_next_is_not_opened(tmp_path: Path) -> None:
    """A reader with an old list of segments once got bytes of the new file that a swap had put in its place."""
    path = tmp_path / "0.log"
    path.write_bytes(b"old" * 100)
    files = SwappingFileSystem()
    records = FileRecords(files, str(path), 300)

    def swap() -> None:
        records.rename_to(f"{path}.deleted")
        path.write_bytes(b"new")

    files.swap = swap
    found = records.read_at(0, 300)
    files.join()
    assert found == b"old" * 100
    assert records.path.endswith(".deleted")
