from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.cleaning import LogWriter, open_log
from tidelog.broker.loop.deferred import Deferred, error_of
from tidelog.broker.replica.group_flush import GroupFlush
from tidelog.broker.replica.offset_waits import OffsetWaits
from tidelog.log.config import LogConfig
from tidelog.log.file_use import LogDeletedError
from tidelog.protocol.errors import KafkaError, KafkaStorageError


@dataclass
class FakeConfig:
    flush_messages: int


@dataclass
class FakeLog:
    config: FakeConfig
    log_end_offset: int = 0
    recovery_point: int = 0
    high_watermark: int = 0
    flushed: list[int] = field(default_factory=list)
    error: KafkaStorageError | None = None
    failure: KafkaStorageError | None = None
    is_serving: bool = True

    def flush(self, up_to: int) -> None:
        if not self.is_serving:
            return  # as that of a log that was deleted: nothing of it is left to promise
        if self.error is not None:
            raise self.error
        self.flushed.append(up_to)
        self.recovery_point = up_to

    def update_high_watermark(self, offset: int) -> None:
        self.high_watermark = offset


class Threads:
    """Runs a thread's work when the test says so."""

    def __init__(self) -> None:
        self.work: list[tuple[Callable[[], None], Deferred[None]]] = []

    def __call__(self, work: Callable[[], None]) -> Deferred[None]:
        deferred: Deferred[None] = Deferred()
        self.work.append((work, deferred))
        return deferred

    def finish(self) -> None:
        work, deferred = self.work.pop(0)
        try:
            work()
        except KafkaStorageError as error:
            deferred.fail(error)
        else:
            deferred.complete(None)


class Fixture:
    def __init__(self, flush_messages: int) -> None:
        self.log = FakeLog(FakeConfig(flush_messages))
        self.threads = Threads()
        self.committed = 0
        self.commits = OffsetWaits()
        self.flush = GroupFlush(cast(Any, self.log), self.threads, self.advance, self.commits.fail)

    def advance(self, offset: int) -> None:
        self.committed += 1
        self.log.high_watermark = offset
        self.commits.advance(offset)

    def append(self) -> Deferred[None]:
        self.log.log_end_offset += 1
        wait = self.commits.wait(self.log.log_end_offset - 1)
        self.flush.commit_or_sync()
        return wait


def test_an_append_waits_for_its_sync() -> None:
    fixture = Fixture(1)
    done: list[Deferred[None]] = []
    fixture.append().on_done(done.append)
    assert done == []
    assert fixture.log.high_watermark == 0
    fixture.threads.finish()
    assert len(done) == 1
    assert (fixture.log.high_watermark, fixture.committed) == (1, 1)


def test_one_sync_serves_all_that_came_meanwhile() -> None:
    fixture = Fixture(1)
    done: list[Deferred[None]] = []
    for _ in range(6):
        fixture.append().on_done(done.append)
    fixture.threads.finish()
    assert len(done) == 1
    fixture.threads.finish()
    assert len(done) == 6
    assert fixture.log.flushed == [1, 6]
    assert not fixture.threads.work


def test_fewer_than_flush_messages_are_committed_at_once() -> None:
    fixture = Fixture(3)
    assert fixture.append().done
    assert fixture.append().done
    done: list[Deferred[None]] = []
    fixture.append().on_done(done.append)
    assert done == []
    fixture.threads.finish()
    assert len(done) == 1


def test_a_failed_sync_acknowledges_nothing() -> None:
    fixture = Fixture(1)
    fixture.log.error = KafkaStorageError("the disk is gone")
    wait = fixture.append()
    fixture.threads.finish()
    assert fixture.log.high_watermark == 0
    with pytest.raises(KafkaStorageError):
        wait.result()


def test_an_abandoned_wait_is_left_alone() -> None:
    fixture = Fixture(1)
    wait = fixture.append()
    wait.abandon()
    fixture.threads.finish()
    assert not wait.done


def test_an_error_after_a_sync_does_not_delay_later_appends() -> None:
    fixture = Fixture(1)
    first, second = fixture.append(), fixture.append()

    def fail(_: int) -> None:
        raise MemoryError

    fixture.flush = GroupFlush(cast(Any, fixture.log), fixture.threads, fail, fixture.commits.fail)
    fixture.threads.work.clear()
    fixture.flush.commit_or_sync()
    third = fixture.append()
    fixture.threads.finish()
    assert fixture.threads.work, "the next sync is under way"
    fixture.commits.advance(3)
    assert all(wait.done for wait in (first, second, third))


@pytest.mark.parametrize("failure", [None, KafkaStorageError("deleted")])
def test_a_log_that_was_deleted_is_not_synced_again_and_again(failure: KafkaStorageError | None) -> None:
    fixture = Fixture(1)
    waits = [fixture.append(), fixture.append()]
    fixture.log.is_serving, fixture.log.failure = False, failure
    fixture.threads.finish()
    assert not fixture.threads.work, "no further sync"
    assert not fixture.log.high_watermark, "nothing is durable"
    assert all(isinstance(error_of(wait), KafkaStorageError) for wait in waits)


def test_a_real_log_that_is_deleted_within_a_sync_is_left_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig({"flush.messages": "1"}))
    writer, threads, failed = LogWriter(log), Threads(), list[KafkaError]()
    flush = GroupFlush(log, threads, lambda _: None, failed.append)
    for _ in range(2):
        writer.append([(b"key", b"value")])
        flush.commit_or_sync()
    log.abandon()
    threads.finish()
    log.release_files()
    assert not threads.work
    assert [type(error) for error in failed] == [LogDeletedError]


class CutLog(FakeLog):
    """A log that a follower's cut may shorten; each record is a number that is not used twice."""

    def __init__(self) -> None:
        super().__init__(FakeConfig(1))
        self.records: list[int] = []
        self.durable: set[int] = set()
        self._numbers = itertools.count()

    def append(self) -> None:
        self.records.append(next(self._numbers))
        self.log_end_offset += 1

    def cut(self, offset: int) -> None:
        del self.records[offset:]
        self.log_end_offset = len(self.records)
        self.recovery_point = min(self.recovery_point, offset)

    def flush(self, up_to: int) -> None:
        self.durable.update(self.records[:up_to])
        self.recovery_point = max(self.recovery_point, min(up_to, self.log_end_offset))


@pytest.mark.parametrize("seed", range(60))
def test_records_that_replace_truncated_ones_are_committed_by_their_own_sync(seed: int) -> None:
    """Leadership was lost and regained during a sync."""
    choice = random.Random(seed)
    log, threads = CutLog(), Threads()

    def synced(offset: int) -> None:
        log.high_watermark = max(log.high_watermark, offset)
        assert log.durable >= set(log.records[: log.high_watermark])

    flush = GroupFlush(cast(Any, log), threads, synced, lambda _: None)
    ended: list[Deferred[None]] = []
    for _ in range(60):
        step = choice.choice(("append", "append", "cut", "sync", "settle"))
        if step == "append":
            log.append()
            flush.commit_or_sync()
        elif step == "cut":
            log.cut(choice.randint(log.high_watermark, log.log_end_offset))
        elif step == "sync" and threads.work:
            work, deferred = threads.work.pop()
            work()
            ended.append(deferred)
        elif step == "settle" and ended:
            ended.pop().complete(None)
    while ended or threads.work:
        if not ended:
            work, deferred = threads.work.pop()
            work()
            ended.append(deferred)
        ended.pop().complete(None)
    assert log.high_watermark == log.log_end_offset
