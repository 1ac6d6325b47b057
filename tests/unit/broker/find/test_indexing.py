"""The indexer thread and its supervisor: a thread that dies is replaced, a log pauses after a failure, no record is
missed."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.data_broker import TIMESTAMP_MS, DataBroker
from tidelog.broker.find.indexing import RETRY_MS, SUPERVISE_S, UPKEEP_MS, Indexing, indexing_of
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.find.indexer import LogIndexer
from tidelog.log.find.lookup import Query, find_newest
from tidelog.protocol.record.record_batch import Record, build_batch

PARTITION = TopicPartition("t", 0)
WAIT_S = 20.0


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataBroker]:
    data = DataBroker(tmp_path)
    create_topic(data, "t", 1, configs={"index.keys": "true"})
    append(data, range(10))
    yield data
    data.stop_threads()
    data.close()


def append(data: DataBroker, numbers: range) -> None:
    records = [Record(i, TIMESTAMP_MS, b"%d" % number, b"v") for i, number in enumerate(numbers)]
    data.replica_manager.partition("t", 0).append_records(memoryview(build_batch(records)))


def started(data: DataBroker) -> Indexing:
    """Start the indexing: the thread runs and has the log."""
    indexing = indexing_of(data.broker)
    data.loop.run_soon()
    return indexing


def offsets_of(data: DataBroker, key: bytes) -> list[int]:
    indexing = data.broker.services.indexing.get()
    log = data.replica_manager.partition("t", 0).local_log
    return [record.offset for record in find_newest(log, indexing.indexer(PARTITION), Query(key=key))]


def lag_metrics(data: DataBroker) -> list[float]:
    """Return the lag of the whole broker, and of its only indexed partition."""
    names = ("tidelog_index_lag_records", "tidelog_index_partition_lag_records")
    samples = list(data.broker.metrics.collect_shared())
    return [next(sample.value for sample in samples if sample.name == name) for name in names]


class DiesOnce:
    """``LogIndexer.step``, whose first call raises MemoryError and sets ``died``."""

    def __init__(self) -> None:
        self.step = LogIndexer.step
        self.died = threading.Event()

    def __call__(self, indexer: LogIndexer, max_bytes: int) -> int:
        if not self.died.is_set():
            self.died.set()
            raise MemoryError
        return self.step(indexer, max_bytes)


def test_a_thread_that_died_is_replaced_and_the_log_it_died_on_rests(
    data: DataBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = DiesOnce()
    monkeypatch.setattr(LogIndexer, "step", lambda indexer, size: dies(indexer, size))
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    indexing = started(data)
    assert dies.died.wait(WAIT_S)
    first = indexing._thread
    assert first is not None
    first.join(WAIT_S)
    assert not first.is_alive()
    data.loop.advance(1000 * SUPERVISE_S)
    assert indexing.restarts == 1
    assert indexing._thread is not first
    indexer = indexing.indexer(PARTITION)
    assert indexer is not None
    assert indexer.lag == 10, "the log rests, so that one that kills the thread does not keep it from the others"
    assert lag_metrics(data) == [10, 10]
    data.loop.advance(RETRY_MS)
    assert indexing.wait_until_indexed(PARTITION, 10, WAIT_S)
    assert lag_metrics(data) == [0, 0]
    assert offsets_of(data, b"7") == [7]


@pytest.mark.parametrize("when", ["waits", "comes later"])
def test_a_stop_ends_look_ups_that_wait_for_an_index(data: DataBroker, when: str) -> None:
    """A waiting look-up is in a thread that the process joins before it ends."""
    indexing = started(data)
    answers: list[bool] = []
    nowhere = TopicPartition("t", 7)
    look_up = threading.Thread(
        target=lambda: answers.append(indexing.wait_until_indexed(nowhere, 1, 10 * WAIT_S)), daemon=True
    )
    if when == "waits":
        look_up.start()
    indexing.stop()
    if when == "comes later":
        look_up.start()
    look_up.join(WAIT_S)
    assert answers == [False]


class NotedReads(dict[TopicPartition, LogIndexer]):
    """Indexers by partition, with an event that is set at the first read."""

    def __init__(self) -> None:
        super().__init__()
        self.was_read = threading.Event()

    def get(self, *arguments: Any) -> Any:
        self.was_read.set()
        return super().get(*arguments)


def test_a_search_waits_no_longer_than_until_a_saved_index_of_all_records_is_opened(data: DataBroker) -> None:
    """After a start an index may need no record of the log. Then the thread reads none, but still wakes the search."""
    before = started(data)
    assert before.wait_until_indexed(PARTITION, 10, WAIT_S)
    before.stop()
    indexing = Indexing(data.broker)
    indexing._indexers = indexers = NotedReads()
    answers: list[bool] = []
    search = threading.Thread(
        target=lambda: answers.append(indexing.wait_until_indexed(PARTITION, 10, 10 * WAIT_S)), daemon=True
    )
    search.start()
    assert indexers.was_read.wait(WAIT_S)
    with indexing._condition:  # the search has released this lock, so it waits
        pass
    indexing.start()
    image = data.broker.metadata.topics.get("t")
    assert image is not None
    indexing.topic_changed(image)
    data.loop.run_soon()
    search.join(WAIT_S)
    is_waiting = search.is_alive()
    indexing.stop()
    assert not is_waiting
    assert answers == [True]


def test_an_index_is_synced_some_seconds_after_its_log_was_met(
    data: DataBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends may have to wait while a file system commits what was synced: so not at the first records of a topic."""
    synced = threading.Event()
    checkpoint = LogIndexer.checkpoint

    def watched(indexer: LogIndexer, *, sync: bool = True) -> None:
        checkpoint(indexer, sync=sync)
        synced.set()

    monkeypatch.setattr(LogIndexer, "checkpoint", watched)
    indexing = started(data)
    assert indexing.wait_until_indexed(PARTITION, 10, WAIT_S)
    data.loop.advance(UPKEEP_MS - 1)
    append(data, range(10, 20))
    assert indexing.wait_until_indexed(PARTITION, 20, WAIT_S)
    assert not synced.is_set()
    data.loop.advance(1)
    assert synced.wait(WAIT_S)


def test_a_full_disk_stops_no_producer_and_the_index_continues_with_free_space(
    data: DataBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full = threading.Event()
    met = threading.Event()
    reserve = os.posix_fallocate

    def allocate(descriptor: int, position: int, size: int) -> None:
        if is_full.is_set():
            met.set()
            raise OSError(errno.ENOSPC, "no space left")
        reserve(descriptor, position, size)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    is_full.set()
    indexing = started(data)
    assert met.wait(WAIT_S)
    append(data, range(10, 20))
    assert data.replica_manager.partition("t", 0).local_log.log_end_offset == 20
    is_full.clear()
    for _ in range(100):  # the thread may say that the log rests only after the clock has moved
        data.loop.advance(RETRY_MS)
        if indexing.wait_until_indexed(PARTITION, 20, WAIT_S / 100):
            break
    assert indexing.wait_until_indexed(PARTITION, 20, 0)
    assert indexing.restarts == 0
    for number in (0, 9, 10, 19):
        assert offsets_of(data, b"%d" % number) == [number]
