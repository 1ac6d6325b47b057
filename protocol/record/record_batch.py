"""Record batches, magic 2: the format of records on the wire and on disk since Kafka 0.11 (KIP-98).

    batch  = base_offset 8 | batch_length 4 | partition_leader_epoch 4 | magic 1 (2) | crc 4 | attributes 2
             | last_offset_delta 4 | base_timestamp 8 | max_timestamp 8 | producer_id 8 | producer_epoch 2
             | base_sequence 4 | record_count 4 | records                               61 bytes, then the records
    record = length varint | attributes 1 (0) | timestamp_delta varlong | offset_delta varint
             | key (length varint, -1 = null) | value (likewise) | header count varint | (name, value)*

``batch_length`` counts from ``partition_leader_epoch`` on (size = 12 + length). The CRC-32C covers ``attributes`` to
the end, so a broker may set base offset and leader epoch in place without changing it. Attributes: bits 0-2 codec, 3
timestamp type (1 = log append time), 4 transactional, 5 control, 6 delete horizon (KIP-534: base_timestamp then holds
the time from which tombstones and markers may be removed). Compression covers the records section as a whole.

:class:`RecordBatch` is a view: it reads the header once and looks at records only when asked. Everything here is plain
functions over buffers; any thread. Values are NamedTuples: each start imports this module, and a dataclass takes 1 ms
to define.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tidelog.protocol.errors import CorruptMessageError, InvalidRecordError
from tidelog.protocol.record.crc import crc32c

Buffer = bytes | bytearray | memoryview

LOG_OVERHEAD = 12
RECORD_BATCH_OVERHEAD = 61
MAGIC_OFFSET = 16
CRC_OFFSET = 17
ATTRIBUTES_OFFSET = 21

MAGIC_V0 = 0
MAGIC_V1 = 1
MAGIC_V2 = 2

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40

CREATE_TIME = 0
LOG_APPEND_TIME = 1

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_PARTITION_LEADER_EPOCH = -1

#: Bytes that ``records()`` decompresses at most when the caller gives no bound.
DEFAULT_MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
#: Smallest value of an entry's size field, which counts the bytes after it: a v0 message's header (Kafka's own lower
#: bound when it walks a log).
MIN_ENTRY_BYTES = 14
#: Largest number of batch headers that ``has_transactional_batch`` reads in one call: 0.2 ms of work.
TURN_BATCHES = 1_000
#: Smallest possible record: length, attributes, two deltas, null key, null value, no headers.
MIN_RECORD_BYTES = 7

HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_LEADER_EPOCH = struct.Struct(">i")
_BASE_OFFSET = struct.Struct(">q")
_CRC = struct.Struct(">I")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_CONTROL_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")

CONTROL_TYPE_ABORT = 0
CONTROL_TYPE_COMMIT = 1


class Record(NamedTuple):
    """One record with its absolute offset; ``sequence`` is -1 without an idempotent producer. Header names may
    repeat."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    sequence: int = NO_SEQUENCE


