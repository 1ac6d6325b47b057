"""LogManager in several threads: callers of other logs do not wait for an opening, and a deletion waits for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.logs import NOW_MS, append, batch
from tidelog.log.config import LogConfig
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager
from tidelog.log.system.file_system import FileEntry, OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaStorageError

CONFIG = LogConfig({"segment.bytes": 2000, "file.delete.delay.ms": 60_000})
T0, T1 = TopicPartition("topic", 0), TopicPartition("topic", 1)
ID, OTHER_ID = bytes(range(16)), bytes(16)
#: Far beyond what any of this takes; only a deadlock waits so long.
PATIENCE_S = 60.0


class GatedFileSystem(OsFileSystem):
    """A file system on which listing the directory ``gated`` sets ``arrived`` and waits for ``gate``.

    ``renamed`` has the paths that were renamed.
    """

    def __init__(self, gated: str) -> None:
        self.gated = gated
        self.gate, self.arrived = threading.Event(), threading.Event()
        self.renamed: list[str] = []

    def list_directory(self, path: str) -> list[FileEntry]:
        if path == self.gated:
            self.arrived.set()
            assert self.gate.wait(PATIENCE_S)
        return super().list_directory(path)

    def rename(self, old: str, new: str) -> None:
        self.renamed.append(old)
        super().rename(old, new)


class Bench:
    """A manager that was stopped cleanly with two logs and started again; the opening of the first log waits at a
    gate."""

    def __init__(self, path: Path) -> None:
        first = LogManager([str(path)], OsFileSystem(), ManualTime(NOW_MS), CONFIG)
        first.startup()
        for partition in (T0, T1):
            append(first.get_or_create_log(partition, ID, CONFIG), batch(3))
        first.shutdown()
        self.time = ManualTime(NOW_MS)
        self.files = GatedFileSystem(str(path / T0.directory_name))
        self.manager = LogManager([str(path)], self.files, self.time, CONFIG)
        self.manager.startup()
        self.pool = ThreadPoolExecutor(4)

    @contextmanager
    def opening(self) -> Iterator[Future[UnifiedLog | None]]:
        """A block in which a thread opens the first log; the gate opens at the end of the block at the latest."""
        opened = self.pool.submit(self.manager.get_log, T0)
        try:
            assert self.files.arrived.wait(PATIENCE_S)
            yield opened
        finally:
            self.files.gate.set()
            self.pool.shutdown()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_another_log_opens_while_one_is_recovered(bench: Bench) -> None:
    with bench.opening() as opened:
        log = bench.pool.submit(bench.manager.get_log, T1).result(PATIENCE_S)
        assert log is not None
        assert log.log_end_offset == 3
        assert not opened.done()


def test_another_log_is_made_and_deleted_while_one_is_recovered(bench: Bench) -> None:
    new = TopicPartition("new", 0)
    with bench.opening() as opened:
        made = bench.pool.submit(bench.manager.get_or_create_log, new, ID, CONFIG).result(PATIENCE_S)
        assert made.log_end_offset == 0
        assert bench.pool.submit(bench.manager.delete_log, new).result(PATIENCE_S)
        assert bench.pool.submit(bench.manager.delete_log, T1).result(PATIENCE_S)
        assert not opened.done()
    assert bench.manager.partitions() == [T0]


def test_retention_looks_at_the_others_when_one_opens(bench: Bench) -> None:
    week = 7 * 86_400_000
    bench.time.advance(2 * week)
    with bench.opening():
        running = bench.pool.submit(bench.manager.run_retention, NOW_MS + 2 * week)
        log = bench.pool.submit(bench.manager.get_log, T1).result(PATIENCE_S)
        bench.files.gate.set()
        assert running.result(PATIENCE_S) == 2
    assert log is not None
    assert log.log_start_offset == 3


def test_all_threads_that_ask_for_a_log_get_the_same_one(bench: Bench) -> None:
    with bench.opening() as opened:
        others: list[Future[UnifiedLog | None] | Future[UnifiedLog]] = [
            bench.pool.submit(bench.manager.get_log, T0),
            bench.pool.submit(bench.manager.get_or_create_log, T0, ID, CONFIG),
        ]
        assert not any(other.done() for other in others)
        bench.files.gate.set()
        found = [each.result(PATIENCE_S) for each in (opened, *others)]
    assert found[0] is not None
    assert all(log is found[0] for log in found)


def test_deletion_waits_for_the_opening_of_that_log(bench: Bench) -> None:
    with bench.opening() as opened:
        deleted = bench.pool.submit(bench.manager.delete_log, T0)
        assert not wait([deleted], 0.1).done  # nothing comes of it as long as the gate is shut
        assert not bench.files.renamed
        bench.files.gate.set()
        assert deleted.result(PATIENCE_S)
        log = opened.result(PATIENCE_S)
    assert log is not None
    with pytest.raises(KafkaStorageError):
        append(log, batch(1))
    assert bench.manager.get_log(T0) is None
    assert bench.files.renamed == [bench.files.gated]


def test_a_thread_that_waited_for_a_deleted_log_gets_the_new_one(bench: Bench) -> None:
    """One thread deletes it, one asks for a log of that name, while it opens. In either order, a later caller gets the
    new one."""
    with bench.opening():
        deleted = bench.pool.submit(bench.manager.delete_log, T0)
        wanted = bench.pool.submit(bench.manager.get_or_create_log, T0, OTHER_ID, CONFIG)
        bench.files.gate.set()
        assert deleted.result(PATIENCE_S)
        old_or_new = wanted.result(PATIENCE_S)
    new = bench.manager.get_or_create_log(T0, OTHER_ID, CONFIG)
    assert (new.topic_id, new.log_end_offset) == (OTHER_ID, 0)
    assert old_or_new is new or old_or_new.is_closed
    assert os.path.isdir(bench.files.gated)


def test_whoever_opens_a_new_log_first_gives_it_its_topic(tmp_path: Path) -> None:
    manager = LogManager([str(tmp_path)], OsFileSystem(), ManualTime(NOW_MS), CONFIG)
    manager.startup()
    finds: list[bytes | None] = []

    class Finder(OsFileSystem):
        """A file system that looks for the log right after its directory was created."""

        def make_directory(self, path: str) -> None:
            super().make_directory(path)
            if path.endswith(T0.directory_name):
                thread.start()

    def find() -> None:
        while (log := again.get_log(T0)) is None:
            pass
        finds.append(log.topic_id)

    again = LogManager([str(tmp_path)], Finder(), ManualTime(NOW_MS), CONFIG)
    again.startup()
    thread = threading.Thread(target=find, daemon=True)
    assert again.get_or_create_log(T0, ID, CONFIG).topic_id == ID
    thread.join(PATIENCE_S)
    assert finds == [ID]
