"""The process that holds a file's lock, according to ``/proc/locks``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidelog.log.system import locks


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "locks"
    monkeypatch.setattr(locks, "LOCKS", str(path))
    return path


def line(file: os.stat_result, process: int, waits: str = "", *, inode: int = 0, minor: int = 0) -> str:
    """Return the line of a lock on ``file``, or on one whose inode and minor number are larger by these."""
    device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev) + minor:02x}"
    return f"1: {waits}POSIX  ADVISORY  WRITE {process} {device}:{file.st_ino + inode} 0 EOF\n"


def test_the_process_that_holds_a_lock_is_found(tmp_path: Path, listed: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    status = os.stat(file)
    listed.write_text(line(status, 1, inode=1) + line(status, 3, "-> ") + line(status, 4, minor=1) + line(status, 2))
    assert locks.holder_of(str(file)) == 2


def test_the_holder_of_a_file_with_the_same_inode_on_another_disk_is_not_named(tmp_path: Path, listed: Path) -> None:
    """Fresh disks give their first files the same inode numbers. On btrfs and some overlays ``stat`` has another device
    than the list: then no process is named."""
    file = tmp_path / "file"
    file.touch()
    listed.write_text(line(os.stat(file), 4, minor=1))
    assert locks.holder_of(str(file)) is None


@pytest.mark.parametrize(("minor", "listed_minor"), [(1, "01"), (0x1A, "1a"), (0x100, "100")])
def test_a_device_is_listed_in_hexadecimal_digits(
    listed: Path, monkeypatch: pytest.MonkeyPatch, minor: int, listed_minor: str
) -> None:
    status = os.stat_result((0, 12, os.makedev(0x103, minor), *(0,) * 7))
    monkeypatch.setattr(os, "stat", lambda _path: status)
    listed.write_text(f"1: FLOCK  ADVISORY  WRITE 5 103:{listed_minor}:12 0 EOF\n")
    assert locks.holder_of("file") == 5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1: POSIX ADVISORY\n",
        "1: POSIX ADVISORY WRITE 7 <none>:0 0 EOF\n",
        "1: POSIX ADVISORY WRITE 7 INODE 0 EOF\n",
        "1: -> POSIX ADVISORY WRITE 7 DEVICE:INODE 0 EOF\n",
    ],
)
def test_a_lock_that_no_process_holds(tmp_path: Path, listed: Path, text: str) -> None:
    file = tmp_path / "file"
    file.touch()
    status = os.stat(file)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    listed.write_text(text.replace("DEVICE", device).replace("INODE", str(status.st_ino)))
    assert locks.holder_of(str(file)) is None


def test_a_system_without_proc_locks(tmp_path: Path, listed: Path) -> None:
    assert locks.holder_of(str(tmp_path / "missing")) is None
    (tmp_path / "file").touch()
    assert not listed.exists()
    assert locks.holder_of(str(tmp_path / "file")) is None
