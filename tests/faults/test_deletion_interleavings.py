"""Every job that works on a log's files, while the log is deleted and created again.

The deletion comes at every call of the file system that the job makes.

An error on a file of a log that was deleted meanwhile says nothing about the disk. Nothing may be made, renamed or
removed in the directory of the next log of that name: it is another one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.interleaving import BLOCKED_S, InterleavedFileSystem
from tests.support.logs import NOW_MS, LogBench, append, batch, producer_batch, read_records, values
from tidelog.broker.find.indexing import UPKEEP_MS, Indexing
from tidelog.broker.metrics.registry import Metrics
from tidelog.cleaner.config import CleanerConfig
from tidelog.cleaner.log_cleaner import LogCleaner
from tidelog.cleaner.log_to_clean import LogToClean
from tidelog.log.config import LogConfig
from tidelog.log.fetch import FetchIsolation
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager, remove_old_segments
from tidelog.log.segment.segment import LogSegment
from tidelog.log.system.file_system import FileSystem, OpenFile, OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaError, KafkaStorageError, UnknownTopicOrPartitionError

PARTITION = TopicPartition("t", 0)
OLD_ID, NEW_ID = bytes(range(16)), bytes(range(1, 17))
SMALL = {"segment.bytes": 700, "index.interval.bytes": 100, "file.delete.delay.ms": 0, "flush.ms": 0}
WEEK_MS = 7 * 86_400_000
OLD_RECORDS, NEW_RECORDS = 16, 3
RESERVE_BYTES = 4096
"""A disk in memory fills the reserve with zeros."""


class Bench:
    """A manager with one log of several segments and what works on it."""

    def __init__(self, directory: Path, file_system: Any = None, **overrides: Any) -> None:
        """``file_system`` is an :class:`InterleavedFileSystem` where none is given."""
        self.directory = directory
        self.file_system = file_system or InterleavedFileSystem()
        self.time = ManualTime(NOW_MS)
        self.config = LogConfig({**SMALL, **overrides})
        self.manager = self.new_manager()
        self._log: UnifiedLog | None = None
        log = self.manager.get_or_create_log(PARTITION, OLD_ID, self.config, is_new=True)
        for number in range(OLD_RECORDS):
            append(log, producer_batch(number, timestamp=NOW_MS + number))
        append(log, batch(1, timestamp=NOW_MS, key=b"k"))
        log.maybe_increment_log_start_offset(5)
        self.indexing = Indexing(cast(Any, SimpleNamespace(time=self.time, metrics=Metrics())))
        logs = lambda: [log for log in self.manager.open_logs() if log.config.compact]  # noqa: E731
        self.cleaner = LogCleaner(logs, self.file_system, self.time, CleanerConfig.parse())
        self.cleanable: LogToClean | None = None
        self.errors: list[KafkaError] = []
        self.is_made = True
        self.is_wanted = True

    def new_manager(self, file_system: FileSystem | None = None) -> LogManager:
        disk, directories = file_system or self.file_system, [str(self.directory)]
        manager = LogManager(directories, disk, self.time, self.config, reserve_bytes=RESERVE_BYTES)
        manager.startup()
        return manager

    @property
    def log(self) -> UnifiedLog:
        """The first log that was asked for, as a thread holds it: it may be deleted by now."""
        if self._log is None:
            self._log = self.manager.get_log(PARTITION)
        assert self._log is not None
        return self._log

    def hold(self) -> None:
        """Take what a job's thread has in hand when it begins."""
        if self.is_made:
            self.entry = self.manager._entries[PARTITION]
            self._log = self.entry.log

    # ---- changes

    def delete(self) -> None:
        """Delete the log; as in a broker, users of its files are first told that the topic is deleted."""
        self.is_wanted = False
        assert self.manager.delete_log(PARTITION) or not self.is_made

    def make_again(self) -> None:
        self.delete()
        log = self.manager.get_or_create_log(PARTITION, NEW_ID, self.config, is_new=True)
        for number in range(NEW_RECORDS):
            append(log, batch(1, value=b"new%d" % number))

    # ---- what must hold

    def check(self, *, is_there: bool) -> None:
        """Check that no directory is offline, and that the new log is complete and has its directory alone, also after
        a kill."""
        failure = self.manager.directories[0].state.failure
        assert failure is None, failure
        for error in self.errors:
            assert isinstance(error, UnknownTopicOrPartitionError), error
        self.manager.environment.deletions.run(everything=True)
        shown = {name for name in os.listdir(self.directory) if os.path.isdir(self.directory / name)}
        assert shown == ({PARTITION.directory_name} if is_there else set())
        if is_there:
            new = self.manager.get_log(PARTITION)
            assert new is not None
            self._check_new(new)
            files = set(os.listdir(self.directory / PARTITION.directory_name))
            stem = "0" * 20
            allowed = {f"{stem}.log", f"{stem}.index", f"{stem}.timeindex"}
            assert files <= allowed | {"partition.metadata", "leader-epoch-checkpoint"}
        self._check_after_kill(is_there=is_there)

    def _check_new(self, log: UnifiedLog) -> None:
        assert log.topic_id == NEW_ID
        assert list(values(log).values()) == [b"new%d" % number for number in range(NEW_RECORDS)]
        assert log.log_start_offset == 0

    def _check_after_kill(self, *, is_there: bool) -> None:
        again = self.new_manager(OsFileSystem())
        assert not again.refused
        log = again.get_log(PARTITION)
        assert (log is not None) is is_there
        if log is not None:
            log.update_high_watermark(log.log_end_offset)
            self._check_new(log)


