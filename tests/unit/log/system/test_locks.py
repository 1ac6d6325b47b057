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


def line(inode: int, process: int, waits: str = "") -> str:
    return f"1: {waits}POSIX  ADVISORY  WRITE {process} fe:01:{inode} 0 EOF\n"


def test_the_process_that_holds_a_lock_is_found(tmp_path: Path, listed: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    inode = os.stat(file).st_ino
    listed.write_text(line(inode + 1, 1) + line(inode, 3, "-> ") + line(inode, 2))
    assert locks.holder_of(str(file)) == 2


@pytest.mark.parametrize("text", ["", "1: POSIX ADVISORY\n", "1: -> POSIX ADVISORY WRITE 7 fe:01:INODE 0 EOF\n"])
def test_a_lock_that_no_process_holds(tmp_path: Path, listed: Path, text: str) -> None:
    file = tmp_path / "file"
    file.touch()
    listed.write_text(text.replace("INODE", str(os.stat(file).st_ino)))
    assert locks.holder_of(str(file)) is None


def test_a_system_without_proc_locks(tmp_path: Path, listed: Path) -> None:
    assert locks.holder_of(str(tmp_path / "missing")) is None
    (tmp_path / "file").touch()
    assert not listed.exists()
    assert locks.holder_of(str(tmp_path / "file")) is None
