"""Conversion between a share group and its records in ``__consumer_offsets`` (types 10 to 15)."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from tidelog.broker.coordinator.group.assignors import Assignment
from tidelog.broker.coordinator.group.modern_group import assignment_of, iterate_sorted
from tidelog.broker.coordinator.group.share.group import (
    NEW_SHARE_MEMBER,
    DeletingTopics,
    InitializedTopic,
    InitializedTopics,
    ShareAssignment,
    ShareGroup,
    ShareMember,
    ShareSubscription,
)
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord
from tidelog.protocol.coordinator_records.share import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    TopicInfo,
    TopicPartition,
    TopicPartitions,
    TopicPartitionsInfo,
)

Record = CoordinatorRecord


def share_epoch_record(group_id: str, epoch: int, metadata_hash: int) -> Record:
    return Record(
        ShareGroupMetadataKey(group_id=group_id), ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    )


def share_member_record(group_id: str, member_id: str, subscription: ShareSubscription | None) -> Record:
    """Build the record of a member's subscription; None removes it."""
    value = None
    if subscription is not None:
        value = ShareGroupMemberMetadataValue(
            rack_id=subscription.rack_id,
            client_id=subscription.client_id,
            client_host=subscription.client_host,
            subscribed_topic_names=list(subscription.topic_names),
        )
    return Record(ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id), value)


def share_target_epoch_record(group_id: str, epoch: int, now_ms: int) -> Record:
    """Build the record of the epoch for which the target was computed, and when this was done (KIP-1263)."""
    value = ShareGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=now_ms)
    return Record(ShareGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def share_target_record(group_id: str, member_id: str, target: Assignment | None) -> Record:
    """Build the record of a member's target assignment; None removes it."""
    value = None
    if target is not None:
        partitions = [
            TopicPartition(topic_id=topic_id, partitions=indexes) for topic_id, indexes in iterate_sorted(target)
        ]
        value = ShareGroupTargetAssignmentMemberValue(topic_partitions=partitions)
    return Record(ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value)


def share_current_record(group_id: str, member_id: str, current: ShareAssignment | None) -> Record:
    """Build the record of a member's current assignment; None removes it."""
    value = None
    if current is not None:
        value = ShareGroupCurrentMemberAssignmentValue(
            member_epoch=current.epoch,
            previous_member_epoch=current.previous_epoch,
            assigned_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in iterate_sorted(current.assigned)
            ],
        )
    return Record(ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), value)


def initialized_record(group_id: str, initialized: InitializedTopics, deleting: DeletingTopics) -> Record:
    """Build the record of the partitions that have a state, and of the topics whose states are being deleted."""
    topics = [
        TopicPartitionsInfo(topic_id=topic_id, topic_name=topic.name, partitions=sorted(topic.partitions))
        for topic_id, topic in initialized.items()
    ]
    value = ShareGroupStatePartitionMetadataValue(
        initialized_topics=topics,
        deleting_topics=[TopicInfo(topic_id=topic_id, topic_name=name) for topic_id, name in deleting.items()],
    )
    return Record(ShareGroupStatePartitionMetadataKey(group_id=group_id), value)


def share_member_tombstones(group_id: str, member_id: str) -> list[Record]:
    """Build the tombstones of all records of one member."""
    return [
        share_current_record(group_id, member_id, None),
        share_target_record(group_id, member_id, None),
        share_member_record(group_id, member_id, None),
    ]


def share_group_tombstones(group: ShareGroup) -> list[Record]:
    """Build the tombstones of all records of a group."""
    records = [record for member_id in group.members for record in share_member_tombstones(group.group_id, member_id)]
    return [
        *records,
        Record(ShareGroupTargetAssignmentMetadataKey(group_id=group.group_id), None),
        Record(ShareGroupStatePartitionMetadataKey(group_id=group.group_id), None),
        Record(ShareGroupMetadataKey(group_id=group.group_id), None),
    ]


def replay_share(groups: MutableMapping[str, Any], key: Any, value: Any) -> None:
    """Apply one record of types 10 to 15. The first record creates the group, the tombstone of type 11 removes it."""
    group = groups.get(key.group_id)
    if key.__class__ is ShareGroupMetadataKey and value is None:
        if isinstance(group, ShareGroup):
            del groups[key.group_id]
        return
    if not isinstance(group, ShareGroup):
        if value is None:
            return
        group = groups[key.group_id] = ShareGroup(key.group_id)
    _REPLAYS[key.__class__](group, key, value)


def _replay_epoch(group: ShareGroup, _key: Any, value: ShareGroupMetadataValue) -> None:
    group.epoch, group.metadata_hash = value.epoch, value.metadata_hash


def _replay_member(group: ShareGroup, key: Any, value: ShareGroupMemberMetadataValue | None) -> None:
    if value is None:
        group.members.pop(key.member_id, None)
        return
    subscription = ShareSubscription(
        value.rack_id, value.client_id, value.client_host, tuple(value.subscribed_topic_names)
    )
    member = group.members.get(key.member_id)
    if member is None:
        group.members[key.member_id] = ShareMember(key.member_id, subscription)
    else:
        member.subscription = subscription


def _replay_target_epoch(group: ShareGroup, _key: Any, value: ShareGroupTargetAssignmentMetadataValue | None) -> None:
    group.assignment_epoch = 0 if value is None else value.assignment_epoch
    group.assigned_at_ms = 0 if value is None else value.assignment_timestamp


def _replay_target(group: ShareGroup, key: Any, value: ShareGroupTargetAssignmentMemberValue | None) -> None:
    group.put_target(key.member_id, None if value is None else value.topic_partitions)


def _replay_current(group: ShareGroup, key: Any, value: ShareGroupCurrentMemberAssignmentValue | None) -> None:
    member = group.members.get(key.member_id)
    if value is None:
        if member is not None:
            member.current = NEW_SHARE_MEMBER
        return
    if member is None:  # compaction has removed the record of an earlier subscription; that of the last one follows
        member = group.members[key.member_id] = ShareMember(key.member_id, ShareSubscription())
    assigned = assignment_of(value.assigned_partitions)
    member.current = ShareAssignment(value.member_epoch, value.previous_member_epoch, assigned)


def _replay_initialized(group: ShareGroup, _key: Any, value: ShareGroupStatePartitionMetadataValue | None) -> None:
    topics = [] if value is None else value.initialized_topics
    group.initialized = {
        bytes(topic.topic_id): InitializedTopic(topic.topic_name, frozenset(topic.partitions)) for topic in topics
    }
    deleting = [] if value is None else value.deleting_topics
    group.deleting = {bytes(topic.topic_id): topic.topic_name for topic in deleting}


_REPLAYS: dict[type, Any] = {
    ShareGroupMetadataKey: _replay_epoch,
    ShareGroupMemberMetadataKey: _replay_member,
    ShareGroupTargetAssignmentMetadataKey: _replay_target_epoch,
    ShareGroupTargetAssignmentMemberKey: _replay_target,
    ShareGroupCurrentMemberAssignmentKey: _replay_current,
    ShareGroupStatePartitionMetadataKey: _replay_initialized,
}