class RecordBatch:
    """A view of one magic 2 batch at ``position`` of ``buffer``; the constructor reads nothing but the header.

    Raises CorruptMessageError when the header does not fit the buffer.
    """

    __slots__ = ("_fields", "buffer", "position")

    def __init__(self, buffer: Buffer, position: int = 0) -> None:
        if len(buffer) - position < RECORD_BATCH_OVERHEAD:
            raise CorruptMessageError(f"{len(buffer) - position} bytes are too few for a record batch header")
        self.buffer = buffer
        self.position = position
        self._fields: tuple[int, ...] = HEADER.unpack_from(buffer, position)

    def __repr__(self) -> str:
        return f"RecordBatch(base_offset={self.base_offset}, records={self.record_count}, size={self.size_in_bytes})"

    @property
    def base_offset(self) -> int:
        return self._fields[0]

    @property
    def last_offset(self) -> int:
        return self._fields[0] + self._fields[6]

    @property
    def next_offset(self) -> int:
        return self._fields[0] + self._fields[6] + 1

    @property
    def size_in_bytes(self) -> int:
        return self._fields[1] + LOG_OVERHEAD

    @property
    def partition_leader_epoch(self) -> int:
        return self._fields[2]

    @property
    def magic(self) -> int:
        return self._fields[3]

    @property
    def checksum(self) -> int:
        return self._fields[4]

    @property
    def attributes(self) -> int:
        return self._fields[5]

    @property
    def compression_type(self) -> int:
        """The codec's number, see ``tidelog.protocol.record.compression.CompressionType``."""
        return self._fields[5] & COMPRESSION_MASK

    @property
    def is_compressed(self) -> bool:
        return self._fields[5] & COMPRESSION_MASK != 0

    @property
    def timestamp_type(self) -> int:
        return LOG_APPEND_TIME if self._fields[5] & TIMESTAMP_TYPE_MASK else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return self._fields[5] & TRANSACTIONAL_MASK != 0

    @property
    def is_control(self) -> bool:
        return self._fields[5] & CONTROL_MASK != 0

    @property
    def last_offset_delta(self) -> int:
        return self._fields[6]

    @property
    def base_timestamp(self) -> int:
        return self._fields[7]

    @property
    def max_timestamp(self) -> int:
        return self._fields[8]

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time (ms) from which the batch's tombstones, or its marker, may be removed; None until a cleaner has set it
        (KIP-534)."""
        return self._fields[7] if self._fields[5] & DELETE_HORIZON_MASK else None

    @property
    def producer_id(self) -> int:
        return self._fields[9]

    @property
    def producer_epoch(self) -> int:
        return self._fields[10]

    @property
    def base_sequence(self) -> int:
        return self._fields[11]

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; a negative base sequence, which is none, stays as it is."""
        base = self._fields[11]
        return base if base < 0 else increment_sequence(base, self._fields[6])

    @property
    def record_count(self) -> int:
        return self._fields[12]

    def view(self) -> memoryview:
        """Return the batch's bytes, without a copy."""
        return memoryview(self.buffer)[self.position : self.position + self.size_in_bytes]

    def records_section(self) -> memoryview:
        """Return the bytes after the header as they are stored, compressed or not."""
        return memoryview(self.buffer)[self.position + RECORD_BATCH_OVERHEAD : self.position + self.size_in_bytes]

    def is_valid(self) -> bool:
        """Return whether the batch is complete in the buffer and its checksum matches."""
        size = self.size_in_bytes
        if size < RECORD_BATCH_OVERHEAD or size > len(self.buffer) - self.position:
            return False
        covered = memoryview(self.buffer)[self.position + ATTRIBUTES_OFFSET : self.position + size]
        return crc32c(covered) == self._fields[4]

    def ensure_valid(self) -> None:
        """Raise CorruptMessageError unless ``is_valid()``."""
        if not self.is_valid():
            raise CorruptMessageError(
                f"Record batch at offset {self.base_offset} is corrupt: size {self.size_in_bytes}, "
                f"{len(self.buffer) - self.position} bytes there, stored crc {self.checksum:#010x}"
            )

    def uncompressed_section(self, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES) -> Buffer:
        """Return the records section, decompressed if it is compressed.

        Raises InvalidRecordError on damaged data, MessageTooLargeError above the bound,
        UnsupportedCompressionTypeError on an unknown codec.
        """
        section = self.records_section()
        if not self.is_compressed:
            return section
        from tidelog.protocol.record.compression import decompress  # codecs are slow to import and not needed to start

        return decompress(section, self.compression_type, max_decompressed_bytes)

    def records(self, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES) -> Iterator[Record]:
        """Iterate over the records in order, with absolute offsets; under log append time each has ``max_timestamp``.

        Raises InvalidRecordError on a malformed record or a count that does not match, and what
        ``uncompressed_section`` raises.
        """
        return self.parse(self.uncompressed_section(max_decompressed_bytes))

    def parse(self, section: Buffer) -> Iterator[Record]:
        """Parse the records of an ``uncompressed_section``; see :meth:`records`."""
        return parse_records(section, self._fields[12], self._context())

    def parse_from(self, section: Buffer, first_offset: int) -> Iterator[Record]:
        """Parse from the first record at or after ``first_offset`` on; those before it are skipped. See
        :meth:`parse`."""
        position, skipped = skip_records(section, self._fields[12], first_offset - self._fields[0])
        return parse_records(memoryview(section)[position:], self._fields[12] - skipped, self._context())

    def _context(self) -> RecordContext:
        fields = self._fields
        return RecordContext(
            base_offset=fields[0],
            base_timestamp=fields[7],
            base_sequence=fields[11],
            log_append_time=fields[8] if fields[5] & TIMESTAMP_TYPE_MASK else None,
        )

    def __iter__(self) -> Iterator[Record]:
        return self.records()