Job = Callable[[Bench], object]


def retention(bench: Bench) -> object:
    """Remove old segments in a round that has looked the log up already."""
    log = bench.manager._retain(PARTITION, bench.entry, bench.time.milliseconds())
    return remove_old_segments(bench.manager, {} if log is None else {PARTITION: log})


def flush(bench: Bench) -> None:
    bench.manager.flush_dirty_logs()


def checkpoints(bench: Bench) -> None:
    bench.manager.checkpoint_recovery_points()
    bench.manager.checkpoint_log_start_offsets()
    bench.manager.checkpoint_high_watermarks()


def deletions(bench: Bench) -> object:
    return bench.manager.environment.deletions.run()


def roll(bench: Bench) -> object:
    return bench.log.roll()


def delete_records(bench: Bench) -> object:
    return bench.log.maybe_increment_log_start_offset(OLD_RECORDS // 2)


def truncation(bench: Bench) -> object:
    return bench.log.truncate_to(OLD_RECORDS // 2)


def cleaning(bench: Bench) -> None:
    assert bench.cleanable is not None
    bench.cleaner._clean(bench.cleanable, dry_run=False)


def indexing(bench: Bench) -> None:
    for _ in range(3):
        bench.indexing._round()
        bench.time.advance(UPKEEP_MS)
    bench.indexing.stop()


def rebuilding_and_dropping_indices(bench: Bench) -> None:
    (log, _) = bench.indexing._configs[PARTITION]
    bench.indexing._damaged.add(PARTITION)
    bench.indexing._round()
    bench.indexing._configs = {PARTITION: (log, LogConfig(SMALL))}
    bench.indexing._round()


def reading(bench: Bench) -> None:
    log = bench.log
    log.update_high_watermark(log.log_end_offset)
    for isolation in FetchIsolation:
        found = read_records(log, 5, isolation)
        assert [record.offset for record in found] == list(range(5, OLD_RECORDS + 1))
    log.fetch_offset_by_timestamp(NOW_MS + 3)


def opening(bench: Bench) -> None:
    bench.manager.get_log(PARTITION)


def opening_or_making(bench: Bench) -> None:
    """Send the first request to a partition, in a thread."""
    bench.manager.get_or_create_log(PARTITION, OLD_ID, bench.config, is_wanted=lambda: bench.is_wanted)


def leave_unmade(bench: Bench) -> None:
    """Leave the topic with a partition whose log was never created."""
    bench.delete()
    bench.manager.environment.deletions.run(everything=True)
    bench.is_made, bench.is_wanted, bench._log = False, True, None


def leave_open(_: Bench) -> None:
    """Write logs and leave them open."""


def age(bench: Bench) -> None:
    bench.time.advance(2 * WEEK_MS)


def age_and_restart(bench: Bench) -> None:
    restart(bench)
    age(bench)


def restart(bench: Bench) -> None:
    """Restart: no log is open."""
    bench.manager.shutdown()
    bench.manager, bench._log = bench.new_manager(), None


def restart_and_open(bench: Bench) -> None:
    """Restart and open the log, whose files are not open."""
    restart(bench)
    bench.manager.get_log(PARTITION)


def sync(bench: Bench) -> None:
    bench.log.flush()


def delete_segments(bench: Bench) -> None:
    age(bench)
    assert bench.log.delete_old_segments(bench.time.milliseconds())


def compact(bench: Bench) -> None:
    bench.log.update_config(LogConfig({**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}))
    bench.cleanable = bench.cleaner.manager.grab(bench.log)


def ask_for_indices(bench: Bench) -> None:
    config = LogConfig({**SMALL, "index.keys": "true", "index.tag.header": "h", "index.entries": "8"})
    bench.indexing._configs = {PARTITION: (bench.log, config)}


def make_indices(bench: Bench) -> None:
    ask_for_indices(bench)
    bench.indexing._round()


#: What the log looks like, and the job that is interleaved.
JOBS: list[tuple[Callable[[Bench], object], Job]] = [
    (age, retention), (age_and_restart, retention), (leave_open, flush), (sync, checkpoints),
    (delete_segments, deletions), (leave_open, roll), (leave_open, delete_records), (leave_open, truncation),
    (compact, cleaning), (ask_for_indices, indexing), (make_indices, rebuilding_and_dropping_indices),
    (restart, opening), (restart, opening_or_making), (leave_unmade, opening_or_making), (restart_and_open, reading),
]  # fmt: skip


def run_interleaved(bench: Bench, job: Job, at: int, change: Callable[[], None]) -> bool:
    """Run the job, with the change at its call ``at`` (-1: before it). Returns whether the job made that many calls."""
    bench.hold()
    bench.file_system.arm(at, change)
    if at < 0:
        change()
    try:
        with contextlib.suppress(UnknownTopicOrPartitionError):
            job(bench)
    except KafkaStorageError as error:
        bench.errors.append(error)
    finally:
        was_there = bench.file_system.disarm()
    return was_there or at < 0


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made again"])
@pytest.mark.parametrize(("prepare", "job"), JOBS, ids=lambda step: cast(Job, step).__name__)
def test_a_deletion_at_every_call_of_a_job(
    tmp_path: Path, prepare: Callable[[Bench], object], job: Job, again: bool
) -> None:
    for at in range(-1, 10_000):
        directory = tmp_path / str(at)
        directory.mkdir()
        bench = Bench(directory)
        prepare(bench)
        if not run_interleaved(bench, job, at, bench.make_again if again else bench.delete):
            break
        bench.check(is_there=again)
    assert at > 0, "the job made no call"


def flush_all(bench: Bench) -> None:
    bench.log.recovery_point = 0
    bench.log.flush()


def read_all(bench: Bench) -> None:
    assert read_records(bench.log, 5)[-1].offset == OLD_RECORDS


def look_up(bench: Bench) -> None:
    assert bench.log.fetch_offset_by_timestamp(NOW_MS + 3) is not None


def run(job: Job, bench: Bench) -> None:
    job(bench)


@pytest.mark.parametrize("other", [flush_all, read_all, look_up], ids=lambda job: cast(Job, job).__name__)
def test_others_at_every_call_of_a_round_of_the_cleaner(tmp_path: Path, other: Job) -> None:
    """Between the renames of a swap, a segment's files have other names than in the list of segments."""
    for at in range(10_000):
        directory = tmp_path / str(at)
        directory.mkdir()
        bench = Bench(directory)
        restart_and_open(bench)
        bench.log.update_high_watermark(bench.log.log_end_offset)
        compact(bench)
        if not run_interleaved(bench, cleaning, at, partial(run, other, bench)):
            break
        assert bench.log.failure is None
        assert not bench.errors
    assert at > 20


class RenamedUnderneath(OsFileSystem):
    """A swap that has renamed a segment's index while it is opened, and has not published the new name yet."""

    __slots__ = ("log", "segment", "thread")

    def __init__(self) -> None:
        self.log: UnifiedLog | None = None
        self.segment: LogSegment | None = None
        self.thread: threading.Thread | None = None

    def open_file(self, path: str, *, create: bool = False, writable: bool = True) -> OpenFile:
        segment = self.segment
        if segment is not None and path == segment.offset_index.path:
            self.segment = None
            renamed = threading.Event()
            self.thread = threading.Thread(target=self._swap, args=(segment, renamed), daemon=True)
            self.thread.start()
            assert renamed.wait(60)
        return super().open_file(path, create=create, writable=writable)

    def _swap(self, segment: LogSegment, renamed: threading.Event) -> None:
        """Rename, then change the list of segments, under the log's lock, like ``finish_swap``."""
        assert self.log is not None
        with self.log.lock:
            segment.rename_suffix(".deleted")
            renamed.set()
            time.sleep(BLOCKED_S)  # long enough for the other to fail
            self.log.segments = self.log.segments.replace(removed=[segment])


def test_a_flush_that_meets_a_file_which_a_swap_has_renamed_continues(tmp_path: Path) -> None:
    files = RenamedUnderneath()
    bench = LogBench(str(tmp_path), files, segment_bytes=200)
    log = bench.open()
    for _ in range(10):
        append(log, batch(2))
    files.log, files.segment = log, log.segments[1]
    log.flush()
    assert files.thread is not None
    files.thread.join()
    assert log.failure is None
    assert log.recovery_point == log.log_end_offset, "what is acknowledged after a flush is synced"
