"""Replay of the records of ``__consumer_offsets`` about a whole group: type 2 for classic, 3 for consumer.

The other records of consumer groups are replayed by ``consumer.records``, all records of share and streams groups by
``share.records`` and ``streams.records``. A group is added by its first record that is no tombstone, of any type.

A group changes its protocol by a batch with the tombstone of one kind and the records of the other. Loop thread only.
"""

from __future__ import annotations

from tidelog.broker.coordinator.group.classic.group import EMPTY, STABLE, ClassicGroup, ClassicMember
from tidelog.broker.coordinator.group.consumer.group import ConsumerGroup
from tidelog.broker.coordinator.group.share.group import ShareGroup
from tidelog.broker.coordinator.group.streams.group import StreamsGroup
from tidelog.protocol.coordinator_records.group import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
)

Group = ClassicGroup | ConsumerGroup | ShareGroup | StreamsGroup


def replay_classic_group(groups: dict[str, Group], key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
    """Add or replace a classic group, or remove it for a tombstone (GroupMetadata)."""
    if value is not None:
        groups[key.group] = classic_group_of(key.group, value)
    elif isinstance(groups.get(key.group), ClassicGroup):
        del groups[key.group]


def replay_consumer_group(
    groups: dict[str, Group], key: ConsumerGroupMetadataKey, value: ConsumerGroupMetadataValue | None
) -> None:
    """Set the epoch of a consumer group, or remove the group for a tombstone (ConsumerGroupMetadata)."""
    if value is None:
        if isinstance(groups.get(key.group_id), ConsumerGroup):
            del groups[key.group_id]
        return
    group = find_consumer_group(groups, key.group_id, create=True)
    assert group is not None
    group.epoch, group.metadata_hash = value.epoch, value.metadata_hash


def find_consumer_group(groups: dict[str, Group], group_id: str, *, create: bool) -> ConsumerGroup | None:
    """Find the consumer group with this id. With ``create``, a new one is added if there is none, in place of a group
    of another kind."""
    group = groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return group
    if not create:
        return None
    made = groups[group_id] = ConsumerGroup(group_id)
    return made


def classic_group_of(group_id: str, value: GroupMetadataValue) -> ClassicGroup:
    """Build the group of a record: stable with the record's members, or empty."""
    group = ClassicGroup(group_id, now_ms=0, state=STABLE if value.members else EMPTY)
    group.state_timestamp_ms = None if value.current_state_timestamp < 0 else value.current_state_timestamp
    group.generation_id = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    for member in value.members:
        group.add(
            ClassicMember(
                member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=(
                    member.session_timeout if member.rebalance_timeout < 0 else member.rebalance_timeout
                ),
                session_timeout_ms=member.session_timeout,
                protocols={value.protocol or "": bytes(member.subscription)},
                assignment=bytes(member.assignment),
            )
        )
    group.leader_id = value.leader
    group.subscribed_topics = group.compute_subscribed_topics()
    return group