def has_transactional_batch(records: Buffer | None, most: int = TURN_BATCHES) -> bool:
    """Return whether the header of any of these batches of magic 2 says that it belongs to a transaction.

    Only the first ``most`` are read. Reading stops at another magic or a batch shorter than its header: the log refuses
    such a batch, and records of mixed magics.
    """
    position, end = 0, 0 if records is None else len(records)
    for _ in range(most):
        if records is None or position + RECORD_BATCH_OVERHEAD > end or records[position + MAGIC_OFFSET] != MAGIC_V2:
            return False
        if records[position + ATTRIBUTES_OFFSET + 1] & TRANSACTIONAL_MASK:
            return True
        _, length = _OFFSET_AND_LENGTH.unpack_from(records, position)
        if length < RECORD_BATCH_OVERHEAD - LOG_OVERHEAD:
            return False
        position += LOG_OVERHEAD + length
    return False


def increment_sequence(sequence: int, increment: int) -> int:
    """Add to a sequence number, which wraps from 2^31 - 1 to 0 (KIP-98)."""
    return (sequence + increment) & 0x7FFFFFFF


def assign_offset_and_epoch(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Set base offset and partition leader epoch of the batch at ``position`` in place; the CRC does not cover them."""
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + LOG_OVERHEAD, leader_epoch)


def set_crc(buffer: bytearray | memoryview, position: int, size: int) -> None:
    """Compute and store the CRC-32C of the batch of ``size`` bytes at ``position``."""
    covered = memoryview(buffer)[position + ATTRIBUTES_OFFSET : position + size]
    _CRC.pack_into(buffer, position + CRC_OFFSET, crc32c(covered))


# --- records ---------------------------------------------------------------------------------------------------------


def _to_signed_64(value: int) -> int:
    return ((value + (1 << 63)) & 0xFFFFFFFFFFFFFFFF) - (1 << 63)


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Read a zigzag varint of 32 bits: (value, next position). See :func:`read_raw_varint` for what it raises."""
    raw, position = read_raw_varint(data, position, 5)
    return (raw >> 1) ^ -(raw & 1), position


def read_varlong(data: Buffer, position: int) -> tuple[int, int]:
    """Read a zigzag varint of 64 bits: (value, next position)."""
    raw, position = read_raw_varint(data, position, 10)
    return (raw >> 1) ^ -(raw & 1), position


def read_raw_varint(data: Buffer, position: int, max_bytes: int) -> tuple[int, int]:
    """Read a varint before its zigzag is undone, of at most 5 bytes (32 bits) or 10 (64): (raw, next position).

    Bits above the 32nd or 64th are dropped, as Kafka's reader drops them.
    Raises IndexError past the end of ``data``, InvalidRecordError when it does not end in ``max_bytes``.
    """
    raw = data[position]
    if raw < 0x80:
        return raw, position + 1
    byte = data[position + 1]
    raw += (byte << 7) - 0x80
    if byte < 0x80:
        return raw, position + 2
    raw -= 0x4000
    shift = 14
    for index in range(position + 2, position + max_bytes):
        byte = data[index]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw & (0xFFFFFFFF if max_bytes == 5 else 0xFFFFFFFFFFFFFFFF), index + 1
        shift += 7
    raise InvalidRecordError(f"Varint is longer than {max_bytes} bytes")


class RecordContext(NamedTuple):
    """Base offset and timestamp to which a record's deltas are relative. ``log_append_time`` in ms replaces every
    timestamp when given."""

    base_offset: int
    base_timestamp: int
    base_sequence: int = NO_SEQUENCE
    log_append_time: int | None = None


def parse_records(section: Buffer, count: int, context: RecordContext) -> Iterator[Record]:
    """Parse exactly ``count`` records that fill ``section``. Raises InvalidRecordError otherwise."""
    position = 0
    if count < 0 or count * MIN_RECORD_BYTES > len(section):
        raise InvalidRecordError(f"Found invalid record count {count} in a section of {len(section)} bytes")
    for _ in range(count):
        try:
            record, position = _parse_record(section, position, context)
        except (IndexError, UnicodeDecodeError) as error:
            raise InvalidRecordError("Found invalid record structure") from error
        yield record
    if position != len(section):
        raise InvalidRecordError(f"{len(section) - position} bytes remain after the last of {count} records")


def skip_records(section: Buffer, count: int, first_delta: int) -> tuple[int, int]:
    """Find the first of ``count`` records with an offset delta of at least ``first_delta``, or a length below 0.

    Returns its position and the number of records before it; if there is none, the position after the last record and
    ``count``. Raises InvalidRecordError.
    """
    position = 0
    try:
        for index in range(count):
            length, body = read_varint(section, position)
            _, after = read_varlong(section, body + 1)
            if length < 0 or read_varint(section, after)[0] >= first_delta:
                return position, index
            position = body + length
    except IndexError as error:
        raise InvalidRecordError("Found invalid record structure") from error
    return position, count


def _parse_record(data: Buffer, position: int, context: RecordContext) -> tuple[Record, int]:
    length, position = read_varint(data, position)
    end = position + length
    if length < 0 or end > len(data):
        raise InvalidRecordError(f"Invalid record size {length}: only {len(data) - position} bytes remain")
    timestamp_delta, position = read_varlong(data, position + 1)
    offset_delta, position = read_varint(data, position)
    key, position = _read_bytes(data, position, end)
    value, position = _read_bytes(data, position, end)
    headers, position = _read_headers(data, position, end)
    if position != end:
        raise InvalidRecordError(f"Invalid record size {length}: {end - position} bytes remain after its fields")
    sequence = context.base_sequence
    timestamp = context.log_append_time
    if timestamp is None:
        timestamp = _to_signed_64(context.base_timestamp + timestamp_delta)
    if sequence >= 0:
        sequence = increment_sequence(sequence, offset_delta)
    return Record(context.base_offset + offset_delta, timestamp, key, value, headers, sequence), end


def _read_bytes(data: Buffer, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length < 0:
        return None, position
    if position + length > end:
        raise InvalidRecordError(f"Field of {length} bytes does not fit its record")
    return bytes(data[position : position + length]), position + length


def _read_headers(data: Buffer, position: int, end: int) -> tuple[Sequence[tuple[str, bytes | None]], int]:
    count, position = read_varint(data, position)
    if count == 0:
        return (), position
    if count < 0 or count > end - position:
        raise InvalidRecordError(f"Found invalid number of record headers {count}")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _read_bytes(data, position, end)
        if name is None:
            raise InvalidRecordError("Invalid negative header key size")
        value, position = _read_bytes(data, position, end)
        headers.append((str(name, "utf-8", "replace"), value))
    return tuple(headers), position


def append_varint(out: bytearray, value: int) -> None:
    """Append ``value`` as a zigzag varint (also right for varlongs: |value| < 2^63)."""
    raw = (value << 1) ^ (value >> 63)
    while raw > 0x7F:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)


def _append_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)
        return
    append_varint(out, len(value))
    out += value


