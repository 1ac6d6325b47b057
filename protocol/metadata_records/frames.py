"""Frames around metadata records: frame version 1, record type, version (unsigned varints), then the message.

Source: AbstractApiMessageSerde and MetadataRecordSerde of Kafka 4.3, KIP-631.
"""

from __future__ import annotations

from tidelog.protocol.errors import CorruptMessageError, InvalidRequestError, UnsupportedVersionError
from tidelog.protocol.metadata_records.records import RECORD_TYPES
from tidelog.protocol.schema.fields import Message
from tidelog.protocol.types import Buffer, MalformedError, read_unsigned_varint, unsigned_varint

FRAME_VERSION = 1
_FRAME = bytes((FRAME_VERSION,))


def encode_metadata_record(record: Message, version: int) -> bytes:
    """Return the value of a record in the metadata log. Raises EncodeError, UnsupportedVersionError."""
    frame = unsigned_varint(FRAME_VERSION) + unsigned_varint(record.API_KEY) + unsigned_varint(version)
    return frame + record.encode(version)


def decode_metadata_record(value: Buffer) -> Message:
    """Return the record in a value of the metadata log.

    Raises UnsupportedVersionError (a record type or version of a newer Kafka), CorruptMessageError (malformed).
    """
    if value[:1] == _FRAME and len(value) > 2 and value[1] < 0x80 and value[2] < 0x80:
        return _decode(value, value[1], value[2], 3)
    try:
        frame_version, position = read_unsigned_varint(value, 0)
        record_type, position = read_unsigned_varint(value, position)
        version, position = read_unsigned_varint(value, position)
    except (IndexError, MalformedError) as error:
        raise CorruptMessageError(f"a metadata record's frame is malformed: {error}") from None
    if frame_version != FRAME_VERSION:
        raise UnsupportedVersionError(f"a metadata record has frame version {frame_version}; {FRAME_VERSION} is known")
    return _decode(value, record_type, version, position)


def _decode(value: Buffer, record_type: int, version: int, position: int) -> Message:
    schema = RECORD_TYPES.get(record_type)
    if schema is None or not schema.VERSIONS.has(version):
        raise UnsupportedVersionError(
            f"metadata record type {record_type} version {version} is not known: the cluster's metadata.version is "
            "newer than this release"
        )
    try:
        message, end = schema.decode_from(value, position, version)
    except InvalidRequestError as error:
        raise CorruptMessageError(str(error)) from None
    if end != len(value):
        raise CorruptMessageError(f"{schema.__name__} v{version}: {len(value) - end} bytes left over at {end}")
    return message
