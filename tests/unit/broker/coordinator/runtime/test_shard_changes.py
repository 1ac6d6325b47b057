"""Replaced shards of a partition: another broker led in the meantime, the shard was given up, or its log took no
records.

What the former shard decided or answered is not taken for what the next one knows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar, cast

import pytest

from tests.support.coordinators import GroupWorld, MemoryTopicLog
from tests.unit.broker.coordinator.group.test_offset_commits import commit
from tidelog.broker.coordinator.runtime.loading import FIRST_TURN_CHUNKS, LOAD_CHUNK_BYTES, RETRY_MS
from tidelog.broker.coordinator.runtime.result import CoordinatorResult
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps
from tidelog.broker.metadata.image import TopicImage, single_replica_states
from tidelog.protocol.errors import (
    CoordinatorLoadInProgressError,
    KafkaStorageError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
)
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequestGroup

T = TypeVar("T")
TOPIC_ID = bytes([1] * 16)


class EpochLog(MemoryTopicLog):
    """A log whose leader epochs the test sets, and which refuses the appends that it names."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0
        self.is_refused: Callable[[], bool] = bool

    def leader_epoch(self, partition: int) -> int:
        return self.epoch

    def append(self, partition: int, batch: bytearray, transaction_version: int = 0) -> int:
        if self.is_refused():
            raise KafkaStorageError
        return super().append(partition, batch, transaction_version)


def offset_of(world: GroupWorld, group_id: str = "g") -> int | None:
    found = world.runtime.shard_for(group_id).offsets.get(group_id, "t", 0)
    return None if found is None else found.offset


def lead_elsewhere(log: EpochLog, world: GroupWorld, offset: int) -> None:
    """Let another broker lead, commit, and give leadership back; this broker's image gets both changes at once."""
    elsewhere = GroupWorld(MemoryTopicLog(), world.time)
    elsewhere.log.batches, elsewhere.log.ends = log.batches, log.ends
    elsewhere.runtime.load_all()
    elsewhere.loop.run_soon()
    commit(elsewhere, offset)
    log.epoch += 2


def loaded(world: GroupWorld) -> None:
    commit(world, 1)


def loading(world: GroupWorld) -> None:
    """Load until the first chunks are read."""
    for offset in range(FIRST_TURN_CHUNKS * LOAD_CHUNK_BYTES // 4_000 * 2):
        commit(world, offset, partition={"committed_metadata": "m" * 4_000})
    world.runtime.unload()
    world.runtime.load_all()
    for _ in range(3 * 50):
        if world.runtime._loading:
            return
        world.loop.soon.pop(0)()
    raise AssertionError("nothing loads")


def empty(world: GroupWorld) -> None:
    """Open a log that holds nothing then."""
    commit(world, 1, group_id="h")
    world.runtime.load_all()
    world.loop.run_soon()


@pytest.mark.parametrize("state", [loaded, loading, empty])
def test_leadership_that_went_and_came_back_in_one_image_loads_the_shard_again(
    state: Callable[[GroupWorld], None],
) -> None:
    log = EpochLog()
    world = GroupWorld(log)
    state(world)
    lead_elsewhere(log, world, 777)
    for shard in world.runtime.resign_lost():
        shard.close()
    world.runtime.load_all()
    world.loop.run_soon()
    assert offset_of(world) == 777
    commit(world, 778)
    assert offset_of(world.restarted()) == 778


def test_a_shard_of_an_earlier_leadership_serves_nothing_until_it_is_replaced() -> None:
    """The image is shown, and other topics' changes are applied before the coordinator resigns."""
    log = EpochLog()
    world = GroupWorld(log)
    commit(world, 1)
    former = world.runtime.shard_for("g")
    expiry = CoordinatorResult(None, former.offsets.tombstones("g"))
    lead_elsewhere(log, world, 777)
    end = log.end_offset(world.runtime.partition_for("g"))
    with pytest.raises(NotCoordinatorError):
        commit(world, 2)
    with pytest.raises(NotCoordinatorError):
        world.runtime.shard_for("g")
    with pytest.raises(NotCoordinatorError):
        world.runtime.execute("g", expiry)
    world.runtime.resign_lost()
    assert (offset_of(world), log.end_offset(world.runtime.partition_for("g"))) == (777, end)


def test_the_same_leadership_keeps_its_shards() -> None:
    world = GroupWorld(EpochLog())
    commit(world, 1)
    before = world.runtime.shard_for("g")
    assert not world.runtime.resign_lost()
    assert world.runtime.shard_for("g") is before


@pytest.mark.parametrize("seed", range(20))
def test_a_change_of_all_shards_is_completed_although_a_log_refuses_it_while_loading(seed: int) -> None:
    """Offsets of a deleted topic go once the disk has room again; until then groups are served."""
    randomness = random.Random(seed)
    log = EpochLog()
    first = GroupWorld(log)
    names = [f"group-{number}" for number in range(6)]
    for name in names:
        commit(first, 5, group_id=name)
    world = GroupWorld(log, first.time)
    world.coordinator.topic_deleted("t", TOPIC_ID)
    log.is_refused = lambda: randomness.random() < 0.7
    world.runtime.load_all()
    world.loop.run_soon()
    assert {world.runtime.partition_for(name) for name in names} <= {partition for partition, _ in world.runtime.loaded}
    for _ in range(randomness.randrange(4)):
        world.advance(RETRY_MS)
    log.is_refused = lambda: True
    world.advance(3 * RETRY_MS)
    late = randomness.choice(names)
    log.is_refused = bool
    commit(world, 9, group_id=late)  # of the next topic of that name
    world.advance(2 * RETRY_MS)
    assert {name: offset_of(world, name) for name in names} == {name: 9 if name == late else None for name in names}
    again = world.restarted()
    assert {name: offset_of(again, name) for name in names} == {name: 9 if name == late else None for name in names}


def give_up(world: GroupWorld, *, wait_ms: int = RETRY_MS) -> None:
    """Give a shard up for a mistake of ours within a write; it is loaded again from the log after a second."""

    def fail(_: object) -> None:
        raise RuntimeError

    with pytest.raises(NotCoordinatorError):
        world.runtime.execute("g", CoordinatorResult(None, on_append=fail))
    world.advance(wait_ms)


def commit_many(world: GroupWorld) -> None:
    world.metadata.put(TopicImage("t", TOPIC_ID, single_replica_states(1, 1000), {}, False))
    partitions = [
        OffsetCommitRequestPartition(partition_index=number, committed_offset=5, committed_metadata="")
        for number in range(1000)
    ]
    request = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)])
    world.coordinator.commit_offsets(world.context(8), request).result()


