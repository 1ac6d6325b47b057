"""Control records of a KRaft log: a new leader, begin and end of a snapshot, protocol version and voters.

Source: clients ``common/message/{LeaderChangeMessage,SnapshotHeaderRecord,SnapshotFooterRecord,KRaftVersionRecord,
VotersRecord}.json`` and ControlRecordType of Kafka 4.3; KIP-595, KIP-630, KIP-853.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from tidelog.protocol.errors import CorruptMessageError, InvalidRequestError
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch, control_record_type
from tidelog.protocol.schema.fields import Message, Struct, array, int16, int32, int64, string, struct_of, uint16, uuid
from tidelog.protocol.types import INT16

_KEY = struct.Struct(">hh")
_KEY_VERSION = 0


class QuorumVoter(Struct):
    voter_id: int = int32()
    voter_directory_id: bytes = uuid("1+")


class LeaderChangeMessage(Message, versions="0-1", flexible="0+"):
    version: int = int16()
    leader_id: int = int32()
    voters: list[QuorumVoter] = array(QuorumVoter)
    granting_voters: list[QuorumVoter] = array(QuorumVoter)


class SnapshotHeaderRecord(Message, versions="0", flexible="0+"):
    version: int = int16()
    last_contained_log_timestamp: int = int64()


class SnapshotFooterRecord(Message, versions="0", flexible="0+"):
    version: int = int16()


class KRaftVersionRecord(Message, versions="0", flexible="0+"):
    version: int = int16()
    k_raft_version: int = int16()


class VoterEndpoint(Struct):
    name: str = string()
    host: str = string()
    port: int = uint16()


class VoterVersions(Struct):
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class RegisteredVoter(Struct):
    voter_id: int = int32()
    voter_directory_id: bytes = uuid()
    endpoints: list[VoterEndpoint] = array(VoterEndpoint)
    k_raft_version_feature: VoterVersions = struct_of(VoterVersions)


class VotersRecord(Message, versions="0", flexible="0+"):
    version: int = int16()
    voters: list[RegisteredVoter] = array(RegisteredVoter)


ControlMessage = LeaderChangeMessage | SnapshotHeaderRecord | SnapshotFooterRecord | KRaftVersionRecord | VotersRecord
CONTROL_TYPES: dict[type[ControlMessage], int] = {
    LeaderChangeMessage: 2,
    SnapshotHeaderRecord: 3,
    SnapshotFooterRecord: 4,
    KRaftVersionRecord: 5,
    VotersRecord: 6,
}
"""Schema -> type in the record's key."""
_SCHEMAS = {number: schema for schema, number in CONTROL_TYPES.items()}


class BatchStart(NamedTuple):
    """Offset, leader epoch and append time (ms) that a batch of the quorum's log begins with."""

    base_offset: int
    epoch: int
    timestamp_ms: int


def build_control_batch(message: ControlMessage, at: BatchStart, more: Iterable[ControlMessage] = ()) -> bytearray:
    """Return a control batch of ``message`` and ``more``, each encoded in the version that its first field names."""
    listed = [
        Record(at.base_offset + index, at.timestamp_ms, _key_of(one), one.encode(one.version))
        for index, one in enumerate([message, *more])
    ]
    return build_batch(listed, BatchOptions(is_control=True, partition_leader_epoch=at.epoch))


def _key_of(message: ControlMessage) -> bytes:
    return _KEY.pack(_KEY_VERSION, CONTROL_TYPES[type(message)])


def decode_control_record(record: Record) -> ControlMessage | None:
    """Return the message of a control record, None for a type that is not declared here.

    Raises InvalidRecordError (malformed key), CorruptMessageError (malformed value), UnsupportedVersionError (a version
    of a newer Kafka).
    """
    schema = _SCHEMAS.get(control_record_type(record.key))
    if schema is None:
        return None
    if record.value is None or len(record.value) < INT16.size:
        raise CorruptMessageError(f"the control record at offset {record.offset} has no version")
    try:
        return schema.decode(record.value, INT16.unpack_from(record.value)[0])
    except InvalidRequestError as error:
        raise CorruptMessageError(f"the control record at offset {record.offset}: {error}") from None
