"""Records of ``__consumer_offsets``: Kafka's own key and value schemas, and their encoding.

    key   = int16 record type, then the key's fields (never flexible)
    value = int16 version, then the value's fields; absent for a tombstone

Record type 0 is the key of offset commits before Kafka 0.9. It has the fields of type 1 and is read as type 1.

Values are written in versions that Kafka 3.x and 4.x can read, so that Kafka and this broker can open each other's
directories. These are GroupMetadataValue 3, OffsetCommitValue 3 (1 when an old client gave a retention time), and 0 for
the others.

A record whose type is not declared here comes from a newer Kafka: loading skips it, and it stays in the log.

Source: group-coordinator ``common/message/*.json`` of Kafka 4.3; KIP-848; KIP-915.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.runtime.result import CoordinatorRecord
from tidelog.protocol.coordinator_records.group import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tidelog.protocol.coordinator_records.share import SHARE_RECORD_TYPES
from tidelog.protocol.coordinator_records.streams import STREAMS_RECORD_TYPES
from tidelog.protocol.schema.fields import Message

if TYPE_CHECKING:
    from tidelog.broker.coordinator.group.classic.group import ClassicGroup

# Key class -> version in which its value is written.
WRITTEN_VERSIONS: dict[type[Message], int] = {
    OffsetCommitKey: 3,
    GroupMetadataKey: 3,
    ConsumerGroupMetadataKey: 0,
    ConsumerGroupPartitionMetadataKey: 0,
    ConsumerGroupMemberMetadataKey: 0,
    ConsumerGroupTargetAssignmentMetadataKey: 0,
    ConsumerGroupTargetAssignmentMemberKey: 0,
    ConsumerGroupCurrentMemberAssignmentKey: 0,
    ConsumerGroupRegularExpressionKey: 0,
    **{key: 0 for key, _ in SHARE_RECORD_TYPES.values()},
    **{key: 0 for key, _ in STREAMS_RECORD_TYPES.values()},
}

# Record type -> key class, value class.
RECORD_TYPES: dict[int, tuple[type[Message], type[Message]]] = {
    0: (OffsetCommitKey, OffsetCommitValue),
    1: (OffsetCommitKey, OffsetCommitValue),
    2: (GroupMetadataKey, GroupMetadataValue),
    3: (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    4: (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
    5: (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    6: (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    7: (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    8: (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    16: (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
    **SHARE_RECORD_TYPES,
    **STREAMS_RECORD_TYPES,
}


class GroupRecordSerde:
    """Encoder and decoder of the records of ``__consumer_offsets``."""

    @staticmethod
    def encode(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        """Encode key and value; the value is None for a tombstone."""
        key, value = record.key, record.value
        encoded_key = _TYPE_PREFIXES[key.__class__] + key.encode(0)
        if value is None:
            return encoded_key, None
        version = WRITTEN_VERSIONS[key.__class__]
        if value.__class__ is OffsetCommitValue and value.expire_timestamp >= 0:
            version = 1  # the only version with the field expire_timestamp
        return encoded_key, value.encode_prefixed(version)

    @staticmethod
    def decode(key: Any, value: Any) -> CoordinatorRecord | None:
        """Decode a record; None for a type that is not declared here. Raises InvalidRequestError,
        UnsupportedVersionError."""
        types = RECORD_TYPES.get(int.from_bytes(key[:2], "big", signed=True))
        if types is None:
            return None
        key_class, value_class = types
        decoded = None if value is None else value_class.decode_prefixed(memoryview(value))
        return CoordinatorRecord(key_class.decode(memoryview(key)[2:], 0), decoded)


_TYPE_PREFIXES = {key: key.API_KEY.to_bytes(2, "big") for key in WRITTEN_VERSIONS}


def group_metadata_record(group: ClassicGroup, assignments: Mapping[str, bytes] | None = None) -> CoordinatorRecord:
    """Build the record of a classic group. ``assignments``, by member id, replace the members' own."""
    protocol = group.protocol_name or ""
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.protocols.get(protocol, b""),
            assignment=member.assignment if assignments is None else assignments.get(member.member_id, b""),
        )
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=-1 if group.state_timestamp_ms is None else group.state_timestamp_ms,
        members=members,
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)


def empty_group_record(group: ClassicGroup) -> CoordinatorRecord:
    """Build the record of a new group: generation 0 and no members, even if some are waiting to join."""
    timestamp = -1 if group.state_timestamp_ms is None else group.state_timestamp_ms
    value = GroupMetadataValue(protocol=None, leader=None, current_state_timestamp=timestamp)
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)


def group_tombstone(group_id: str) -> CoordinatorRecord:
    """Build the tombstone that removes a classic group."""
    return CoordinatorRecord(GroupMetadataKey(group=group_id), None)


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    """Build the tombstone that removes a committed offset, and pending commits of it in open transactions."""
    return CoordinatorRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None)
