"""The runtime: partitions of keys, loading in steps, and the state after failures."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest

from tests.support.coordinators import GroupWorld, MemoryTopicLog
from tests.unit.broker.stepping import response_of
from tidelog.broker.coordinator.runtime.key_hash import java_string_hash
from tidelog.broker.coordinator.runtime.loading import FIRST_TURN_CHUNKS, LOAD_CHUNK_BYTES, RETRY_MS
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import (
    CoordinatorLoadInProgressError,
    KafkaError,
    KafkaStorageError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
)
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.protocol.record.record_batch import EndTransactionMarker, Record, build_batch, end_transaction_marker

COMMITS_IN_A_LARGE_LOG = FIRST_TURN_CHUNKS * LOAD_CHUNK_BYTES // 32_000 * 2


def commit(world: GroupWorld, offset: int, group_id: str = "g", metadata: str = "") -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=metadata)
    request = OffsetCommitRequest(
        group_id=group_id, topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])]
    )
    world.coordinator.commit_offsets(world.context(9), request).result()


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("a", 97), ("my-group", 1906497762), ("group\u00e9\U0001f600", 508263725), ("polygenelubricants", 0)],
)
def test_keys_are_hashed_as_java_does(text: str, value: int) -> None:
    assert java_string_hash(text) == value


def test_a_key_keeps_its_partition() -> None:
    world = GroupWorld()
    assert world.runtime.partition_for("a") == 97 % 50
    assert world.runtime.partition_for("a") == 97 % 50


def test_reading_creates_nothing() -> None:
    world = GroupWorld()
    world.runtime.shard_for("g")
    assert response_of(world.coordinator.list_groups([], [])) == []
    assert not world.log.exists()


def test_a_small_partition_loads_with_its_first_request() -> None:
    world = GroupWorld()
    commit(world, 5)
    again = GroupWorld(world.log)
    assert again.group() is not None
    assert not again.loop.soon


def large_log() -> MemoryTopicLog:
    """Write more into the partition of "g" than the first request waits for."""
    world = GroupWorld(offset_metadata_max_bytes=LOAD_CHUNK_BYTES)
    for offset in range(COMMITS_IN_A_LARGE_LOG):
        commit(world, offset, metadata="m" * 32_000)
    return world.log


def test_a_large_partition_asks_clients_to_come_again() -> None:
    world = GroupWorld(large_log())
    with pytest.raises(CoordinatorLoadInProgressError):
        world.runtime.shard_for("g")
    with pytest.raises(CoordinatorLoadInProgressError):
        response_of(world.coordinator.list_groups([], []))
    world.loop.run_soon()
    committed = world.runtime.shard_for("g").offsets.get("g", "t", 0)
    assert committed is not None
    assert committed.offset == COMMITS_IN_A_LARGE_LOG - 1


def test_a_request_during_the_background_load_does_not_load_twice() -> None:
    world = GroupWorld(large_log())
    world.runtime.load_all()
    with pytest.raises(CoordinatorLoadInProgressError):
        world.runtime.shard_for("g")
    world.loop.run_soon()
    assert world.group() is not None


def test_all_partitions_that_hold_something_are_loaded_after_a_start() -> None:
    world = GroupWorld()
    for index in range(200):
        commit(world, index, group_id=f"group-{index}")
    again = world.restarted()
    assert len(again.runtime.loaded) == len(world.log.batches)
    assert len(response_of(again.coordinator.list_groups([], []))) == 200


def test_nothing_is_loaded_without_the_internal_topic() -> None:
    world = GroupWorld()
    world.runtime.load_all()
    assert not world.loop.soon


class UnreadableLog(MemoryTopicLog):
    """A log whose reads fail."""

    def read(self, partition: int, offset: int, max_bytes: int) -> bytes:
        raise KafkaStorageError

    def __init__(self, log: MemoryTopicLog) -> None:
        super().__init__()
        self.batches, self.ends = log.batches, log.ends


class OfflineLog(UnreadableLog):
    """A log that cannot even be opened."""

    def end_offset(self, partition: int) -> int:
        raise KafkaStorageError


@pytest.mark.parametrize("log_class", [UnreadableLog, OfflineLog])
def test_a_partition_that_cannot_be_read_refuses(
    log_class: type[UnreadableLog], caplog: pytest.LogCaptureFixture
) -> None:
    world = GroupWorld()
    commit(world, 5)
    broken = GroupWorld(log_class(world.log), ManualTime())
    assert response_of(broken.coordinator.list_groups([], [])) == []
    broken = GroupWorld(log_class(world.log), ManualTime())
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            with pytest.raises(NotCoordinatorError):
                broken.runtime.shard_for("g")
        broken.runtime.load_all()
        broken.loop.run_soon()
    assert response_of(broken.coordinator.list_groups([], [])) == []
    assert "cannot be loaded" in caplog.text


@pytest.mark.parametrize("error", [KafkaStorageError, NotLeaderOrFollowerError])
@pytest.mark.parametrize("name", ["read", "end_offset"])
def test_a_partition_whose_log_is_served_again_is_loaded_without_a_restart(name: str, error: type[KafkaError]) -> None:
    """The disk was full when its log was loaded, or the log could not be opened when its leader was elected."""
    world = GroupWorld()
    commit(world, 5)

    class Refused(MemoryTopicLog):
        is_refused = True

    def refused(log: Refused, *arguments: Any) -> Any:
        if log.is_refused:
            raise error
        return getattr(MemoryTopicLog, name)(log, *arguments)

    setattr(Refused, name, refused)
    log = Refused()
    log.batches, log.ends = world.log.batches, world.log.ends
    again = GroupWorld(log, ManualTime())
    for _ in range(3):
        with pytest.raises(NotCoordinatorError):
            again.runtime.shard_for("g")
        again.advance(RETRY_MS)
    log.is_refused = False
    again.advance(RETRY_MS)
    assert again.runtime.shard_for("g").offsets.get("g", "t", 0) is not None


def test_records_that_are_not_understood_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    world = GroupWorld()
    commit(world, 5)
    partition = world.runtime.partition_for("g")
    strange = [
        Record(0, 0, None, b"no key"),
        Record(1, 0, b"\x7f\x00", b"a type of the future"),
        Record(2, 0, b"\x00\x01\x00", None),
        Record(3, 0, b"\x00\x02\x00\x01g", b"\x7f\x00 a version of the future"),
    ]
    world.log.append(partition, build_batch(strange))
    offsets = world.restarted().runtime.shard_for("g").offsets
    committed = offsets.get("g", "t", 0)
    assert committed is not None
    assert committed.offset == 5
    assert f"__consumer_offsets-{partition}: the record at offset 3 cannot be decoded" in caplog.text


@pytest.mark.parametrize("committed", [True, False])
def test_markers_in_the_log_end_transactions(committed: bool) -> None:
    from tests.unit.broker.coordinator.group.test_offset_commits import fetch, txn_commit

    world = GroupWorld()
    txn_commit(world, 5)
    marker = end_transaction_marker(EndTransactionMarker(committed, 0), timestamp=0, producer_id=7, producer_epoch=0)
    world.runtime.append_end_transaction(world.runtime.partition_for("g"), marker)
    assert fetch(world.restarted(), require_stable=True)[0] == (5 if committed else -1)


def test_after_unloading_timers_do_nothing() -> None:
    world = GroupWorld()
    world.stable(1)
    world.runtime.unload()
    world.advance(100_000)
    assert world.log.appends == 2


# -- clocks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_a_shard_has_at_most_one_timer_for_each_waiting_action(seed: int) -> None:
    """Actions come, go, are put off and schedule themselves again; a clock once armed cannot be taken back."""
    world, moves = GroupWorld(), random.Random(seed)
    timer, loop = world.runtime.shard_for("g").timer, world.loop
    due: dict[int, float] = {}
    max_queued = 0

    def schedule(key: int, delay_ms: float) -> None:
        due[key] = world.time.monotonic_ms() + delay_ms
        timer.schedule((str(key),), delay_ms, lambda: run(key))

    def run(key: int) -> None:
        assert world.time.monotonic_ms() == due.pop(key)
        if moves.random() < 0.8:
            schedule(key, moves.choice([1, 5, 5, 30]))

    for _ in range(200):
        key = moves.randrange(5)
        if moves.random() < 0.1:
            timer.cancel((str(key),))
            due.pop(key, None)
        elif key not in due or moves.random() < 0.3:
            schedule(key, moves.choice([1, 5, 5, 30, 100]))
        world.advance(moves.choice([0, 1, 10]))
        max_queued = max(max_queued, len(loop.later))
    assert max_queued <= 6


def test_an_action_that_repeats_itself_for_days_has_one_timer() -> None:
    world = GroupWorld()
    timer = world.runtime.shard_for("g").timer

    def repeat() -> None:
        timer.schedule(("again",), 300_000, repeat)

    repeat()
    world.advance(200 * 300_000)
    assert len(world.loop.later) == 1