def result_of(steps: Steps[T]) -> T:
    """Run the steps to their end and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(T, end.value)


def test_a_long_deletion_ends_with_the_shard_that_decided_it() -> None:
    """A commit after the shard was loaded again is not deleted by the list that the former one made."""
    world = GroupWorld()
    commit_many(world)
    steps = world.coordinator.delete_group("g")
    for _ in range(3):
        next(steps)
    give_up(world)
    commit(world, 9)
    assert result_of(steps).result().error_code == NotCoordinatorError.code
    found = world.runtime.shard_for("g").offsets.get("g", "t", 0)
    assert found is not None
    assert found.offset == 9


def test_an_answer_of_a_shard_that_was_given_up_meanwhile_is_not_given() -> None:
    world = GroupWorld()
    commit_many(world)
    asked = OffsetFetchRequestGroup(group_id="g", topics=None)
    steps = world.coordinator.fetch_offsets(asked, require_stable=False, by_id=False)
    next(steps)
    give_up(world)
    assert result_of(steps).error_code == NotCoordinatorError.code


@pytest.mark.parametrize("wait_ms", [0, RETRY_MS])
@pytest.mark.parametrize("is_lost", [False, True])
def test_an_answer_waits_for_the_commit_of_its_records_when_its_shard_is_given_up(
    *, is_lost: bool, wait_ms: int
) -> None:
    """A description that depends on uncommitted records is not answered earlier because of a later fault."""
    world = GroupWorld()
    commit(world, 5)
    sync: Deferred[None] = Deferred()
    world.log.syncs[world.runtime.partition_for("g")] = sync
    give_up(world, wait_ms=wait_ms)
    answer = world.runtime.when_committed("g", "what was read")
    assert not answer.done
    if is_lost:
        sync.fail(NotLeaderOrFollowerError())
        with pytest.raises(NotCoordinatorError):
            answer.result()
    else:
        sync.complete(None)
        assert answer.result() == "what was read"


def test_a_decision_of_all_shards_loads_those_that_no_request_has_loaded() -> None:
    """Also after a load by a request, which is no round over all partitions."""
    log = EpochLog()
    world = GroupWorld(log)
    for offset in range(FIRST_TURN_CHUNKS * LOAD_CHUNK_BYTES // 4_000 * 2):
        commit(world, offset, partition={"committed_metadata": "m" * 4_000})
    other = next(name for name in map(str, range(99)) if partition_of(world, name) != partition_of(world, "g"))
    commit(world, 1, group_id=other)
    again = GroupWorld(log, world.time)
    with pytest.raises(CoordinatorLoadInProgressError):
        again.runtime.shard_for("g")
    again.loop.run_soon()
    executed: list[bool] = []
    again.runtime.execute_in_all(lambda shard, end: iter(()), lambda: executed.append(True))
    assert executed == []
    for _ in range(200):
        again.loop.run_soon()
    assert executed == [True]


def partition_of(world: GroupWorld, group_id: str) -> int:
    return world.runtime.partition_for(group_id)


class LookedAtLog(EpochLog):
    """A log that notes the partitions that are to be opened."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_at: list[int] = []

    def when_open(self, partition: int) -> Deferred[None] | None:
        self.looked_at.append(partition)
        return super().when_open(partition)


@pytest.mark.parametrize("end", ["unload", "load_all"])
def test_a_round_ends_with_the_broker_or_with_the_next_one(end: str) -> None:
    """A broker that stops has no threads any more, which would open the logs."""
    log = LookedAtLog()
    world = GroupWorld(log)
    commit(world, 1)
    world.runtime.load_all()
    world.loop.soon.pop(0)()
    del log.looked_at[:]
    getattr(world.runtime, end)()
    while world.loop.soon:
        world.loop.run_soon()
    assert len(log.looked_at) == len(set(log.looked_at))
    assert bool(log.looked_at) == (end == "load_all")
