"""Early syncs of a file that is being written: a failed one makes the file fail, whenever Linux reports it."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from tidelog.pipeline.export.early_sync import EarlySync


def open_sync(tmp_path: Path) -> EarlySync:
    (tmp_path / "file").write_bytes(b"rows")
    return EarlySync(str(tmp_path / "file"))


def test_a_failure_underway_is_raised_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(os, "fdatasync", fail)
    sync = open_sync(tmp_path)
    sync.begin_sync()
    with pytest.raises(OSError, match="the disk is gone"):
        sync.end()


def test_one_early_sync_runs_at_a_time_and_a_full_sync_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, called = threading.Event(), threading.Event(), list[str]()

    def slow(descriptor: int) -> None:
        called.append("fdatasync")
        begun.set()
        assert go.wait(60)

    monkeypatch.setattr(os, "fdatasync", slow)
    monkeypatch.setattr(os, "fsync", lambda descriptor: called.append("fsync"))
    sync = open_sync(tmp_path)
    for _ in range(5):
        sync.begin_sync()
    assert begun.wait(60)
    go.set()
    sync.end()
    assert called == ["fdatasync", "fsync"]


def test_nothing_stays_open(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for end in (EarlySync.end, EarlySync.give_up):
        sync = open_sync(tmp_path)
        sync.begin_sync()
        end(sync)
    assert set(os.listdir("/proc/self/fd")) == before
