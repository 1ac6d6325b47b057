"""Long deletions: a topic that 1,000 groups read, a group with 1,000 offsets, states of share groups.

They go in parts, between which others are served; what others commit meanwhile stays, or the deletion is refused.
"""

from __future__ import annotations

import itertools
import random

import pytest

from tests.support.coordinators import GroupWorld, MemoryTopicLog
from tests.unit.broker.coordinator.group.test_offset_commits import commit, end, fetch, fetch_all, txn_commit
from tests.unit.broker.coordinator.share_state.test_state import StateWorld
from tests.unit.broker.stepping import response_of
from tidelog.broker.coordinator.group.offset_commits import EXPIRY_PART
from tidelog.broker.coordinator.runtime.loading import RETRY_MS
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord, CoordinatorResult
from tidelog.broker.coordinator.share_state.state import StateKey
from tidelog.broker.loop.deferred import Deferred
from tidelog.protocol.coordinator_records.group import OffsetCommitKey, OffsetCommitValue
from tidelog.protocol.errors import NONE, KafkaStorageError, NonEmptyGroupError
from tidelog.protocol.messages.delete_groups import DeletableGroupResult
from tidelog.protocol.record.record_batch import RecordBatch

GROUPS = [f"g{number}" for number in range(1000)]
TOPIC_ID = b"\1" * 16


def stepping_world(log: MemoryTopicLog | None = None) -> GroupWorld:
    """Build a world whose slices end after one or two steps."""
    world = GroupWorld(log or MemoryTopicLog(partitions=1))
    ticks = itertools.count()
    world.runtime.steps.clock = lambda: float(next(ticks))
    return world


def offsets_of_groups(world: GroupWorld, keys: list[tuple[str, str, int]]) -> None:
    """Commit offset 5 for each group, topic and partition."""
    shard = world.runtime.shard_for("g")
    records = [
        CoordinatorRecord(
            OffsetCommitKey(group=group_id, topic=topic, partition=partition),
            OffsetCommitValue(offset=5, leader_epoch=-1, metadata="", commit_timestamp=1, expire_timestamp=-1),
        )
        for group_id, topic, partition in keys
    ]
    world.runtime.write(0, shard, CoordinatorResult(None, records))


def part_sizes(world: GroupWorld, since: int) -> list[int]:
    return [RecordBatch(bytearray(batch)).record_count for batch in world.log.batches[0][since:]]


@pytest.mark.parametrize("seed", range(5))
def test_a_topic_of_many_groups_is_forgotten_in_parts_but_for_commits_to_its_successor(seed: int) -> None:
    chance = random.Random(seed)
    world = stepping_world()
    offsets_of_groups(world, [(group_id, topic, 0) for group_id in GROUPS for topic in ("t", "u")])
    before = len(world.log.batches[0])
    forgotten = world.coordinator.topic_deleted("t", TOPIC_ID)
    assert not forgotten.done
    assert fetch(world, group_id="g999")[0] in (5, -1), "others are served"
    kept, pending = set(), set()
    while world.loop.soon:
        world.loop.soon.pop(0)()
        group_id = chance.choice(GROUPS)
        if chance.random() < 0.5:
            commit(world, 6, group_id=group_id)
            kept.add(group_id)
        else:
            txn_commit(world, 6, group_id=group_id)
            pending.add(group_id)
    assert forgotten.result() is None
    end(world, committed=True)
    sizes = part_sizes(world, before)
    assert max(sizes) <= EXPIRY_PART
    assert len(sizes) > len(GROUPS) / EXPIRY_PART
    assert len(kept | pending) > 3
    for again in (world, world.restarted()):
        if again is not world:
            end(again, committed=True)
        found = {group_id for group_id in GROUPS if fetch(again, group_id=group_id) == (6, NONE)}
        assert found == kept | pending
        assert {fetch(again, group_id=group_id)[0] for group_id in set(GROUPS) - found} == {-1}
        assert {fetch(again, group_id=group_id, topic="u")[0] for group_id in GROUPS} == {5}


def test_a_topic_of_many_virtual_topics_is_forgotten_in_parts() -> None:
    world = stepping_world()
    offsets_of_groups(world, [("g", f"{topic}?key={number}", 0) for number in range(1000) for topic in ("t", "u")])
    before = len(world.log.batches[0])
    forgotten = world.coordinator.topic_deleted("t", TOPIC_ID)
    assert not forgotten.done
    world.loop.run_soon()
    assert forgotten.result() is None
    assert max(part_sizes(world, before)) <= EXPIRY_PART
    assert {name[0] for name, _ in fetch_all(world)} == {"u"}
    assert len(fetch_all(world.restarted())) == 1000


def test_a_topic_deleted_before_its_shard_is_loaded_is_forgotten_in_parts_before_it_serves() -> None:
    world = stepping_world()
    offsets_of_groups(world, [(group_id, topic, 0) for group_id in GROUPS for topic in ("t", "u")])
    txn_commit(world, 6, group_id="g1")
    again = stepping_world(world.log)
    forgotten = again.coordinator.topic_deleted("t", TOPIC_ID)
    assert forgotten.done
    before = len(world.log.batches[0])
    again.runtime.load_all()
    turns = 0
    while again.loop.soon:
        again.loop.soon.pop(0)()
        turns += 1
        assert again.runtime.loaded == [] or len(world.log.batches[0]) - before >= len(GROUPS) // EXPIRY_PART
    assert turns > len(GROUPS) / EXPIRY_PART
    assert max(part_sizes(again, before)) <= EXPIRY_PART
    assert fetch_all(again) == {}
    assert {fetch(again, group_id=group_id)[0] for group_id in GROUPS} == {-1}
    assert {fetch(again, group_id=group_id, topic="u")[0] for group_id in GROUPS} == {5}


