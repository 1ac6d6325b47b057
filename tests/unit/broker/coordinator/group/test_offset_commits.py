"""OffsetCommit, OffsetFetch, OffsetDelete, expiry, and offsets of open transactions."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from tests.support.coordinators import GroupWorld, MemoryTopicLog
from tests.unit.broker.stepping import response_of
from tidelog.broker.coordinator.group.offset_commits import EXPIRY_PART
from tidelog.broker.coordinator.group.offsets import OffsetStore
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord, CoordinatorResult
from tidelog.protocol.coordinator_records.group import OffsetCommitKey, OffsetCommitValue
from tidelog.protocol.errors import (
    NONE,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    KafkaError,
    KafkaStorageError,
    NonEmptyGroupError,
    NotCoordinatorError,
    OffsetMetadataTooLargeError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tidelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidelog.protocol.record.record_batch import RecordBatch

DAY_MS = 24 * 3600 * 1000
SUBSCRIBED_TO_T = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff"


def commit(
    world: GroupWorld, offset: int, *, version: int = 9, partition: dict[str, Any] | None = None, **fields: Any
) -> OffsetCommitResponse:
    values: dict[str, Any] = {"name": "t", **{k: fields.pop(k) for k in ("name", "topic_id") if k in fields}}
    asked = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, **(partition or {}))
    request = OffsetCommitRequest(
        **{"group_id": "g", "topics": [OffsetCommitRequestTopic(partitions=[asked], **values)], **fields}
    )
    return world.coordinator.commit_offsets(world.context(version), request).result()


def commit_error(world: GroupWorld, offset: int, **fields: Any) -> int:
    try:
        return commit(world, offset, **fields).topics[0].partitions[0].error_code
    except KafkaError as error:
        return error.code


def txn_commit(world: GroupWorld, offset: int, producer_id: int = 7, **fields: Any) -> int:
    asked = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, **fields.pop("partition", {}))
    topic = TxnOffsetCommitRequestTopic(name=fields.pop("name", "t"), partitions=[asked])
    request = TxnOffsetCommitRequest(
        **{"group_id": "g", "producer_id": producer_id, "producer_epoch": 0, "topics": [topic], **fields}
    )
    try:
        return world.coordinator.commit_offsets_in_transaction(request).result().topics[0].partitions[0].error_code
    except KafkaError as error:
        return error.code


def end(world: GroupWorld, producer_id: int = 7, *, committed: bool) -> None:
    world.runtime.shard_for("g").replay_end_transaction(producer_id, 0, committed=committed)


def fetch(world: GroupWorld, *, require_stable: bool = False, topic: str = "t", group_id: str = "g") -> tuple[int, int]:
    """Fetch the offset and its error code."""
    group = OffsetFetchRequestGroup(
        group_id=group_id, topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    )
    answer = response_of(world.coordinator.fetch_offsets(group, require_stable=require_stable, by_id=False))
    partition = answer.topics[0].partitions[0]
    return partition.committed_offset, partition.error_code


def fetch_all(world: GroupWorld, *, by_id: bool = False) -> dict[Any, int]:
    group = OffsetFetchRequestGroup(group_id="g", topics=None)
    answer = response_of(world.coordinator.fetch_offsets(group, require_stable=True, by_id=by_id))
    return {
        (topic.topic_id if by_id else topic.name, partition.partition_index): partition.committed_offset
        for topic in answer.topics
        for partition in topic.partitions
    }


# -- commit and fetch -----------------------------------------------------------------------------------------------


def test_a_simple_group_commits_and_fetches() -> None:
    world = GroupWorld()
    assert commit_error(world, 5, partition={"committed_metadata": "m", "committed_leader_epoch": 3}) == NONE
    group = OffsetFetchRequestGroup(group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])])
    known, unknown = (
        response_of(world.coordinator.fetch_offsets(group, require_stable=False, by_id=False)).topics[0].partitions
    )
    assert (known.committed_offset, known.metadata, known.committed_leader_epoch) == (5, "m", 3)
    assert (unknown.committed_offset, unknown.metadata, unknown.error_code) == (-1, "", NONE)


def test_commits_survive_a_restart() -> None:
    world = GroupWorld()
    commit(world, 5)
    commit(world, 6)
    again = world.restarted()
    assert fetch(again) == (6, NONE)
    assert again.group().group_type == "Classic"


def test_metadata_none_is_kept_as_empty() -> None:
    world = GroupWorld()
    commit(world, 5, partition={"committed_metadata": None})
    committed = world.runtime.shard_for("g").offsets.get("g", "t", 0)
    assert committed is not None
    assert (committed.offset, committed.metadata) == (5, "")


def test_metadata_has_a_limit() -> None:
    world = GroupWorld(offset_metadata_max_bytes=3)
    assert commit_error(world, 5, partition={"committed_metadata": "four"}) == OffsetMetadataTooLargeError.code
    assert txn_commit(world, 5, partition={"committed_metadata": "four"}) == OffsetMetadataTooLargeError.code
    assert fetch(world) == (-1, NONE)


def test_unknown_topics_are_refused_by_themselves() -> None:
    world = GroupWorld()
    assert commit_error(world, 5, name="none") == UnknownTopicOrPartitionError.code
    assert txn_commit(world, 5, name="none") == UnknownTopicOrPartitionError.code
    assert commit_error(world, 5, version=10, name="", topic_id=b"?" * 16) == UnknownTopicIdError.code


def test_offsets_are_committed_and_fetched_by_topic_id() -> None:
    world = GroupWorld()
    assert commit_error(world, 5, version=10, name="", topic_id=b"\1" * 16) == NONE
    assert fetch_all(world, by_id=True) == {(b"\1" * 16, 0): 5}
    group = OffsetFetchRequestGroup(
        group_id="g",
        topics=[
            OffsetFetchRequestTopics(topic_id=b"\1" * 16, partition_indexes=[0]),
            OffsetFetchRequestTopics(topic_id=b"?" * 16, partition_indexes=[0]),
        ],
    )
    known, unknown = response_of(world.coordinator.fetch_offsets(group, require_stable=False, by_id=True)).topics
    assert known.partitions[0].committed_offset == 5
    assert unknown.partitions[0].error_code == UnknownTopicIdError.code


def test_offsets_of_a_deleted_topic_are_gone_for_its_successor() -> None:
    world = GroupWorld()
    commit(world, 5)
    commit(world, 6, name="u")
    txn_commit(world, 7)
    world.coordinator.topic_deleted("t", b"\1" * 16)
    end(world, committed=True)
    assert fetch_all(world) == {("u", 0): 6}
    assert fetch_all(world.restarted()) == {("u", 0): 6}


VIEWS = ("t?key=4711", "t...key.4711", "t?tag=a&from=2026-11-21")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("is_loaded", [True, False])
def test_offsets_of_a_virtual_topic_go_with_the_topic_that_it_reads(view: str, *, is_loaded: bool) -> None:
    """They stayed, and a group skipped the first records of a new topic of the name."""
    world = GroupWorld()
    commit(world, 5, name=view)
    txn_commit(world, 7, name=view)
    txn_commit(world, 7, name="t?key=pending")
    commit(world, 6, name="u?key=4711")
    again = world if is_loaded else GroupWorld(world.log, world.time)
    again.coordinator.topic_deleted("t", b"\1" * 16)
    end(again, committed=True)
    assert fetch_all(again) == {("u?key=4711", 0): 6}
    commit(again, 1, name="t?key=new")
    assert fetch_all(again.restarted()) == {("u?key=4711", 0): 6, ("t?key=new", 0): 1}


def test_an_ordinary_topic_whose_name_reads_as_a_virtual_one_keeps_its_offsets() -> None:
    world = GroupWorld()
    world.metadata.put(world.metadata.topics["u"]._replace(name="t...key.4711", topic_id=b"\7" * 16))
    commit(world, 5, name="t...key.4711")
    world.coordinator.topic_deleted("t", b"\1" * 16)
    assert fetch_all(world) == {("t...key.4711", 0): 5}


def test_the_id_of_a_virtual_topic_whose_topic_was_made_anew_is_unknown() -> None:
    world = GroupWorld()
    image = world.metadata.find(VIEWS[0])
    assert image is not None
    commit(world, 5, name=VIEWS[0])
    world.metadata.put(world.metadata.topics["t"]._replace(topic_id=b"\7" * 16))
    assert commit_error(world, 6, version=10, name="", topic_id=image.topic_id) == UnknownTopicIdError.code
    topic = OffsetFetchRequestTopics(topic_id=image.topic_id, partition_indexes=[0])
    group = OffsetFetchRequestGroup(group_id="g", topics=[topic])
    answer = response_of(world.coordinator.fetch_offsets(group, require_stable=False, by_id=True))
    assert answer.topics[0].partitions[0].error_code == UnknownTopicIdError.code


def test_a_deleted_topic_costs_the_groups_that_read_it() -> None:
    """Random commits, transactions and deletions: the groups of each topic are those that a walk over all finds."""
    for seed in range(20):
        chance = random.Random(seed)
        store = OffsetStore()
        for number in range(200):
            key = OffsetCommitKey(
                group=f"g{chance.randrange(5)}", topic=f"t{chance.randrange(4)}", partition=chance.randrange(2)
            )
            value = OffsetCommitValue(offset=1, leader_epoch=-1, metadata="", commit_timestamp=1, expire_timestamp=-1)
            producer_id = chance.choice([-1, -1, 7, 8])
            if chance.random() < 0.2:
                store.replay_end_transaction(max(producer_id, 7), committed=chance.random() < 0.5)
            else:
                gone = chance.random() < 0.4
                store.replay(key, None if gone else value, record_offset=number, producer_id=producer_id)
            for topic in (f"t{index}" for index in range(4)):
                groups = [f"g{index}" for index in range(5)]
                walked = {one for one in groups if topic in store.of_group(one)}
                walked |= {one for one in groups if any(name == topic for name, _ in store.pending_partitions(one))}
                assert walked <= set(store.index.groups_of(topic))
        for producer_id in (7, 8):
            store.replay_end_transaction(producer_id, committed=False)
        for topic in (f"t{index}" for index in range(4)):
            assert set(store.index.groups_of(topic)) == {f"g{i}" for i in range(5) if topic in store.of_group(f"g{i}")}


def test_offsets_of_a_topic_deleted_before_its_partition_is_loaded_go_too() -> None:
    world = GroupWorld()
    commit(world, 5)
    commit(world, 6, name="u")
    again = GroupWorld(world.log, world.time)
    again.coordinator.topic_deleted("t", b"\1" * 16)
    assert again.runtime.loaded == []
    assert fetch_all(again) == {("u", 0): 6}
    assert fetch_all(again.restarted()) == {("u", 0): 6}


def test_all_offsets_by_id_leave_out_topics_without_one() -> None:
    world = GroupWorld()
    commit(world, 5)
    world.metadata.remove("t")
    assert fetch_all(world, by_id=True) == {}
    assert fetch_all(world) == {("t", 0): 5}


@pytest.mark.parametrize(
    ("fields", "error_code"),
    [
        ({}, UnknownMemberIdError.code),
        ({"member_id": "stranger", "generation_id_or_member_epoch": 2}, UnknownMemberIdError.code),
        ({"member_id": "leader", "generation_id_or_member_epoch": 1}, IllegalGenerationError.code),
        ({"member_id": "leader", "generation_id_or_member_epoch": 2}, NONE),
        (
            {"member_id": "leader", "generation_id_or_member_epoch": 2, "group_instance_id": "i"},
            UnknownMemberIdError.code,
        ),
    ],
)
def test_commits_to_a_live_group_are_of_its_members(fields: dict[str, Any], error_code: int) -> None:
    world = GroupWorld()
    leader, _ = world.stable(2)
    if fields.get("member_id") == "leader":
        fields = {**fields, "member_id": leader}
    assert commit_error(world, 5, **fields) == error_code


def test_a_fenced_static_member_cannot_commit() -> None:
    world = GroupWorld()
    old = world.join(group_instance_id="i").result().member_id
    world.join(group_instance_id="i")
    fields = {"member_id": old, "generation_id_or_member_epoch": 1, "group_instance_id": "i"}
    assert commit_error(world, 5, **fields) == FencedInstanceIdError.code


def test_commits_while_the_assignment_is_awaited_are_told_to_join() -> None:
    world = GroupWorld()
    leader, _ = world.join_twice()
    fields: dict[str, Any] = {"member_id": leader, "generation_id_or_member_epoch": 1}
    assert commit_error(world, 5, **fields) == RebalanceInProgressError.code
    assert txn_commit(world, 5, member_id=leader, generation_id=1) == NONE


def test_a_commit_keeps_the_session() -> None:
    world = GroupWorld()
    (leader,) = world.stable(1)
    for _ in range(5):
        world.advance(9_000)
        assert commit_error(world, 5, member_id=leader, generation_id_or_member_epoch=1) == NONE


@pytest.mark.parametrize(("version", "error"), [(8, IllegalGenerationError), (9, GroupIdNotFoundError)])
def test_a_commit_with_a_generation_to_an_unknown_group_is_refused(version: int, error: type[KafkaError]) -> None:
    assert commit_error(GroupWorld(), 5, version=version, generation_id_or_member_epoch=1) == error.code


def test_the_empty_group_id_has_offsets_too() -> None:
    world = GroupWorld()
    commit(world, 5, group_id="")
    answer = response_of(
        world.coordinator.fetch_offsets(
            OffsetFetchRequestGroup(group_id="", topics=None), require_stable=False, by_id=False
        )
    )
    assert [found.committed_offset for topic in answer.topics for found in topic.partitions] == [5]


@pytest.mark.parametrize("partition", [-1, 10_000])
def test_a_partition_that_is_not_there_has_no_offsets(partition: int) -> None:
    world = GroupWorld()
    asked = OffsetCommitRequestPartition(partition_index=partition, committed_offset=5)
    topics = [OffsetCommitRequestTopic(name="t", partitions=[asked])]
    request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=topics)
    answer = world.coordinator.commit_offsets(world.context(8), request).result()
    assert answer.topics[0].partitions[0].error_code == UnknownTopicOrPartitionError.code


def test_a_failed_append_is_an_error_and_nothing_is_committed() -> None:
    world = GroupWorld()
    commit(world, 5)
    world.log.failure = KafkaStorageError()
    assert commit_error(world, 6) == NotCoordinatorError.code
    assert fetch(world) == (5, NONE)


def test_commit_timestamps_and_retention_times_of_old_versions_are_kept() -> None:
    world = GroupWorld()
    commit(world, 5, version=1, partition={"commit_timestamp": 17})
    commit(world, 6, version=2, name="u", retention_time_ms=1_000)
    offsets = world.restarted().runtime.shard_for("g").offsets
    first, second = offsets.get("g", "t", 0), offsets.get("g", "u", 0)
    assert first is not None
    assert first.commit_timestamp_ms == 17
    assert second is not None
    assert second.expire_timestamp_ms == world.time.milliseconds() + 1_000


def test_the_longest_retention_time_is_stored() -> None:
    """The end of that time is no int64: the record could not be encoded, and each such request unloaded the shard."""
    world = GroupWorld()
    commit(world, 5, version=2, retention_time_ms=2**63 - 1)
    stored = world.restarted().runtime.shard_for("g").offsets.get("g", "t", 0)
    assert stored is not None
    assert stored.expire_timestamp_ms == 2**63 - 1


# -- transactions ---------------------------------------------------------------------------------------------------


def test_a_transactional_commit_shows_with_its_marker() -> None:
    world = GroupWorld()
    commit(world, 1)
    assert txn_commit(world, 5) == NONE
    assert fetch(world) == (1, NONE)
    assert fetch(world, require_stable=True) == (-1, UnstableOffsetCommitError.code)
    end(world, committed=True)
    assert fetch(world, require_stable=True) == (5, NONE)


def test_an_aborted_commit_never_shows() -> None:
    world = GroupWorld()
    txn_commit(world, 5)
    end(world, committed=False)
    assert fetch(world, require_stable=True) == (-1, NONE)


def test_the_later_record_wins_over_the_later_marker() -> None:
    world = GroupWorld()
    txn_commit(world, 5)
    commit(world, 6)
    end(world, committed=True)
    assert fetch(world) == (6, NONE)


def test_markers_of_others_change_nothing() -> None:
    world = GroupWorld()
    txn_commit(world, 5)
    end(world, producer_id=8, committed=True)
    assert fetch(world) == (-1, NONE)


def test_transactions_of_two_producers_in_one_group_end_apart() -> None:
    world = GroupWorld()
    txn_commit(world, 5, producer_id=7)
    txn_commit(world, 6, producer_id=8, name="u")
    end(world, producer_id=7, committed=True)
    assert world.runtime.shard_for("g").offsets.has_open_transactions("g")
    end(world, producer_id=8, committed=True)
    assert fetch_all(world) == {("t", 0): 5, ("u", 0): 6}


def test_a_pending_commit_survives_a_restart() -> None:
    world = GroupWorld()
    txn_commit(world, 5)
    again = world.restarted()
    assert fetch(again, require_stable=True) == (-1, UnstableOffsetCommitError.code)
    end(again, committed=True)
    assert fetch(again) == (5, NONE)


@pytest.mark.parametrize(
    ("fields", "error_code"),
    [
        ({}, NONE),
        ({"member_id": "m", "generation_id": 1}, UnknownMemberIdError.code),
        ({"generation_id": 9}, UnknownMemberIdError.code),
    ],
)
def test_a_transactional_commit_to_a_group_with_members_checks_the_member(
    fields: dict[str, Any], error_code: int
) -> None:
    world = GroupWorld()
    world.stable(1)
    assert txn_commit(world, 5, **fields) == error_code


def test_a_transactional_commit_with_a_generation_to_an_unknown_group_is_refused() -> None:
    assert txn_commit(GroupWorld(), 5, generation_id=1) == IllegalGenerationError.code


# -- OffsetDelete and DeleteGroups ----------------------------------------------------------------------------------


def delete(world: GroupWorld, topic: str = "t") -> int:
    partitions = [OffsetDeleteRequestPartition(partition_index=0), OffsetDeleteRequestPartition(partition_index=1)]
    request = OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name=topic, partitions=partitions)])
    return world.coordinator.delete_offsets(request).result().topics[0].partitions[0].error_code


def test_offsets_are_deleted_and_stay_so() -> None:
    world = GroupWorld()
    commit(world, 5)
    assert delete(world) == NONE
    assert fetch(world.restarted()) == (-1, NONE)


def test_a_pending_offset_is_deleted_too() -> None:
    world = GroupWorld()
    txn_commit(world, 5)
    assert delete(world) == NONE
    end(world, committed=True)
    assert fetch(world) == (-1, NONE)


def test_offsets_a_live_group_reads_stay() -> None:
    world = GroupWorld()
    world.stable(1, protocols={"range": SUBSCRIBED_TO_T})
    assert delete(world, "t") == GroupSubscribedToTopicError.code
    assert delete(world, "u") == NONE


def test_wrong_deletions_of_offsets_are_refused() -> None:
    world = GroupWorld()
    with pytest.raises(GroupIdNotFoundError):
        delete(world)
    commit(world, 5)
    assert delete(world, "none") == UnknownTopicOrPartitionError.code
    other = GroupWorld()
    other.stable(1, protocol_type="connect")
    with pytest.raises(NonEmptyGroupError):
        delete(other)


@pytest.mark.parametrize("committed", [True, False])
def test_nothing_remains_of_a_pending_commit_whose_group_was_deleted(committed: bool) -> None:
    """A fetch of all offsets named its topic without partitions."""
    world = GroupWorld()
    txn_commit(world, 9)
    assert response_of(world.coordinator.delete_group("g")).error_code == NONE
    offsets = world.runtime.shard_for("g").offsets
    assert not offsets.has_open_transactions("g")
    end(world, committed=committed)
    assert offsets.of_group("g") == {}
    assert offsets.index.groups_of("t") == []
    txn_commit(world, 10)
    assert offsets.has_open_transactions("g")


def test_deleting_a_group_deletes_its_offsets_and_pending_ones() -> None:
    world = GroupWorld()
    commit(world, 5)
    txn_commit(world, 6, name="u")
    assert response_of(world.coordinator.delete_group("g")).error_code == NONE
    end(world, committed=True)
    assert response_of(world.coordinator.delete_group("g")).error_code == GroupIdNotFoundError.code
    again = world.restarted()
    assert fetch_all(again) == {}
    assert again.group() is None


def test_groups_with_members_are_not_deleted() -> None:
    world = GroupWorld()
    world.stable(1)
    assert response_of(world.coordinator.delete_group("g")).error_code == NonEmptyGroupError.code
    assert response_of(world.coordinator.delete_group("")).error_code == GroupIdNotFoundError.code


# -- expiry ---------------------------------------------------------------------------------------------------------


def test_offsets_of_a_simple_group_expire_after_their_commit() -> None:
    world = GroupWorld(offsets_retention_minutes=24 * 60)
    commit(world, 5)
    world.advance(DAY_MS - 1_000_000)
    assert fetch(world) == (5, NONE)
    world.advance(2_000_000)
    assert fetch(world) == (-1, NONE)
    assert world.group() is None
    assert world.restarted().group() is None


def test_offsets_of_an_empty_group_expire_after_it_became_empty() -> None:
    world = GroupWorld(offsets_retention_minutes=24 * 60)
    (leader,) = world.stable(1, session_timeout_ms=1_800_000)
    commit(world, 5, member_id=leader, generation_id_or_member_epoch=1)
    world.advance(1_900_000)
    world.advance(DAY_MS - 1_000_000)
    assert fetch(world) == (5, NONE)
    world.advance(2_000_000)
    assert fetch(world) == (-1, NONE)


def test_only_unsubscribed_topics_expire_in_a_live_group() -> None:
    world = GroupWorld(offsets_retention_minutes=10)
    (leader,) = world.stable(1, session_timeout_ms=1_800_000, protocols={"range": SUBSCRIBED_TO_T})
    for name in ("t", "u"):
        commit(world, 5, name=name, member_id=leader, generation_id_or_member_epoch=1)
    world.advance(1_300_000)
    assert fetch_all(world) == {("t", 0): 5}


def test_the_old_retention_time_of_a_commit_counts() -> None:
    world = GroupWorld()
    commit(world, 5, version=2, retention_time_ms=1_000)
    world.advance(600_000)
    assert fetch(world) == (-1, NONE)


def test_pending_offsets_keep_the_group() -> None:
    world = GroupWorld(offsets_retention_minutes=10)
    commit(world, 5)
    txn_commit(world, 6)
    world.advance(3_000_000)
    assert fetch(world) == (5, NONE)
    end(world, committed=False)
    world.advance(3_000_000)
    assert world.group() is None


def test_a_group_whose_join_was_never_completed_is_removed() -> None:
    world = GroupWorld()
    world.join()
    world.advance(5_000)
    assert world.group() is not None
    world.advance(700_000)
    assert world.group() is None


def test_a_failed_expiry_is_tried_again() -> None:
    world = GroupWorld(offsets_retention_minutes=10)
    commit(world, 5)
    world.log.failure = KafkaStorageError()
    world.advance(1_300_000)
    assert fetch(world) == (5, NONE)
    world.log.failure = None
    world.advance(600_000)
    assert fetch(world) == (-1, NONE)


def test_a_long_expiry_goes_in_parts_and_takes_no_commit_that_comes_between() -> None:
    world = GroupWorld(MemoryTopicLog(partitions=1), offsets_retention_minutes=24 * 60)
    ticks = itertools.count()
    world.runtime.steps.clock = lambda: float(next(ticks))  # a slice is a step or two
    groups = [f"g{number}" for number in range(500)]
    for group_id in groups:
        commit(world, 5, group_id=group_id)
    for name in ("t", "u", "v"):
        commit(world, 5, group_id="wide", name=name)
    world.time.advance(2 * DAY_MS)
    before = len(world.log.batches[0])
    for deadline, _, callback in list(world.loop.later):
        if deadline <= world.time.monotonic_ms():
            callback()
    turns, kept = 0, set[str]()
    while world.loop.soon:
        world.loop.soon.pop(0)()
        turns += 1
        late = groups[-turns]
        if turns < 4 and fetch(world, group_id=late) == (5, NONE):
            commit(world, 6, group_id=late)
            kept.add(late)
    assert turns > 3, "in steps"
    assert kept
    sizes = [RecordBatch(bytearray(batch)).record_count for batch in world.log.batches[0][before:]]
    assert max(sizes) <= 2 * EXPIRY_PART + 2
    assert {group_id for group_id in groups if world.group(group_id) is not None} == kept
    assert all(fetch(world, group_id=group_id) == (6, NONE) for group_id in kept)
    assert world.group("wide") is None


@pytest.mark.parametrize("topics", [1, 3])
def test_the_offsets_of_one_large_group_expire_in_parts(topics: int) -> None:
    world = GroupWorld(MemoryTopicLog(partitions=1), offsets_retention_minutes=24 * 60)
    commit(world, 5, group_id="wide")
    shard = world.runtime.shard_for("wide")
    records = [
        CoordinatorRecord(
            OffsetCommitKey(group="wide", topic=f"t{topic}", partition=partition),
            OffsetCommitValue(offset=1, leader_epoch=-1, metadata="", commit_timestamp=1, expire_timestamp=-1),
        )
        for topic in range(topics)
        for partition in range(3 * EXPIRY_PART)
    ]
    world.runtime.write(0, shard, CoordinatorResult(None, records))
    before = len(world.log.batches[0])
    world.advance(2 * DAY_MS)
    sizes = [RecordBatch(bytearray(batch)).record_count for batch in world.log.batches[0][before:]]
    assert len(sizes) >= 3 * topics
    assert max(sizes) <= 2 * EXPIRY_PART + 2
    assert world.group("wide") is None
    assert world.restarted().group("wide") is None


def test_tombstones_are_records_without_value() -> None:
    world = GroupWorld()
    commit(world, 5)
    delete(world)
    record = world.log.records()[-1]
    assert isinstance(record.key, OffsetCommitKey)
    assert record.value is None
