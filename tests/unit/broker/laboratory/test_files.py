from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tidelog.broker.laboratory.files import Disk, LaboratoryFileSystem
from tidelog.log.system.file_system import LogStorageError


@pytest.fixture
def files() -> LaboratoryFileSystem:
    return LaboratoryFileSystem(Disk())


def test_nothing_is_synced(files: LaboratoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int) -> None:
        raise AssertionError("synced")

    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr(os, "fdatasync", refuse)
    path = str(tmp_path / "checkpoint")
    files.replace_file(path, b"0\n")
    files.sync_directory(str(tmp_path))
    assert files.read_file(path) == b"0\n"


def test_a_full_disk_accepts_writes_that_make_no_file_longer(files: LaboratoryFileSystem, tmp_path: Path) -> None:
    file = files.open_file(str(tmp_path / "log"), create=True)
    file.write_at(b"0123", 0)
    files.disk.is_full = True
    file.write_at(b"ab", 2)
    with pytest.raises(LogStorageError) as refused:
        file.write_at(b"cd", 3)
    assert (refused.value.os_errno, refused.value.is_recoverable) == (errno.ENOSPC, True)
    assert files.disk_space(str(tmp_path))[1] == 0
    files.disk.is_full = False
    file.write_at(b"cd", 3)
    assert file.read_at(0, 10) == b"01acd"
    assert files.disk_space(str(tmp_path))[1] > 0
    file.close()