def append_record(out: bytearray, record: Record, base_offset: int, base_timestamp: int) -> None:
    """Append one record, with deltas relative to the given base."""
    body = bytearray(1)
    append_varint(body, record.timestamp - base_timestamp)
    append_varint(body, record.offset - base_offset)
    _append_bytes(body, record.key)
    _append_bytes(body, record.value)
    append_varint(body, len(record.headers))
    for name, value in record.headers:
        _append_bytes(body, name.encode("utf-8"))
        _append_bytes(body, value)
    append_varint(out, len(body))
    out += body


# --- building --------------------------------------------------------------------------------------------------------


class BatchOptions(NamedTuple):
    """Header fields of a batch that its records do not give. Times in ms.

    ``base_offset`` None takes the first record's. ``last_offset_delta`` None takes the last record's (the cleaner
    keeps the original's). ``log_append_time`` sets the timestamp type and every record's effective time.
    ``delete_horizon_ms`` sets the KIP-534 bit and replaces base_timestamp. ``level`` None is the codec's default.
    """

    base_offset: int | None = None
    last_offset_delta: int | None = None
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH
    compression: int = 0
    level: int | None = None
    log_append_time: int | None = None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    is_transactional: bool = False
    is_control: bool = False
    delete_horizon_ms: int | None = None

    def attributes(self) -> int:
        return (
            self.compression
            | (TIMESTAMP_TYPE_MASK if self.log_append_time is not None else 0)
            | (TRANSACTIONAL_MASK if self.is_transactional else 0)
            | (CONTROL_MASK if self.is_control else 0)
            | (DELETE_HORIZON_MASK if self.delete_horizon_ms is not None else 0)
        )


