"""Message sets, magic 0 and 1: the format of records on the wire and on disk before Kafka 0.11.

    message set = (offset 8 | size 4 | message)*                     no count in front; the last entry may be cut
    message v0  = crc32 4 | magic 1 (0) | attributes 1 | key (length 4, -1 = null) | value (length 4, -1 = null)
    message v1  = crc32 4 | magic 1 (1) | attributes 1 | timestamp 8 | key | value                           (KIP-32)
    attributes  = bits 0-2 codec (none, gzip, snappy, lz4), bit 3 timestamp type (v1; 1 = log append time)
    crc32       = IEEE CRC-32 over magic..value

A compressed message is a wrapper: its value, decompressed, is a message set of the same magic; one level deep. The
wrapper's offset is the absolute offset of its last inner message. Inner offsets are absolute in magic 0 and relative in
magic 1 (KIP-31): absolute = wrapper offset + (relative - relative of the last). A wrapper's timestamp is the largest
inner one, or the append time, which then applies to every inner message.

:class:`LegacyRecordBatch` is one entry, a message or a wrapper, with the properties of a magic 2 ``RecordBatch`` except
``last_offset_delta``; :class:`ByteBufferMessageSet` is an iterable over a whole buffer. Both are views over buffers;
any thread.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tidelog.protocol.errors import (
    CorruptMessageError,
    InvalidRecordError,
    MessageTooLargeError,
    UnsupportedCompressionTypeError,
)
from tidelog.protocol.record.compression import CompressionType, decompress
from tidelog.protocol.record.crc import crc32
from tidelog.protocol.record.message_writer import MessageWriter, segment_size_for
from tidelog.protocol.record.record_batch import (
    COMPRESSION_MASK,
    CREATE_TIME,
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_V0,
    MAGIC_V1,
    MIN_ENTRY_BYTES,
    NO_PARTITION_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    Buffer,
    Record,
)

V0_OVERHEAD = 14  # crc, magic, attributes, key length, value length
V1_OVERHEAD = 22  # and the timestamp

_ENTRY = struct.Struct(">qi")
_HEAD = struct.Struct(">IBb")
_HEAD_V1 = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_HEAD_OF_V0 = b"\x00\x00"
_HEAD_OF_V1 = struct.Struct(">Bbq")
_CRC_BYTES = 4
_CODEC_MAX = CompressionType.LZ4


class LegacyRecordBatch:
    """A view of one entry (message or wrapper) at ``position`` of ``buffer``, with a magic 2 batch's property names.

    The constructor checks only that the magic is 0 or 1, and that header and fields fill the entry. Raises
    CorruptMessageError otherwise.
    """

    __slots__ = (
        "_key",
        "_value",
        "attributes",
        "buffer",
        "checksum",
        "magic",
        "max_timestamp",
        "offset",
        "position",
        "size",
    )

    def __init__(self, buffer: Buffer, position: int = 0) -> None:
        if len(buffer) - position < LOG_OVERHEAD + V0_OVERHEAD:
            raise CorruptMessageError(f"{len(buffer) - position} bytes are too few for a message")
        self.buffer = buffer
        self.position = position
        self.offset: int
        self.size: int
        self.checksum: int
        self.magic: int
        self.attributes: int
        self.max_timestamp: int
        self.offset, self.size = _ENTRY.unpack_from(buffer, position)
        start = position + LOG_OVERHEAD
        self.checksum, self.magic, self.attributes = _HEAD.unpack_from(buffer, start)
        if self.magic > MAGIC_V1 or self.size < (V0_OVERHEAD if self.magic == MAGIC_V0 else V1_OVERHEAD):
            raise CorruptMessageError(f"Message at offset {self.offset} has magic {self.magic} and size {self.size}")
        end = start + self.size
        if end > len(buffer):
            raise CorruptMessageError(f"Message at offset {self.offset} of size {self.size} is cut")
        start += _HEAD.size
        self.max_timestamp = NO_TIMESTAMP
        if self.magic == MAGIC_V1:
            (self.max_timestamp,) = _HEAD_V1.unpack_from(buffer, start)
            start += _HEAD_V1.size
        self._key, start = self._field(start, end)
        self._value, start = self._field(start, end)
        if start != end:
            raise CorruptMessageError(f"Message at offset {self.offset}: {end - start} bytes remain after its value")

    def _field(self, position: int, end: int) -> tuple[slice | None, int]:
        if position + _LENGTH.size > end:
            raise CorruptMessageError(f"Message at offset {self.offset} ends within a field")
        (length,) = _LENGTH.unpack_from(self.buffer, position)
        position += _LENGTH.size
        if length < 0:
            return None, position
        if length > end - position:
            raise CorruptMessageError(
                f"Message at offset {self.offset} has a field of {length} bytes that does not fit"
            )
        return slice(position, position + length), position + length

    def __repr__(self) -> str:
        return f"LegacyRecordBatch(offset={self.offset}, magic={self.magic}, size={self.size_in_bytes})"

    partition_leader_epoch = NO_PARTITION_LEADER_EPOCH
    producer_id = NO_PRODUCER_ID
    producer_epoch = NO_PRODUCER_EPOCH
    base_sequence = NO_SEQUENCE
    last_sequence = NO_SEQUENCE
    is_transactional = False
    is_control = False
    delete_horizon_ms = None

    @property
    def base_offset(self) -> int:
        """The first inner message's offset; decompresses a wrapper. Raises what ``records`` raises."""
        return next(self.records()).offset if self.is_compressed else self.offset

    @property
    def last_offset(self) -> int:
        return self.offset

    @property
    def next_offset(self) -> int:
        return self.offset + 1

    @property
    def size_in_bytes(self) -> int:
        return self.size + LOG_OVERHEAD

    @property
    def compression_type(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_compressed(self) -> bool:
        return self.attributes & COMPRESSION_MASK != 0

    @property
    def timestamp_type(self) -> int:
        return LOG_APPEND_TIME if self.magic == MAGIC_V1 and self.attributes & TIMESTAMP_TYPE_MASK else CREATE_TIME

    @property
    def base_timestamp(self) -> int:
        return self.max_timestamp

    @property
    def record_count(self) -> int:
        """Number of messages in the set; decompresses a wrapper. Raises what ``records`` raises."""
        return sum(1 for _ in self.records()) if self.is_compressed else 1

    @property
    def key(self) -> bytes | None:
        return None if self._key is None else bytes(self.buffer[self._key])

    @property
    def value(self) -> bytes | None:
        return None if self._value is None else bytes(self.buffer[self._value])

    def view(self) -> memoryview:
        """Return the entry's bytes, without a copy."""
        return memoryview(self.buffer)[self.position : self.position + self.size_in_bytes]

    def is_valid(self) -> bool:
        """Return whether the checksum matches."""
        start = self.position + LOG_OVERHEAD
        covered = memoryview(self.buffer)[start + _CRC_BYTES : start + self.size]
        return crc32(covered) == self.checksum

    def ensure_valid(self) -> None:
        """Raise CorruptMessageError unless ``is_valid()``."""
        if not self.is_valid():
            raise CorruptMessageError(
                f"Message at offset {self.offset} is corrupt (stored crc = {self.checksum:#010x})"
            )

    def records(self, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES) -> Iterator[Record]:
        """Iterate over the message itself, or a wrapper's inner messages with absolute offsets and effective
        timestamps.

        Raises InvalidRecordError on a bad wrapper, UnsupportedCompressionTypeError, CorruptMessageError on a malformed
        inner message, MessageTooLargeError above the bound.
        """
        if not self.is_compressed:
            return iter((Record(self.offset, self.max_timestamp, self.key, self.value),))
        return self.effective_records(self.inner_messages(max_decompressed_bytes))

    def effective_records(self, inner: list[LegacyRecordBatch]) -> Iterator[Record]:
        """Yield the records of a wrapper's ``inner_messages`` with absolute offsets and effective timestamps."""
        base = 0
        if self.magic == MAGIC_V1 and self.offset != 0:  # some versions of librdkafka produce wrappers with offset 0
            base = self.offset - inner[-1].offset
        append_time = self.max_timestamp if self.timestamp_type == LOG_APPEND_TIME else None
        for message in inner:
            timestamp = message.max_timestamp if append_time is None else append_time
            yield Record(base + message.offset, timestamp, message.key, message.value)

    def inner_messages(
        self, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES, max_messages: int = sys.maxsize
    ) -> list[LegacyRecordBatch]:
        """Parse a wrapper's inner messages as they are stored, one at least; in magic 1 their offsets are relative.

        Raises InvalidRecordError, UnsupportedCompressionTypeError, CorruptMessageError; MessageTooLargeError above
        either bound.
        """
        if self.compression_type > _CODEC_MAX:
            raise UnsupportedCompressionTypeError(f"Magic {self.magic} does not know codec {self.compression_type}")
        if self._value is None:
            raise InvalidRecordError(f"Found invalid compressed record set with null value (magic = {self.magic})")
        content = memoryview(self.buffer)[self._value]
        inner_set = decompress(content, self.compression_type, max_decompressed_bytes, magic=self.magic)
        messages: list[LegacyRecordBatch] = []
        for message in ByteBufferMessageSet(inner_set).shallow_entries():
            if len(messages) == max_messages:
                raise MessageTooLargeError(f"A compressed message set holds more than {max_messages} messages")
            if message.magic != self.magic:
                raise InvalidRecordError(f"Inner message has magic {message.magic}, its wrapper {self.magic}")
            if message.is_compressed:
                raise InvalidRecordError("Inner message must not be compressed")
            messages.append(message)
        if not messages:
            raise InvalidRecordError("Found invalid compressed record set with no inner records")
        return messages

    def __iter__(self) -> Iterator[Record]:
        return self.records()


class ByteBufferMessageSet:
    """An iterable over a buffer of messages; each ``iter()`` starts at the beginning. A cut last message ends it
    without error.

    Iterating raises CorruptMessageError on a malformed message, InvalidRecordError on mixed magics, and what
    :meth:`LegacyRecordBatch.records` raises.
    """

    __slots__ = ("buffer", "max_decompressed_bytes")

    def __init__(self, buffer: Buffer, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES) -> None:
        self.buffer = buffer
        self.max_decompressed_bytes = max_decompressed_bytes

    @classmethod
    def create(
        cls, offset_assigner: Callable[[], int], options: MessageSetOptions, messages: Iterable[Record]
    ) -> ByteBufferMessageSet:
        """Build a set of ``messages`` whose offsets come from ``offset_assigner``, one call each. With a codec it
        is one wrapper.
        """
        numbered = [Record(offset_assigner(), message.timestamp, message.key, message.value) for message in messages]
        return cls(build_message_set(numbered, options))

    def shallow_entries(self) -> Iterator[LegacyRecordBatch]:
        """Yield the entries as they are stored: messages and wrappers."""
        buffer = self.buffer
        position = 0
        magic = None
        while len(buffer) - position >= LOG_OVERHEAD:
            offset, size = _ENTRY.unpack_from(buffer, position)
            if size < MIN_ENTRY_BYTES:
                raise CorruptMessageError(f"Message at offset {offset} has size {size}, below its header's")
            if size > len(buffer) - position - LOG_OVERHEAD:
                return
            message = LegacyRecordBatch(buffer, position)
            if magic is not None and message.magic != magic:
                raise InvalidRecordError(f"Message at offset {offset} has magic {message.magic}, the first has {magic}")
            magic = message.magic
            yield message
            position += LOG_OVERHEAD + size

    def deep_entries(self) -> Iterator[Record]:
        """Yield all messages, also those in wrappers, with absolute offsets and effective timestamps (-1 in magic
        0)."""
        for entry in self.shallow_entries():
            yield from entry.records(self.max_decompressed_bytes)

    def __iter__(self) -> Iterator[Record]:
        return self.deep_entries()


class MessageSetOptions(NamedTuple):
    """Magic (0 or 1), codec, level and append time (ms; sets the timestamp type) of a set to be built."""

    magic: int
    compression: int = CompressionType.NONE
    level: int | None = None
    log_append_time: int | None = None


def build_message_set(records: list[Record], options: MessageSetOptions) -> bytes:
    """Build the message set of ``records`` with their offsets; with a codec one wrapper. Headers, and in magic 0 times,
    are lost.

    Raises UnsupportedCompressionTypeError for codecs the magic does not know (zstd).
    """
    if options.compression > _CODEC_MAX:
        raise UnsupportedCompressionTypeError(f"Magic {options.magic} does not know codec {options.compression}")
    if not records:
        return b""
    writer = MessageWriter(segment_size_for(uncompressed_size(records, options.magic)))
    if options.compression == CompressionType.NONE:
        for record in records:
            _write_message(writer, record.offset, record, options)
    else:
        _write_wrapper(writer, records, options)
    return writer.to_bytes()


def uncompressed_size(records: Iterable[Record], magic: int) -> int:
    """Return the size of an uncompressed set of these records, in bytes."""
    overhead = LOG_OVERHEAD + (V0_OVERHEAD if magic == MAGIC_V0 else V1_OVERHEAD)
    return sum(overhead + len(record.key or b"") + len(record.value or b"") for record in records)


def _write_message(writer: MessageWriter, offset: int, record: Record, options: MessageSetOptions) -> None:
    timestamp, attributes = record.timestamp, 0
    if options.magic == MAGIC_V1 and options.log_append_time is not None:
        timestamp, attributes = options.log_append_time, TIMESTAMP_TYPE_MASK
    head = _HEAD_OF_V0 if options.magic == MAGIC_V0 else _HEAD_OF_V1.pack(MAGIC_V1, attributes, timestamp)
    writer.write_message(offset, head, record.key, record.value)


def _write_wrapper(writer: MessageWriter, records: list[Record], options: MessageSetOptions) -> None:
    timestamp, attributes = max(record.timestamp for record in records), int(options.compression)
    if options.magic == MAGIC_V1 and options.log_append_time is not None:
        timestamp, attributes = options.log_append_time, attributes | TIMESTAMP_TYPE_MASK
    base = records[0].offset if options.magic == MAGIC_V1 else 0
    inner_options = MessageSetOptions(options.magic, log_append_time=options.log_append_time)
    with (
        writer.entry(records[-1].offset),
        writer.message(options.magic, attributes, timestamp, None),
        writer.with_length_prefix(),
        writer.compress(options.compression, options.level, options.magic) as inner,
    ):
        for record in records:
            _write_message(inner, record.offset - base, record, inner_options)
