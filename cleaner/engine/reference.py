"""Record-level work of the cleaner in plain Python: the reference for ``batch_walk`` and ``batch_decisions``, and the
engine where they are not compiled.

The functions have the arguments and results of the methods of ``CompiledEngine``, and are written in the simplest way,
with ``bytes`` and ``struct``. Property tests compare the two.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tidelog.cleaner.engine import batch_table as at
from tidelog.cleaner.engine.arrays import ByteArray, IntegerArray
from tidelog.cleaner.engine.batch_table import BATCH_OVERHEAD, LOG_OVERHEAD, SMALLEST_RECORD, BatchState, Unreadable
from tidelog.protocol.record.crc import crc32c

if TYPE_CHECKING:
    from tidelog.cleaner.engine.transaction_rows import TransactionRows

_V2_HEADER = struct.Struct(">qiibIHiqqqhii")
_LENGTH = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_SMALLEST_LEGACY = 14
_NO_TIMESTAMP = -1


class MalformedRecordError(Exception):
    """A record's lengths contradict each other or its batch."""


class ParsedRecord(NamedTuple):
    """Positions, sizes and deltas of one record; sizes are -1 for null."""

    start: int
    end: int
    key: int
    key_size: int
    value_size: int
    timestamp_delta: int
    offset_delta: int


