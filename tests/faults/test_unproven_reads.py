"""Read_committed fetches of segments whose transaction index has to be checked first: a thread walks through the
records, and the answer is correct."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines import NOW_MS, end_transaction, write
from tests.support.topics import create_topic
from tests.support.transactions import committed_by_markers
from tests.support.watched_loop import WatchedLoop
from tests.unit.broker.data_broker import DataBroker
from tests.unit.broker.handlers.test_data_path import Wire
from tests.unit.broker.share.share_world import ShareMember, ShareWorld, partitions, read_fetched
from tidelog.broker.loop.deferred import Deferred
from tidelog.log import index_proof
from tidelog.log.files.index_digests import INDEX_DIGESTS_FILE
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.share_fetch import PartitionData, ShareFetchResponse
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.record_batch import Record

CONFIG = {"log.segment.bytes": "15000"}
BATCHES = 600
WORKER_ONLY = ("_walk", "_open_at")


def fill(log: UnifiedLog) -> None:
    """Append two producers' transactions of small batches over some segments; every third is aborted."""
    for number in range(BATCHES):
        producer_id = number % 2
        records = [Record(0, NOW_MS, b"k", b"value %d" % number)]
        write(log, records, producer_id=producer_id, producer_epoch=0, base_sequence=number // 2, is_transactional=True)
        if number % 20 in (18, 19):
            end_transaction(log, producer_id, commit=number % 60 > 20)


def stopped(world: type[DataBroker], path: Path) -> None:
    """Write a data directory like one of Apache Kafka: stopped cleanly, without digests of transaction indices."""
    data = world(path, CONFIG)
    create_topic(data, "t", 1)
    fill(data.replica_manager.partition("t", 0).local_log)
    data.close()
    (path / INDEX_DIGESTS_FILE).unlink()


def watch(data: DataBroker, monkeypatch: pytest.MonkeyPatch) -> WatchedLoop:
    """Let the functions that read records for a check fail if the loop calls them."""
    watched = WatchedLoop(data.loop)
    for name in WORKER_ONLY:
        whole = getattr(index_proof, name)

        def checked(*arguments: Any, whole: Callable[..., Any] = whole) -> Any:
            assert watched.is_in_worker, "records are walked on the loop"
            return whole(*arguments)

        monkeypatch.setattr(index_proof, name, checked)
    return watched


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataBroker]:
    stopped(DataBroker, tmp_path)
    data = DataBroker(tmp_path, CONFIG)
    watch(data, monkeypatch)
    yield data
    data.close()


class Consumer:
    """A read_committed consumer of t-0."""

    def __init__(self, data: DataBroker, session_epoch: int = -1) -> None:
        self.data, self.wire = data, Wire(data)
        self.session_epoch, self.session_id = session_epoch, 0

    def request(self, offset: int, max_wait_ms: int, min_bytes: int) -> FetchRequest:
        topic_id = self.data.broker.metadata.topics["t"].topic_id
        asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=5000)
        topics = [FetchTopic(topic="t", topic_id=topic_id, partitions=[asked])]
        return FetchRequest(
            max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=5000, isolation_level=1, topics=topics,
            session_id=self.session_id, session_epoch=self.session_epoch,
        )  # fmt: skip

    def fetch(self, offset: int, max_wait_ms: int = 10_000, min_bytes: int = 1) -> FetchResponse:
        response = self.wire.ask_patiently(self.request(offset, max_wait_ms, min_bytes), FetchResponse, 18)
        self.session_id = response.session_id
        self.session_epoch += self.session_epoch >= 0
        return response

    def read_all(self) -> list[tuple[int, bytes | None]]:
        """Return the records that a consumer sees from the beginning on."""
        rows: list[tuple[int, bytes | None]] = []
        offset, end = 0, self.data.replica_manager.partition("t", 0).local_log.last_stable_offset
        while offset < end:
            partition = self.fetch(offset).responses[0].partitions[0]
            assert partition.error_code == 0
            spans: dict[int, list[int]] = {}
            for aborted in partition.aborted_transactions or []:
                spans.setdefault(aborted.producer_id, []).append(aborted.first_offset)
            open_aborts: set[int] = set()
            assert isinstance(partition.records, (bytes, memoryview))
            for batch in iter_batches(partition.records):
                starts = spans.get(batch.producer_id, [])
                if batch.is_control:
                    open_aborts.discard(batch.producer_id)
                elif starts and min(starts) <= batch.base_offset:
                    starts.remove(min(starts))
                    open_aborts.add(batch.producer_id)
                if not batch.is_control and batch.producer_id not in open_aborts:
                    rows += [(record.offset, record.value) for record in batch.records()]
                offset = batch.last_offset + 1
        return rows