def build_batch(records: Iterable[Record], options: BatchOptions | None = None) -> bytearray:
    """Build one magic 2 batch of ``records`` (offsets ascending); it may be empty when ``base_offset`` and last delta
    are given.

    Raises UnsupportedCompressionTypeError on an unknown codec.
    """
    options = options or BatchOptions()
    records = list(records)
    base_offset = options.base_offset
    if base_offset is None:
        base_offset = records[0].offset if records else 0
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    if options.delete_horizon_ms is not None:
        base_timestamp = options.delete_horizon_ms
    section = bytearray()
    for record in records:
        append_record(section, record, base_offset, base_timestamp)
    last_offset_delta = options.last_offset_delta
    if last_offset_delta is None:
        last_offset_delta = records[-1].offset - base_offset if records else -1
    max_timestamp = options.log_append_time
    if max_timestamp is None:
        max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    times = BatchTimes(base_timestamp, max_timestamp)
    return assemble_batch(
        section, options, base_offset=base_offset, last_offset_delta=last_offset_delta, times=times, count=len(records)
    )


class BatchTimes(NamedTuple):
    """base_timestamp and max_timestamp of a batch header, in ms."""

    base_timestamp: int
    max_timestamp: int


def assemble_batch(  # six arguments: a NamedTuple of them would have no other use
    section: Buffer, options: BatchOptions, *, base_offset: int, last_offset_delta: int, times: BatchTimes, count: int
) -> bytearray:
    """Build a batch of an encoded, uncompressed records section: compress it, and add header and CRC."""
    if options.compression:
        from tidelog.protocol.record.compression import compress  # codecs are slow to import and not needed to start

        section = compress(section, options.compression, options.level)
    tail = _AFTER_CRC.pack(
        options.attributes(),
        last_offset_delta,
        times.base_timestamp,
        times.max_timestamp,
        options.producer_id,
        options.producer_epoch,
        options.base_sequence,
        count,
    )
    out = bytearray(ATTRIBUTES_OFFSET)
    out += tail
    out += section
    _OFFSET_AND_LENGTH.pack_into(out, 0, base_offset, len(out) - LOG_OVERHEAD)
    _LEADER_EPOCH.pack_into(out, LOG_OVERHEAD, options.partition_leader_epoch)
    out[MAGIC_OFFSET] = MAGIC_V2
    set_crc(out, 0, len(out))
    return out


# --- control batches -------------------------------------------------------------------------------------------------


class EndTransactionMarker(NamedTuple):
    """Record that ends a transaction: commit or abort, and the epoch of its coordinator (KIP-98)."""

    commit: bool
    coordinator_epoch: int

    def key(self) -> bytes:
        return _CONTROL_KEY.pack(0, CONTROL_TYPE_COMMIT if self.commit else CONTROL_TYPE_ABORT)

    def value(self) -> bytes:
        return _MARKER_VALUE.pack(0, self.coordinator_epoch)


def control_record_type(key: bytes | None) -> int:
    """Return the type of a control record (0 abort, 1 commit, others exist). Raises InvalidRecordError on a short key
    or a negative version.
    """
    if key is None or len(key) < _CONTROL_KEY.size:
        raise InvalidRecordError("Control record key is too short")
    version, control_type = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise InvalidRecordError(f"Control record key has invalid version {version}")
    return int(control_type)


def parse_end_transaction_marker(record: Record) -> EndTransactionMarker | None:
    """Parse the marker in a control record; return None for another control type. Raises InvalidRecordError."""
    control_type = control_record_type(record.key)
    if control_type not in (CONTROL_TYPE_ABORT, CONTROL_TYPE_COMMIT):
        return None
    value = record.value
    if value is None or len(value) < _MARKER_VALUE.size:
        raise InvalidRecordError("End transaction marker value is too short")
    version, coordinator_epoch = _MARKER_VALUE.unpack_from(value)
    if version < 0:
        raise InvalidRecordError(f"End transaction marker has invalid version {version}")
    return EndTransactionMarker(control_type == CONTROL_TYPE_COMMIT, coordinator_epoch)


def end_transaction_marker(
    marker: EndTransactionMarker, *, timestamp: int, producer_id: int, producer_epoch: int, offset: int = 0
) -> bytearray:
    """Build a control batch of one marker, as a transaction coordinator appends it (KIP-98)."""
    record = Record(offset, timestamp, marker.key(), marker.value())
    options = BatchOptions(
        producer_id=producer_id, producer_epoch=producer_epoch, is_transactional=True, is_control=True
    )
    return build_batch([record], options)