def _signed64(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def _read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    coded = shift = 0
    while True:
        if position >= end or shift >= 70:
            raise MalformedRecordError
        byte = data[position]
        position += 1
        coded |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            coded &= 2**64 - 1
            return (coded >> 1) ^ -(coded & 1), position


def write_varint(value: int) -> bytes:
    """Encode a 64-bit number as a zigzag varint."""
    coded = ((value << 1) ^ (value >> 63)) & (2**64 - 1)
    encoded = bytearray()
    while coded >= 0x80:
        encoded.append(coded & 0x7F | 0x80)
        coded >>= 7
    encoded.append(coded)
    return bytes(encoded)


def _read_size(data: bytes, position: int, end: int, smallest: int) -> tuple[int, int]:
    """Read the size of a field: (size, position of its bytes). Raises MalformedRecordError if the size is below
    ``smallest``, or the bytes reach beyond ``end``."""
    size, position = _read_varint(data, position, end)
    if size < smallest or size > end - position:
        raise MalformedRecordError
    return size, position


def _skip_headers(data: bytes, position: int, end: int) -> int:
    count, position = _read_varint(data, position, end)
    if count < 0 or count > end - position:
        raise MalformedRecordError
    for _ in range(count):
        size, position = _read_size(data, position, end, 0)
        size, position = _read_size(data, position + size, end, -1)
        position += max(size, 0)
    return position


def _read_record(data: bytes, start: int, end: int) -> ParsedRecord:
    length, position = _read_varint(data, start, end)
    if length < SMALLEST_RECORD - 1 or length > end - position:
        raise MalformedRecordError
    end = position + length
    timestamp_delta, position = _read_varint(data, position + 1, end)
    offset_delta, position = _read_varint(data, position, end)
    key_size, key = _read_size(data, position, end, -1)
    value_size, position = _read_size(data, key + max(key_size, 0), end, -1)
    if _skip_headers(data, position + max(value_size, 0), end) != end:
        raise MalformedRecordError
    return ParsedRecord(start, end, key, key_size, value_size, timestamp_delta, offset_delta)


def _read_records(data: bytes, row: IntegerArray) -> list[ParsedRecord]:
    """Read all records of a batch. Raises MalformedRecordError if a record is malformed, if the records do not fill the
    batch, or if their offsets do not grow or exceed the batch's last offset."""
    records: list[ParsedRecord] = []
    position, end = int(row[at.BODY]), int(row[at.BODY] + row[at.BODY_SIZE])
    last_delta = -1
    for _ in range(row[at.COUNT]):
        record = _read_record(data, position, end)
        if not last_delta < record.offset_delta <= row[at.LAST_OFFSET_DELTA]:
            raise MalformedRecordError
        records.append(record)
        position, last_delta = record.end, record.offset_delta
    if position != end:
        raise MalformedRecordError
    return records


def _describe(data: bytes, position: int, size: int, offsets: tuple[int, int]) -> dict[int, int]:
    """Return the columns of one version 2 batch."""
    (base_offset, _, _, _, crc, attributes, delta, base_timestamp, max_timestamp, producer_id, producer_epoch, _, count
     ) = _V2_HEADER.unpack_from(data, position)  # fmt: skip
    state, reason = BatchState.PLAIN, Unreadable.NONE
    if crc != crc32c(data[position + 21 : position + size]):
        state, reason = BatchState.POISON, Unreadable.CRC
    elif base_offset < offsets[0] or base_offset + delta >= offsets[1] or delta < 0:
        state, reason = BatchState.POISON, Unreadable.COUNT
    elif attributes & at.CODEC_MASK:
        state = BatchState.PACKED
    elif count < 0 or count * SMALLEST_RECORD > size - BATCH_OVERHEAD:
        state, reason = BatchState.POISON, Unreadable.COUNT
    return {
        at.BASE_OFFSET: base_offset,
        at.LAST_OFFSET_DELTA: delta,
        at.COUNT: count,
        at.ATTRIBUTES: attributes,
        at.BASE_TIMESTAMP: base_timestamp,
        at.MAX_TIMESTAMP: max_timestamp,
        at.PRODUCER_ID: producer_id,
        at.PRODUCER_EPOCH: producer_epoch,
        at.STATE: state,
        at.REASON: reason,
        at.BODY: position + BATCH_OVERHEAD,
        at.BODY_SIZE: size - BATCH_OVERHEAD,
    }


def _describe_any(data: bytes, position: int, size: int, offsets: tuple[int, int]) -> dict[int, int]:
    magic = data[position + 16]
    if magic == 2:
        return _describe(data, position, size, offsets)
    (offset,) = _OFFSET.unpack_from(data, position)
    if magic < 2:
        return {at.BASE_OFFSET: offset, at.STATE: BatchState.PACKED, at.COUNT: -1, at.PRODUCER_ID: -1}
    return {at.BASE_OFFSET: offset, at.STATE: BatchState.POISON, at.REASON: Unreadable.MAGIC}


def scan_batches(
    buffer: ByteArray, limits: tuple[int, int], offsets: tuple[int, int], table: IntegerArray
) -> tuple[int, int, int]:
    """Describe the whole batches in ``buffer[limits[0]:limits[1]]`` in ``table``.

    ``offsets`` are the lowest offset of the segment and the lowest one after it. A version 2 batch outside of them
    becomes POISON, as the CRC does not cover its base offset. Returns the number of rows, the position after the last
    batch, and the size of the next batch by its length field. That size is 0 if fewer than 12 bytes are left or the
    table is full, and negative if no batch can have it.
    """
    position, end = limits
    data = buffer[: end + at.PADDING].tobytes()
    row = 0
    while row < len(table) and position + LOG_OVERHEAD <= end:
        (length,) = _LENGTH.unpack_from(data, position + 8)
        if length < _SMALLEST_LEGACY:
            return row, position, -1
        size = length + LOG_OVERHEAD
        if position + size > end:
            return row, position, size
        if data[position + 16] == 2 and size < BATCH_OVERHEAD:
            return row, position, -1
        table[row] = 0
        table[row, at.POSITION], table[row, at.SIZE] = position, size
        for column, value in _describe_any(data, position, size, offsets).items():
            table[row, column] = value
        position += size
        row += 1
    return row, position, 0


def _bytes_of(buffer: ByteArray, table: IntegerArray, rows: tuple[int, int]) -> bytes:
    """Return a copy of the buffer up to the last byte of ``rows``, which is often far less than the whole buffer."""
    wanted = table[rows[0] : rows[1]]
    ends = np.maximum(wanted[:, at.POSITION] + wanted[:, at.SIZE], wanted[:, at.BODY] + wanted[:, at.BODY_SIZE])
    return buffer[: int(ends.max(initial=0)) + at.PADDING].tobytes()


def parse_records(buffer: ByteArray, table: IntegerArray, rows: tuple[int, int], keys: IntegerArray) -> int:
    """Write (key position, key size, ordinal) of the records with keys to ``keys``, for the readable batches of
    ``rows`` that are not marked as NOT_INDEXED; return the number of keys.

    A batch that cannot be parsed becomes POISON and adds no key.
    """
    data = _bytes_of(buffer, table, rows)
    found = 0
    for row in table[rows[0] : rows[1]]:
        if row[at.STATE] == BatchState.POISON or row[at.DECISION] & at.NOT_INDEXED:
            continue
        try:
            records = _read_records(data, row)
        except MalformedRecordError:
            row[at.STATE], row[at.REASON] = BatchState.POISON, Unreadable.RECORDS
            continue
        for number, record in enumerate(records):
            if record.key_size >= 0:
                keys[found] = record.key, record.key_size, row[at.ORDINAL] + number
                found += 1
    return found


def _is_set(bits: ByteArray, number: int) -> bool:
    return bool(bits[number >> 3] >> (number & 7) & 1)


class BatchFilter:
    """Filter for the records of batches."""

    def __init__(self, data: bytes, superseded: at.SupersededBits, times: at.FilterTimes, stats: IntegerArray) -> None:
        self.data = data
        self.superseded, self.first_ordinal = superseded
        self.now, self.new_horizon = times
        self.stats = stats

    def filter_batch(self, row: IntegerArray) -> tuple[bytes, dict[int, int]] | None:
        """Return the batch without removed records, and the columns of its output row; None if it is dropped."""
        if row[at.STATE] == BatchState.POISON:
            return self._keep_whole(row)
        decision, count = int(row[at.DECISION]), int(row[at.COUNT])
        try:
            kept = [] if decision & at.DISCARD else self._select_kept(row)
        except MalformedRecordError:
            self.stats[at.STAT_RECORDS_READ] += count
            row[at.STATE], row[at.REASON] = BatchState.POISON, Unreadable.RECORDS
            return self._keep_whole(row)
        self.stats[at.STAT_RECORDS_READ] += count
        self.stats[at.STAT_RECORDS_KEPT] += len(kept)
        is_converted = row[at.STATE] == BatchState.CONVERTED
        if not kept:
            if decision & at.RETAIN_EMPTY and not count and not is_converted:
                return self._keep_whole(row)
            self.stats[at.STAT_BATCHES_CHANGED] += 1
            return self._build_empty(row) if decision & at.RETAIN_EMPTY else None
        horizon = self._horizon_to_set(row, kept)
        if len(kept) == count and horizon is None and not is_converted:
            return self._keep_whole(row)
        self.stats[at.STAT_BATCHES_CHANGED] += 1
        return self._build_changed(row, kept, horizon)

    def _select_kept(self, row: IntegerArray) -> list[ParsedRecord]:
        before = self.stats.copy()
        try:
            return [
                record
                for number, record in enumerate(self._records(row))
                if self._stays(row, record, int(row[at.ORDINAL]) + number - self.first_ordinal)
            ]
        except MalformedRecordError:
            self.stats[:] = before
            raise

    def _records(self, row: IntegerArray) -> Iterator[ParsedRecord]:
        yield from _read_records(self.data, row)

    def _stays(self, row: IntegerArray, record: ParsedRecord, bit: int) -> bool:
        if row[at.ATTRIBUTES] & at.CONTROL_MASK:
            return True
        if record.key_size < 0:
            self.stats[at.STAT_KEYLESS] += 1
            return False
        if _is_set(self.superseded, bit):
            return False
        is_expired = row[at.ATTRIBUTES] & at.DELETE_HORIZON_MASK and row[at.BASE_TIMESTAMP] <= self.now
        if record.value_size < 0 and is_expired:
            self.stats[at.STAT_TOMBSTONES_DROPPED] += 1
            return False
        return True

    def _horizon_to_set(self, row: IntegerArray, kept: list[ParsedRecord]) -> int | None:
        is_perishable = row[at.DECISION] & at.MARKER_OF_EMPTY_TRANSACTION or any(r.value_size < 0 for r in kept)
        return self.new_horizon if is_perishable and not row[at.ATTRIBUTES] & at.DELETE_HORIZON_MASK else None

    def _keep_whole(self, row: IntegerArray) -> tuple[bytes, dict[int, int]]:
        position, size = int(row[at.POSITION]), int(row[at.SIZE])
        is_poison = row[at.STATE] == BatchState.POISON
        return self.data[position : position + size], {
            at.OUT_LAST_OFFSET: at.UNKNOWN_OFFSET
            if is_poison
            else int(row[at.BASE_OFFSET] + row[at.LAST_OFFSET_DELTA]),
            at.OUT_MAX_TIMESTAMP: _NO_TIMESTAMP if is_poison else int(row[at.MAX_TIMESTAMP]),
            at.OUT_COUNT: 0 if is_poison else int(row[at.COUNT]),
        }

    def _header(self, row: IntegerArray) -> list[int]:
        return list(_V2_HEADER.unpack_from(self.data, int(row[at.BODY]) - BATCH_OVERHEAD))

    def _build_empty(self, row: IntegerArray) -> tuple[bytes, dict[int, int]]:
        header = self._header(row)
        header[5] = int(row[at.ATTRIBUTES]) & ~(at.CODEC_MASK | at.DELETE_HORIZON_MASK)
        header[7], header[12] = _NO_TIMESTAMP, 0
        return _seal(header, b""), {
            at.OUT_LAST_OFFSET: int(row[at.BASE_OFFSET] + row[at.LAST_OFFSET_DELTA]),
            at.OUT_MAX_TIMESTAMP: int(row[at.MAX_TIMESTAMP]),
            at.OUT_CHANGED: 1,
        }

    def _build_changed(
        self, row: IntegerArray, kept: list[ParsedRecord], horizon: int | None
    ) -> tuple[bytes, dict[int, int]]:
        header = self._header(row)
        attributes, base_timestamp = int(row[at.ATTRIBUTES]), int(row[at.BASE_TIMESTAMP])
        times = [_signed64(base_timestamp + record.timestamp_delta) for record in kept]
        body = b"".join(self.data[record.start : record.end] for record in kept)
        if horizon is not None:
            attributes |= at.DELETE_HORIZON_MASK
            header[7] = horizon
            body = b"".join(self._rebase(record, base_timestamp - horizon) for record in kept)
        if not attributes & at.TIMESTAMP_TYPE_MASK:
            header[8] = max([*times, _NO_TIMESTAMP])
        header[5], header[12] = attributes, len(kept)
        codec = attributes & at.CODEC_MASK
        return (_V2_HEADER.pack(*header) + body if codec else _seal(header, body)), {
            at.OUT_LAST_OFFSET: int(row[at.BASE_OFFSET] + row[at.LAST_OFFSET_DELTA]),
            at.OUT_MAX_TIMESTAMP: header[8],
            at.OUT_COUNT: len(kept),
            at.OUT_CODEC: codec,
            at.OUT_CHANGED: 1,
        }

    def _rebase(self, record: ParsedRecord, shift: int) -> bytes:
        _, body = _read_varint(self.data, record.start, record.end)
        _, rest = _read_varint(self.data, body + 1, record.end)
        moved = self.data[body : body + 1] + write_varint(_signed64(record.timestamp_delta + shift))
        moved += self.data[rest : record.end]
        return write_varint(len(moved)) + moved


def _seal(header: list[int], body: bytes) -> bytes:
    """Set length and CRC of a batch and return it."""
    header[1] = BATCH_OVERHEAD - LOG_OVERHEAD + len(body)
    batch = bytearray(_V2_HEADER.pack(*header) + body)
    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    return bytes(batch)


def filter_batches(
    buffer: ByteArray,
    table: IntegerArray,
    rows: tuple[int, int],
    superseded: at.SupersededBits,
    times: at.FilterTimes,
    output: at.FilterOutput,
    stats: IntegerArray,
) -> tuple[int, int, int]:
    """Write the batches of ``rows`` without removed records to the start of ``output``.

    Returns the first row that was not filtered because the output was full, and the numbers of bytes and batches
    written.
    """
    out, out_table = output
    batch_filter = BatchFilter(_bytes_of(buffer, table, rows), superseded, times, stats)
    target = written = 0
    for number in range(rows[0], rows[1]):
        row = table[number]
        count = max(int(row[at.COUNT]), 0)
        size = max(int(row[at.SIZE]), BATCH_OVERHEAD + int(row[at.BODY_SIZE]) + 20 * count + 20)
        if written >= len(out_table) or target + size > len(out):
            return number, target, written
        result = batch_filter.filter_batch(row)
        if result is None:
            continue
        batch, columns = result
        out[target : target + len(batch)] = np.frombuffer(batch, np.uint8)
        out_table[written] = 0
        out_table[written, at.OUT_POSITION], out_table[written, at.OUT_SIZE] = target, len(batch)
        for column, value in columns.items():
            out_table[written, column] = value
        target += len(batch)
        written += 1
    return rows[1], target, written


def index_entries(
    out_table: IntegerArray, written: int, interval: int, state: IntegerArray, entries: IntegerArray
) -> int:
    """Build the index entries of the written batches; return how many. They are those that appends of the single
    batches would have made.

    ``state`` is carried from call to call: position, bytes since the last entry, largest timestamp so far and its
    offset. ``entries`` receives rows of last offset, position, largest timestamp and its offset. A batch without a
    known last offset (below 0) gets no entry; the next one does.
    """
    found = 0
    for row in out_table[:written]:
        if row[at.OUT_MAX_TIMESTAMP] > state[2]:
            state[2], state[3] = row[at.OUT_MAX_TIMESTAMP], row[at.OUT_LAST_OFFSET]
        if state[1] > interval and row[at.OUT_LAST_OFFSET] >= 0:
            entries[found] = row[at.OUT_LAST_OFFSET], state[0], state[2], state[3]
            found += 1
            state[1] = 0
        state[0] += row[at.OUT_SIZE]
        state[1] += row[at.OUT_SIZE]
    return found


def _control_kind(data: bytes, row: IntegerArray) -> str:
    """Return the kind of a control batch: ``abort``, ``commit``, ``emptied`` (by an earlier round), or ``other``."""
    if row[at.COUNT] == 0:
        return "emptied"
    body = int(row[at.BODY])
    try:
        record = _read_record(data, body, body + int(row[at.BODY_SIZE]))
    except MalformedRecordError:
        return "other"
    kind = int.from_bytes(data[record.key + 2 : record.key + 4], "big") if record.key_size >= 4 else -1
    return {0: "abort", 1: "commit"}.get(kind, "other")


def _aborted_transaction(transactions: TransactionRows, producer_id: int, offset: int) -> int | None:
    """Return the row of the producer's last aborted transaction that begins at or below ``offset``."""
    found = [
        index
        for index, (owner, first, _) in enumerate(transactions.aborted.tolist())
        if owner == producer_id and first <= offset
    ]
    return found[-1] if found else None


class BatchDecisions:
    """Decisions about batches in log order. ``markers`` collects the rows of ``transactions.aborted`` whose marker is
    kept because this pass has read batches of the transaction."""

    def __init__(self, data: bytes, transactions: TransactionRows) -> None:
        self.data = data
        self.transactions = transactions
        self.open = transactions.open_producers
        self.markers: list[int] = []
        self._last_batches = {tuple(pair) for pair in transactions.last_batches.tolist()}
        self._fences = {tuple(pair) for pair in transactions.fences.tolist()}

    def decide(self, row: IntegerArray) -> int:
        """Return the DECISION of one batch."""
        decision = 0
        if row[at.ATTRIBUTES] & at.CONTROL_MASK:
            decision = at.NOT_INDEXED | self._marker(row)
        elif row[at.ATTRIBUTES] & at.TRANSACTIONAL_MASK:
            self.open.add(int(row[at.PRODUCER_ID]))
            if self._is_aborted(row):
                decision = at.DISCARD | at.NOT_INDEXED
        return decision | (at.RETAIN_EMPTY if self._stays_empty(row) else 0)

    def note_poison(self, row: IntegerArray) -> None:
        """Note the transaction of a batch that stays as it is, so that its marker stays too."""
        is_data = row[at.ATTRIBUTES] & (at.TRANSACTIONAL_MASK | at.CONTROL_MASK) == at.TRANSACTIONAL_MASK
        if is_data and row[at.PRODUCER_ID] >= 0:
            self.open.add(int(row[at.PRODUCER_ID]))

    def _last_offset(self, row: IntegerArray) -> int:
        return int(row[at.BASE_OFFSET] + row[at.LAST_OFFSET_DELTA])

    def _marker(self, row: IntegerArray) -> int:
        kind, producer_id = _control_kind(self.data, row), int(row[at.PRODUCER_ID])
        if kind == "emptied" or (kind != "other" and producer_id not in self.open):
            horizon = row[at.BASE_TIMESTAMP] if row[at.ATTRIBUTES] & at.DELETE_HORIZON_MASK else None
            is_passed = horizon is not None and horizon <= self.transactions.now_ms
            return at.MARKER_OF_EMPTY_TRANSACTION | (at.DISCARD if is_passed else 0)
        if kind != "other":
            self.open.discard(producer_id)
            entry = _aborted_transaction(self.transactions, producer_id, self._last_offset(row))
            if kind == "abort" and entry is not None and self.transactions.aborted[entry, 2] == self._last_offset(row):
                self.markers.append(entry)
        return 0

    def _is_aborted(self, row: IntegerArray) -> bool:
        entry = _aborted_transaction(self.transactions, int(row[at.PRODUCER_ID]), self._last_offset(row))
        return entry is not None and bool(row[at.BASE_OFFSET] <= self.transactions.aborted[entry, 2])

    def _stays_empty(self, row: IntegerArray) -> bool:
        producer_id, last_offset = int(row[at.PRODUCER_ID]), self._last_offset(row)
        if last_offset + 1 == self.transactions.end_offset:
            return True
        if producer_id >= 0 and (last_offset, producer_id) in self._last_batches:
            return True
        is_fenced = producer_id >= 0 and (producer_id, int(row[at.PRODUCER_EPOCH])) in self._fences
        return is_fenced and bool(row[at.ATTRIBUTES] & at.CONTROL_MASK)


def decide_batches(
    buffer: ByteArray, table: IntegerArray, rows: tuple[int, int], transactions: TransactionRows
) -> list[int]:
    """Fill DECISION of ``rows``; return the rows of ``transactions.aborted`` whose marker is kept because this pass has
    read batches of the transaction."""
    decisions = BatchDecisions(_bytes_of(buffer, table, rows), transactions)
    for row in table[rows[0] : rows[1]]:
        if row[at.STATE] == BatchState.POISON:
            decisions.note_poison(row)
        else:
            row[at.DECISION] = decisions.decide(row)
    return decisions.markers