@pytest.mark.parametrize("session_epoch", [-1, 0], ids=["no session", "session"])
def test_unchecked_transaction_indices_are_checked_by_a_thread_before_reads(
    data: DataBroker, session_epoch: int
) -> None:
    expected = committed_by_markers(Path(data.replica_manager.partition("t", 0).local_log.directory))
    assert 100 < len(expected) < BATCHES - 100
    assert Consumer(data, session_epoch).read_all() == expected
    log = data.replica_manager.partition("t", 0).local_log
    assert len(log.segments) > 2
    assert all(segment.transaction_index.is_proven for segment in log.segments)


@pytest.mark.parametrize("min_bytes", [0, 1])
def test_a_fetch_without_time_to_wait_waits_for_the_check(data: DataBroker, min_bytes: int) -> None:
    assert Consumer(data).fetch(0, max_wait_ms=0, min_bytes=min_bytes).responses[0].partitions[0].records


def test_a_failed_check_is_reported_and_repeated_by_the_next_fetch(
    data: DataBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KafkaStorageError("cannot read")

    with monkeypatch.context() as failing:
        failing.setattr(index_proof, "_open_at", fail)
        assert Consumer(data).fetch(0).responses[0].partitions[0].error_code == KafkaStorageError.code
    assert Consumer(data).fetch(0).responses[0].partitions[0].records


def test_share_groups_wait_for_the_thread_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(ShareWorld, tmp_path)
    world = ShareWorld(tmp_path, CONFIG)
    expected = committed_by_markers(tmp_path / "t-0")[:20]
    world.configure("g", share_isolation_level="read_committed")
    watch(world, monkeypatch)
    member = world.member()
    found: list[tuple[int, bytes | None]] = []
    for _ in range(10):
        for partition in partitions(fetched(world, member)):
            found += acquired_rows(partition)
        world.advance(50)
    assert len(found) >= len(expected)
    assert found[: len(expected)] == expected
    world.close()


def fetched(world: ShareWorld, member: ShareMember) -> ShareFetchResponse:
    """Return the answer of a fetch, once a thread has opened the log and proved what it has to."""
    answer = member.ask(max_records=20)
    if isinstance(answer, Deferred):
        world.advance(50)
        answer = answer.result()
    return read_fetched(answer)


def acquired_rows(partition: PartitionData) -> list[tuple[int, bytes | None]]:
    """Return the records of an answer that the member acquired."""
    assert isinstance(partition.records, (bytes, memoryview))
    acquired = {offset for run in partition.acquired_records for offset in range(run.first_offset, run.last_offset + 1)}
    batches = [batch for batch in iter_batches(partition.records) if not batch.is_control]
    return [(one.offset, one.value) for batch in batches for one in batch.records() if one.offset in acquired]


def test_appends_to_an_active_segment_continue_while_it_is_walked(
    data: DataBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's lock is free during the walk. Later records, also an abort, are in the index."""
    log = data.replica_manager.partition("t", 0).local_log
    segment = log.segments.active
    monkeypatch.undo()
    monkeypatch.setattr(index_proof, "LOCKED_BYTES", 2000)
    walk, walked = index_proof._walk, 0
    before = committed_by_markers(Path(log.directory))

    def walk_beside_appends(*arguments: Any) -> None:
        nonlocal walked
        walk(*arguments)
        walked += 1
        if walked == 1:
            assert not log.lock._is_owned()  # type: ignore[attr-defined]
            values = [Record(0, NOW_MS, b"k", b"meanwhile")]
            write(log, values, producer_id=77, producer_epoch=0, base_sequence=0, is_transactional=True)
            end_transaction(log, 77, commit=False)

    monkeypatch.setattr(index_proof, "_walk", walk_beside_appends)
    index = index_proof.ensure_proven(log, segment)
    assert [one.producer_id for one in index][-1] == 77
    assert walked == 2
    assert committed_by_markers(Path(log.directory)) == before
