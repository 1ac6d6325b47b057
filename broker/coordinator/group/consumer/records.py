"""Conversion between a consumer group and its records in ``__consumer_offsets`` (types 3 to 8 and 16)."""

from __future__ import annotations

from typing import Any

from tidelog.broker.coordinator.group.assignors import Assignment
from tidelog.broker.coordinator.group.consumer.group import (
    ClassicSpec,
    ConsumerGroup,
    CurrentAssignment,
    MemberState,
    ResolvedRegex,
    Subscription,
)
from tidelog.broker.coordinator.group.modern_group import assignment_of, iterate_sorted
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord
from tidelog.protocol.coordinator_records.group import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartition,
    TopicPartitions,
)

Record = CoordinatorRecord
_STATES = {state.value for state in MemberState}


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> Record:
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return Record(ConsumerGroupMetadataKey(group_id=group_id), value)


def member_record(group_id: str, member_id: str, subscription: Subscription | None) -> Record:
    """Build the record of a member's subscription; None removes it."""
    value = None
    if subscription is not None:
        value = ConsumerGroupMemberMetadataValue(
            instance_id=subscription.instance_id,
            rack_id=subscription.rack_id,
            client_id=subscription.client_id,
            client_host=subscription.client_host,
            subscribed_topic_names=list(subscription.topic_names),
            subscribed_topic_regex=subscription.topic_regex,
            rebalance_timeout_ms=subscription.rebalance_timeout_ms,
            server_assignor=subscription.server_assignor,
            classic_member_metadata=_encode_spec(subscription.classic),
        )
    return Record(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), value)


def _encode_spec(spec: ClassicSpec | None) -> ClassicMemberMetadata | None:
    if spec is None:
        return None
    protocols = [ClassicProtocol(name=name, metadata=metadata) for name, metadata in spec.protocols]
    return ClassicMemberMetadata(session_timeout_ms=spec.session_timeout_ms, supported_protocols=protocols)


def _read_spec(value: ClassicMemberMetadata | None) -> ClassicSpec | None:
    if value is None:
        return None
    return ClassicSpec(value.session_timeout_ms, tuple((p.name, bytes(p.metadata)) for p in value.supported_protocols))


def target_epoch_record(group_id: str, epoch: int, now_ms: int) -> Record:
    """Build the record of the epoch for which the target was computed, and when this was done (KIP-1263)."""
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=now_ms)
    return Record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def target_record(group_id: str, member_id: str, target: Assignment | None) -> Record:
    """Build the record of a member's target assignment; None removes it."""
    value = None
    if target is not None:
        partitions = [
            TopicPartition(topic_id=topic_id, partitions=indexes) for topic_id, indexes in iterate_sorted(target)
        ]
        value = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=partitions)
    return Record(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value)


def current_record(group_id: str, member_id: str, current: CurrentAssignment | None) -> Record:
    """Build the record of a member's current assignment; None removes it."""
    value = None
    if current is not None:
        value = ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=current.epoch,
            previous_member_epoch=current.previous_epoch,
            state=current.state.value,
            assigned_partitions=_encode_partitions(current, current.assigned),
            partitions_pending_revocation=_encode_partitions(current, current.pending_revocation),
        )
    return Record(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), value)


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex | None) -> Record:
    """Build the record of a pattern's matched topics; None removes it."""
    value = None
    if resolved is not None:
        value = ConsumerGroupRegularExpressionValue(
            topics=list(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
        )
    return Record(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), value)


def member_tombstones(group_id: str, member_id: str) -> list[Record]:
    """Build the tombstones of all records of one member, in Kafka's order."""
    return [
        current_record(group_id, member_id, None),
        target_record(group_id, member_id, None),
        member_record(group_id, member_id, None),
    ]


def consumer_group_tombstones(group: ConsumerGroup) -> list[Record]:
    """Build the tombstones of all records of a group."""
    records = [record for member_id in group.members for record in member_tombstones(group.group_id, member_id)]
    records += [regex_record(group.group_id, regex, None) for regex in group.regexes]
    records += [
        Record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group.group_id), None),
        Record(ConsumerGroupPartitionMetadataKey(group_id=group.group_id), None),
        Record(ConsumerGroupMetadataKey(group_id=group.group_id), None),
    ]
    return records


def replay_into(group: ConsumerGroup, key: Any, value: Any) -> None:
    """Apply one record of types 5 to 8 and 16; type 4 is ignored.

    The caller applies type 3, whose tombstone removes the group, and creates the group for the first record of any
    type. After compaction the records of a group, and of a member, come in any order.
    """
    kind = key.__class__
    if kind is ConsumerGroupMemberMetadataKey:
        if value is None:
            group.remove_member(key.member_id)
        else:
            group.put_member(key.member_id, subscription_of(value))
    elif kind is ConsumerGroupTargetAssignmentMetadataKey:
        group.assignment_epoch = 0 if value is None else value.assignment_epoch
        group.assigned_at_ms = 0 if value is None else value.assignment_timestamp
    elif kind is ConsumerGroupTargetAssignmentMemberKey:
        group.put_target(key.member_id, None if value is None else value.topic_partitions)
    elif kind is ConsumerGroupCurrentMemberAssignmentKey:
        group.put_current(key.member_id, None if value is None else current_of(value))
    elif kind is ConsumerGroupRegularExpressionKey:
        resolved = None if value is None else ResolvedRegex(tuple(value.topics), value.version, value.timestamp)
        group.put_regex(key.regular_expression, resolved)


def subscription_of(value: ConsumerGroupMemberMetadataValue) -> Subscription:
    return Subscription(
        value.instance_id,
        value.rack_id,
        value.client_id,
        value.client_host,
        tuple(value.subscribed_topic_names),
        value.subscribed_topic_regex,
        value.rebalance_timeout_ms,
        value.server_assignor,
        _read_spec(value.classic_member_metadata),
    )


def current_of(value: ConsumerGroupCurrentMemberAssignmentValue) -> CurrentAssignment:
    """Read a member's current assignment. A member in a state of a newer Kafka gets epoch 0: its next heartbeat is
    fenced, so that it rejoins, and no other member gets its partitions before that."""
    assigned, pending = assignment_of(value.assigned_partitions), assignment_of(value.partitions_pending_revocation)
    if value.state not in _STATES:
        return CurrentAssignment(assigned=assigned, pending_revocation=pending)
    return CurrentAssignment(
        value.member_epoch,
        value.previous_member_epoch,
        MemberState(value.state),
        assigned,
        pending,
        _read_epochs(value),
    )


def _read_epochs(value: ConsumerGroupCurrentMemberAssignmentValue) -> dict[tuple[bytes, int], int]:
    """Read the epochs in which partitions were assigned. A record from before KIP-1251 has none: each partition gets
    the member's epoch.
    """
    epochs: dict[tuple[bytes, int], int] = {}
    for topic in (*value.assigned_partitions, *value.partitions_pending_revocation):
        stored = topic.assignment_epochs
        if stored is None or len(stored) != len(topic.partitions):
            stored = [max(0, value.member_epoch)] * len(topic.partitions)
        topic_id = bytes(topic.topic_id)
        epochs.update(((topic_id, index), epoch) for index, epoch in zip(topic.partitions, stored, strict=True))
    return epochs


def _encode_partitions(current: CurrentAssignment, assignment: Assignment) -> list[TopicPartitions]:
    found = []
    for topic_id, partitions in iterate_sorted(assignment):
        epochs = [current.epochs.get((topic_id, index), current.epoch) for index in partitions]
        found.append(TopicPartitions(topic_id=topic_id, partitions=partitions, assignment_epochs=epochs))
    return found