def test_a_deletion_that_cannot_be_stored_ends() -> None:
    world = stepping_world()
    offsets_of_groups(world, [(group_id, "t", 0) for group_id in GROUPS])
    forgotten = world.coordinator.topic_deleted("t", TOPIC_ID)
    world.log.failure = KafkaStorageError("the disk is full")
    world.loop.run_soon()
    with pytest.raises(KafkaStorageError):
        forgotten.result()
    world.log.failure = None
    again = world.coordinator.topic_deleted("t", TOPIC_ID)
    world.loop.run_soon()
    again.result()
    assert {fetch(world, group_id=group_id)[0] for group_id in GROUPS} == {-1}


class PartlyFullLog(MemoryTopicLog):
    """A log in which some partitions take no records."""

    def __init__(self) -> None:
        super().__init__(partitions=5)
        self.full: set[int] = set()

    def append(self, partition: int, batch: bytearray, transaction_version: int = 0) -> int:
        if partition in self.full:
            raise KafkaStorageError("the disk is full")
        return super().append(partition, batch, transaction_version)


def test_a_partition_that_takes_no_records_keeps_a_deleted_topics_offsets_until_it_does() -> None:
    """The others forgot nothing, and a new topic of the name was read from the old one's offsets."""
    log = PartlyFullLog()
    world = stepping_world(log)
    for group_id in GROUPS[:50]:
        commit(world, 5, group_id=group_id)
    log.full = {world.runtime.loaded[0][0]}
    forgotten = world.coordinator.topic_deleted("t", TOPIC_ID)
    world.loop.run_soon()
    with pytest.raises(KafkaStorageError):
        forgotten.result()
    left = {group_id for group_id in GROUPS[:50] if fetch(world, group_id=group_id)[0] == 5}
    assert {world.runtime.partition_for(group_id) for group_id in left} == log.full
    world.advance(RETRY_MS)
    log.full = set()
    commit_to = next(iter(left))
    commit(world, 6, group_id=commit_to)
    world.advance(RETRY_MS)
    assert {fetch(world, group_id=group_id)[0] for group_id in left} == {-1, 6}
    assert fetch(world, group_id=commit_to)[0] == 6, "of the new topic"
    assert len(world.loop.later) == len(world.runtime.loaded), "only the timers of expiry are left"


def wide_group(world: GroupWorld) -> None:
    offsets_of_groups(world, [("wide", "t", number) for number in range(600)])
    offsets_of_groups(world, [("wide", f"u{number}", 0) for number in range(600)])


def begin_deletion(world: GroupWorld) -> Deferred[Deferred[DeletableGroupResult]]:
    job = world.runtime.steps.run(world.coordinator.delete_group("wide"))
    assert not isinstance(job, Deferred), "it goes in steps"
    return job.done


def test_a_group_of_many_offsets_is_deleted_in_parts() -> None:
    world = stepping_world()
    wide_group(world)
    before = len(world.log.batches[0])
    deleted = begin_deletion(world)
    turns = 0
    while world.loop.soon:
        world.loop.soon.pop(0)()
        turns += 1
        if turns == 2:
            commit(world, 7, group_id="wide", name="v")
    assert deleted.result().result().error_code == NONE
    assert max(part_sizes(world, before)) <= EXPIRY_PART + 2
    for again in (world, world.restarted()):
        assert again.group("wide") is None
        assert again.runtime.shard_for("wide").offsets.count("wide") == 0


def test_a_group_that_gets_members_while_it_is_deleted_stays() -> None:
    world = stepping_world()
    wide_group(world)
    deleted = begin_deletion(world)
    world.loop.soon.pop(0)()
    world.join_twice(group_id="wide")
    world.loop.run_soon()
    assert deleted.result().result().error_code == NonEmptyGroupError.code
    assert world.group("wide") is not None


@pytest.mark.parametrize("is_loaded", [True, False])
def test_share_states_of_a_topic_go_in_parts(is_loaded: bool) -> None:
    world = StateWorld()
    gone = [StateKey(f"g{number}", b"t" * 16, 0) for number in range(400)]
    kept = [StateKey(f"g{number}", b"u" * 16, 0) for number in range(400)]
    for key in (*gone, *kept):
        world.share.initialize(key, 0, 1)
    again = world if is_loaded else StateWorld(world.log)
    before = len(world.log.batches[0])
    forgotten = again.share.topic_deleted(b"t" * 16)
    again.runtime.load_all()
    again.loop.run_soon()
    forgotten.result()
    assert [again.share.read(key) for key in gone] == [None] * 400
    assert None not in [again.share.read(key) for key in kept]
    sizes = [RecordBatch(bytearray(batch)).record_count for batch in world.log.batches[0][before:]]
    assert max(sizes) <= EXPIRY_PART
    assert sum(sizes) == 400


def test_a_deleted_group_is_answered_when_its_offsets_are_gone() -> None:
    world = stepping_world()
    offsets_of_groups(world, [("few", "t", 0)])
    assert response_of(world.coordinator.delete_group("few")).error_code == NONE
    assert world.group("few") is None
