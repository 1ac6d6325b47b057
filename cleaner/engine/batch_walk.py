"""Compiled walks of the cleaner over batches and records; ``tidelog.cleaner.engine.reference`` is the plain form.

- ``scan_batches`` divides a chunk into batches, in a batch table, and checks lengths, magic and CRC;
- ``parse_records`` lists the keys of the table's readable batches, to be hashed;
- ``find_control_types`` finds which control batches are commit markers and which are abort markers;
- ``filter_batches`` writes the batches without the records that are removed; unchanged batches are copied;
- ``index_entries`` builds the index entries of written batches.

Every record is walked by ``_record``, which checks all its lengths against the record and the record against the
batch; if that fails, the batch becomes POISON and its bytes are kept. Nothing is read outside of the buffer: headers
are read only after the batch is known to lie within the chunk, and varints stop at the end of the batch.

Tables are arrays of 64-bit integers, one row after the other; ``row`` is the index of a row's first column. Whole
chunks are walked without the interpreter lock. C types are in ``batch_walk.pxd``. Any thread.
"""

from __future__ import annotations

from typing import Any

from tidelog.cleaner.engine.batch_table import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    BATCH_OVERHEAD,
    BODY,
    BODY_SIZE,
    CODEC_MASK,
    COLUMNS,
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_EMPTIED,
    CONTROL_MASK,
    CONTROL_OTHER,
    COUNT,
    DECISION,
    DELETE_HORIZON_MASK,
    DISCARD,
    LAST_OFFSET_DELTA,
    LOG_OVERHEAD,
    MARKER_OF_EMPTY_TRANSACTION,
    MAX_TIMESTAMP,
    NOT_INDEXED,
    ORDINAL,
    OUT_CHANGED,
    OUT_CODEC,
    OUT_COLUMNS,
    OUT_COUNT,
    OUT_LAST_OFFSET,
    OUT_MAX_TIMESTAMP,
    OUT_POSITION,
    OUT_SIZE,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    REASON,
    RETAIN_EMPTY,
    SIZE,
    SMALLEST_RECORD,
    STAT_BATCHES_CHANGED,
    STAT_KEYLESS,
    STAT_RECORDS_KEPT,
    STAT_RECORDS_READ,
    STAT_TOMBSTONES_DROPPED,
    STATE,
    TIMESTAMP_TYPE_MASK,
    UNKNOWN_OFFSET,
    BatchState,
    FilterOutput,
    FilterTimes,
    SupersededBits,
    Unreadable,
)
from tidelog.protocol.compiled import words
from tidelog.protocol.compiled.words import Buffer

try:
    import cython
except ImportError:
    from tidelog.protocol.compiled import uncompiled as cython

IS_COMPILED = cython.compiled
"""Whether this module runs as machine code."""

_PACKED, _CONVERTED = int(BatchState.PACKED), int(BatchState.CONVERTED)
_POISON = int(BatchState.POISON)
_BAD_MAGIC, _BAD_CRC, _BAD_COUNT = int(Unreadable.MAGIC), int(Unreadable.CRC), int(Unreadable.COUNT)
_BAD_RECORDS = int(Unreadable.RECORDS)
_SMALLEST_LEGACY = 14  # crc, magic, attributes, two lengths
_NO_TIMESTAMP = -1
_ENTRY_COLUMNS = 4

Integers = memoryview
"""An array of 64-bit integers; in C an address."""
Bytes = memoryview
"""Bytes that may be written to; in C an address."""


def scan_batches(buffer: Any, limits: tuple[int, int], offsets: tuple[int, int], table: Any) -> tuple[int, int, int]:
    """Describe whole batches in a table; see ``tidelog.cleaner.engine.reference.scan_batches``."""
    position, end = limits
    low, high = offsets
    capacity = len(table)
    held = words.hold(buffer)
    rows = words.hold_writable(table)
    with cython.nogil:
        found, position, claimed = _scan(held.data, position, end, low, high, rows.integers, capacity)
    words.release(rows)
    words.release(held)
    return found, position, claimed


def parse_records(buffer: Any, table: Any, rows: tuple[int, int], keys: Any) -> int:
    """List the keys of batches; see ``tidelog.cleaner.engine.reference.parse_records``."""
    first, end = rows
    held = words.hold(buffer)
    batches = words.hold_writable(table)
    found_keys = words.hold_writable(keys)
    with cython.nogil:
        found = _parse(held.data, batches.integers, first, end, found_keys.integers)
    words.release(found_keys)
    words.release(batches)
    words.release(held)
    return found


def find_control_types(buffer: Any, table: Any, rows: tuple[int, int], types: Any) -> None:
    """Fill ``types`` with the control type of each readable control batch of ``rows``, one slot per row."""
    first, end = rows
    held = words.hold(buffer)
    batches = words.hold(table)
    found = words.hold_writable(types)
    with cython.nogil:
        _find_control_types(held.data, batches.integers, first, end, found.integers)
    words.release(found)
    words.release(batches)
    words.release(held)


def filter_batches(
    buffer: Any,
    table: Any,
    rows: tuple[int, int],
    superseded: SupersededBits,
    times: FilterTimes,
    output: FilterOutput,
    stats: Any,
) -> tuple[int, int, int]:
    """Write the batches that are kept; see ``tidelog.cleaner.engine.reference.filter_batches``."""
    first, end = rows
    superseded_bits, bias = superseded
    now, horizon = times
    out, out_table = output
    work = BatchFilter(bias, now, horizon, len(out_table))
    held = words.hold(buffer)
    batches = words.hold_writable(table)
    bits = words.hold(superseded_bits)
    target = words.hold_writable(out)
    written = words.hold_writable(out_table)
    counted = words.hold_writable(stats)
    work.out_bytes = target.size
    with cython.nogil:
        work.take(held.data, batches.integers, bits.data, target.bytes, written.integers, counted.integers)
        done = work.run(first, end)
    words.release(counted)
    words.release(written)
    words.release(target)
    words.release(bits)
    words.release(batches)
    words.release(held)
    return done, work.target, work.written


def index_entries(out_table: Any, written: int, interval: int, state: Any, entries: Any) -> int:
    """Build index entries; see ``tidelog.cleaner.engine.reference.index_entries``."""
    batches = words.hold(out_table)
    carried = words.hold_writable(state)
    made = words.hold_writable(entries)
    with cython.nogil:
        found = _index_entries(batches.integers, written, interval, carried.integers, made.integers)
    words.release(made)
    words.release(carried)
    words.release(batches)
    return found


# ---- numbers


def _zigzag(raw: int) -> int:
    """Decode the zigzag form of 64 bits."""
    return (raw >> 1) ^ -(raw & 1)


def _to_signed(raw: int) -> int:
    """Return the low 64 bits of ``raw`` as a signed number; in C the types do that."""
    return (raw & words.MAX_INT_64) - (raw & (words.MASK_64 - words.MAX_INT_64))


def _sum(first: int, second: int) -> int:
    """Add two numbers, wrapped to 64 bits, because damaged headers may have any number."""
    raw = first & words.MASK_64
    return _to_signed(raw + (second & words.MASK_64))


def _long_varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """Read a varint of up to 10 bytes: (decoded value, position after it); position -1 if it does not end before
    ``end``.
    """
    raw = 0
    shift = 0
    if end > position + 10:
        end = position + 10
    while position < end:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return _zigzag(raw & words.MASK_64), position
        shift += 7
    return 0, -1


def _varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """Read a varint, those of one and two bytes inline: (decoded value, position after it or -1)."""
    if position + 2 <= end:
        raw = data[position]
        if raw < 0x80:
            return _zigzag(raw), position + 1
        second = data[position + 1]
        if second < 0x80:
            return _zigzag((raw & 0x7F) | (second << 7)), position + 2
    return _long_varint(data, position, end)


# ---- headers of batches


def _scan(
    data: Buffer, position: int, end: int, low: int, high: int, table: Integers, capacity: int
) -> tuple[int, int, int]:
    """See :func:`scan_batches`."""
    found = 0
    while found < capacity and position + LOG_OVERHEAD <= end:
        size = words.load_be_i32(data, position + 8) + LOG_OVERHEAD
        if size < _SMALLEST_LEGACY + LOG_OVERHEAD:
            return found, position, -1
        if position + size > end:
            return found, position, size
        if data[position + 16] == 2 and size < BATCH_OVERHEAD:
            return found, position, -1
        _describe(data, position, size, low, high, table, found * COLUMNS)
        position += size
        found += 1
    return found, position, 0


def _describe(data: Buffer, position: int, size: int, low: int, high: int, table: Integers, row: int) -> None:
    """Fill the row of the batch at ``position``."""
    for column in range(COLUMNS):
        table[row + column] = 0
    table[row + POSITION] = position
    table[row + SIZE] = size
    table[row + BASE_OFFSET] = words.load_be_i64(data, position)
    magic = data[position + 16]
    if magic == 2:
        _fill_header(data, position, size, table, row)
        _check_header(data, position, size, low, high, table, row)
    elif magic < 2:
        table[row + STATE] = _PACKED
        table[row + COUNT] = table[row + PRODUCER_ID] = -1
    else:
        _mark_poison(table, row, _BAD_MAGIC)


def _mark_poison(table: Integers, row: int, reason: int) -> None:
    table[row + STATE] = _POISON
    table[row + REASON] = reason


def _fill_header(data: Buffer, position: int, size: int, table: Integers, row: int) -> None:
    """Fill the columns that a version 2 header holds."""
    table[row + ATTRIBUTES] = words.load_be_u16(data, position + 21)
    table[row + LAST_OFFSET_DELTA] = words.load_be_i32(data, position + 23)
    table[row + BASE_TIMESTAMP] = words.load_be_i64(data, position + 27)
    table[row + MAX_TIMESTAMP] = words.load_be_i64(data, position + 35)
    table[row + PRODUCER_ID] = words.load_be_i64(data, position + 43)
    table[row + PRODUCER_EPOCH] = words.load_be_i16(data, position + 51)
    table[row + COUNT] = words.load_be_i32(data, position + 57)
    table[row + BODY] = position + BATCH_OVERHEAD
    table[row + BODY_SIZE] = size - BATCH_OVERHEAD


def _check_header(data: Buffer, position: int, size: int, low: int, high: int, table: Integers, row: int) -> None:
    """Set STATE and REASON of a version 2 batch by its checksum, offsets and record count."""
    base, delta, count = table[row + BASE_OFFSET], table[row + LAST_OFFSET_DELTA], table[row + COUNT]
    if words.load_be_u32(data, position + 17) != words.crc32c(data, position + 21, size - 21):
        _mark_poison(table, row, _BAD_CRC)
    elif delta < 0 or base < low or base >= high - delta:
        _mark_poison(table, row, _BAD_COUNT)
    elif table[row + ATTRIBUTES] & CODEC_MASK:
        table[row + STATE] = _PACKED
    elif count < 0 or count * SMALLEST_RECORD > size - BATCH_OVERHEAD:
        _mark_poison(table, row, _BAD_COUNT)


# ---- records


def _skip_headers(data: Buffer, position: int, end: int) -> int:
    """Return the position after a record's headers; -1 when malformed."""
    count, position = _varint(data, position, end)
    if position < 0 or count < 0 or count > end - position:
        return -1
    for _ in range(count):
        size, position = _varint(data, position, end)
        if position < 0 or size < 0 or size > end - position:
            return -1
        size, position = _varint(data, position + size, end)
        if position < 0 or size < -1 or size > end - position:  # a header's value may be null, but not its key
            return -1
        position += max(size, 0)
    return position


def _record(data: Buffer, position: int, end: int) -> tuple[int, int, int, int, int, int]:
    """Read a record: (position after it or -1, key position, key size, value size, timestamp and offset delta)."""
    length, position = _varint(data, position, end)
    if position < 0 or length < SMALLEST_RECORD - 1 or length > end - position:
        return -1, 0, 0, 0, 0, 0
    end = position + length
    timestamp_delta, position = _varint(data, position + 1, end)
    if position < 0:
        return -1, 0, 0, 0, 0, 0
    offset_delta, position = _varint(data, position, end)
    if position < 0:
        return -1, 0, 0, 0, 0, 0
    key_size, key = _varint(data, position, end)
    if key < 0 or key_size < -1 or key_size > end - key:
        return -1, 0, 0, 0, 0, 0
    value_size, position = _varint(data, key + max(key_size, 0), end)
    if position < 0 or value_size < -1 or value_size > end - position:
        return -1, 0, 0, 0, 0, 0
    position += max(value_size, 0)
    if position + 1 == end and data[position] == 0:
        return end, key, key_size, value_size, timestamp_delta, offset_delta
    if _skip_headers(data, position, end) != end:
        return -1, 0, 0, 0, 0, 0
    return end, key, key_size, value_size, timestamp_delta, offset_delta


def _parse(data: Buffer, table: Integers, first: int, end: int, keys: Integers) -> int:
    """See :func:`parse_records`."""
    found = 0
    for number in range(first, end):
        row = number * COLUMNS
        if table[row + STATE] == _POISON or table[row + DECISION] & NOT_INDEXED:
            continue
        after = _parse_batch(data, table, row, keys, found)
        if after < 0:
            _mark_poison(table, row, _BAD_RECORDS)
        else:
            found = after
    return found


def _parse_batch(data: Buffer, table: Integers, row: int, keys: Integers, found: int) -> int:
    """List the keys of one batch after the first ``found`` keys; return the new number, -1 when malformed."""
    position = table[row + BODY]
    end = position + table[row + BODY_SIZE]
    last_delta = -1
    last_offset_delta, ordinal = table[row + LAST_OFFSET_DELTA], table[row + ORDINAL]
    for number in range(table[row + COUNT]):
        position, key, key_size, _, _, delta = _record(data, position, end)
        if position < 0 or delta <= last_delta or delta > last_offset_delta:
            return -1
        last_delta = delta
        if key_size >= 0:
            keys[3 * found] = key
            keys[3 * found + 1] = key_size
            keys[3 * found + 2] = ordinal + number
            found += 1
    return found if position == end else -1


def _find_control_types(data: Buffer, table: Integers, first: int, end: int, types: Integers) -> None:
    """See :func:`find_control_types`."""
    for number in range(first, end):
        row = number * COLUMNS
        if table[row + ATTRIBUTES] & CONTROL_MASK and table[row + STATE] != _POISON:
            types[number - first] = _control_type(data, table, row)


def _control_type(data: Buffer, table: Integers, row: int) -> int:
    if table[row + COUNT] == 0:
        return CONTROL_EMPTIED
    body = table[row + BODY]
    end, key, key_size, _, _, _ = _record(data, body, body + table[row + BODY_SIZE])
    if end < 0 or key_size < 4:
        return CONTROL_OTHER
    kind = words.load_be_u16(data, key + 2)
    return CONTROL_ABORT if kind == 0 else CONTROL_COMMIT if kind == 1 else CONTROL_OTHER


# ---- output


def _write_varint(out: Bytes, target: int, value: int) -> int:
    """Write a number as a zigzag varint; return the end."""
    raw = ((value << 1) ^ (value >> 63)) & words.MASK_64
    while raw >= 0x80:
        out[target] = (raw & 0x7F) | 0x80
        raw >>= 7
        target += 1
    out[target] = raw
    return target + 1


def _varint_size(value: int) -> int:
    raw = ((value << 1) ^ (value >> 63)) & words.MASK_64
    size = 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size


def _rebase(out: Bytes, source: int, end: int, target: int, shift: int) -> int:
    """Write the valid records ``out[source:end]`` at ``out[target:]`` with ``shift`` added to timestamp deltas; return
    the end.

    ``target`` lies below ``source`` by at least as many bytes as the records may become longer.
    """
    while source < end:
        length, body = _varint(out, source, end)
        source = body + length
        delta, rest = _varint(out, body + 1, source)
        shifted = _sum(delta, shift)
        target = _write_varint(out, target, 1 + _varint_size(shifted) + source - rest)
        out[target] = out[body]
        target = _write_varint(out, target + 1, shifted)
        words.copy_bytes(out, target, out, rest, source - rest)
        target += source - rest
    return target


def _finish(out: Bytes, start: int, end: int) -> None:
    """Write length and CRC of the batch ``out[start:end]``."""
    words.store_be_u32(out, start + 8, end - start - LOG_OVERHEAD)
    words.store_be_u32(out, start + 17, words.crc32c(out, start + 21, end - start - 21))


class BatchFilter:
    """One call of :func:`filter_batches`: its arrays, and the progress."""

    def __init__(self, bias: int, now: int, horizon: int, out_rows: int) -> None:
        self.bias = bias
        self.now, self.horizon = now, horizon
        self.out_rows = out_rows
        self.out_bytes = 0
        self.target = self.written = 0
        # Counts of the current batch's records: kept, kept tombstones, dropped without a key, dropped old tombstones.
        self.kept = self.tombstones = self.keyless = self.expired = 0
        self.largest = _NO_TIMESTAMP
        # Facts of the current batch by which its records are kept or dropped.
        self.is_control = self.is_expired = False
        self.first_bit = 0

    def take(
        self, data: Buffer, table: Integers, superseded: Buffer, out: Bytes, out_table: Integers, stats: Integers
    ) -> None:
        """Keep the addresses of the arrays, which must stay alive during the call."""
        self.data = data
        self.table = table
        self.superseded = superseded
        self.out = out
        self.out_table = out_table
        self.stats = stats

    def run(self, first: int, end: int) -> int:
        """Write what is kept of the batches ``first`` to ``end``; return the first row that the output cannot take."""
        for number in range(first, end):
            row = number * COLUMNS
            if self.written >= self.out_rows or self.target + self._max_bytes(row) > self.out_bytes:
                return number
            start = self.target
            self.target = self._write(row, start)
            if self.target > start:
                self.written += 1
        return end

    def _max_bytes(self, row: int) -> int:
        """Return the largest number of bytes that a batch may take while it is rewritten."""
        rewritten = BATCH_OVERHEAD + self.table[row + BODY_SIZE] + 20 * max(self.table[row + COUNT], 0) + 20
        return max(self.table[row + SIZE], rewritten)

    def _write(self, row: int, start: int) -> int:
        """Write what is kept of one batch; return the end, which is ``start`` if nothing is kept."""
        if self.table[row + STATE] == _POISON:
            return self._keep_whole(row, start)
        decision, count = self.table[row + DECISION], self.table[row + COUNT]
        self.stats[STAT_RECORDS_READ] += count
        self.kept = self.tombstones = 0
        end = start
        if not decision & DISCARD:
            end = self._copy_kept(row, start + BATCH_OVERHEAD)
            if end < 0:
                _mark_poison(self.table, row, _BAD_RECORDS)
                return self._keep_whole(row, start)
        self.stats[STAT_RECORDS_KEPT] += self.kept
        is_converted = self.table[row + STATE] == _CONVERTED
        if self.kept == 0:
            return self._write_rest(row, start, is_converted)
        self.tombstones += decision & MARKER_OF_EMPTY_TRANSACTION  # it needs a delete horizon like a tombstone
        sets_horizon = self.tombstones > 0 and not self.table[row + ATTRIBUTES] & DELETE_HORIZON_MASK
        if self.kept == count and not sets_horizon and not is_converted:
            return self._keep_whole(row, start)
        self.stats[STAT_BATCHES_CHANGED] += 1
        return self._write_changed(row, start, end, self.horizon if sets_horizon else -1)

    def _write_rest(self, row: int, start: int, is_converted: bool) -> int:
        """Write the header of a batch without records if it has to be kept; return the end."""
        stays = self.table[row + DECISION] & RETAIN_EMPTY
        if stays and self.table[row + COUNT] == 0 and not is_converted:
            return self._keep_whole(row, start)
        self.stats[STAT_BATCHES_CHANGED] += 1
        return self._write_empty(row, start) if stays else start

    def _copy_kept(self, row: int, target: int) -> int:
        """Copy the kept records of a batch to ``out[target:]``, neighbours together; return the end, -1 when malformed.

        It sets ``kept``, ``tombstones`` and ``largest``.
        """
        position = run = self.table[row + BODY]
        end = position + self.table[row + BODY_SIZE]
        last_delta, largest = -1, _NO_TIMESTAMP
        base_timestamp, last_offset_delta = self.table[row + BASE_TIMESTAMP], self.table[row + LAST_OFFSET_DELTA]
        self._begin(row)
        for number in range(self.table[row + COUNT]):
            start = position
            position, _, key_size, value_size, timestamp_delta, delta = _record(self.data, position, end)
            if position < 0 or delta <= last_delta or delta > last_offset_delta:
                return -1
            last_delta = delta
            if self._stays(number, key_size, value_size):
                largest = max(largest, _sum(base_timestamp, timestamp_delta))
                continue
            target = self._copy_run(run, start, target)
            run = position
        if position != end:
            return -1
        self.largest = largest
        self.stats[STAT_KEYLESS] += self.keyless
        self.stats[STAT_TOMBSTONES_DROPPED] += self.expired
        return self._copy_run(run, end, target)

    def _begin(self, row: int) -> None:
        """Set the facts by which a batch's records are kept or dropped, before its first record."""
        attributes = self.table[row + ATTRIBUTES]
        self.is_control = (attributes & CONTROL_MASK) != 0
        self.is_expired = (attributes & DELETE_HORIZON_MASK) != 0 and self.table[row + BASE_TIMESTAMP] <= self.now
        self.first_bit = self.table[row + ORDINAL] - self.bias
        self.keyless = self.expired = 0

    def _stays(self, number: int, key_size: int, value_size: int) -> bool:
        """Return whether a record with these sizes is kept; count it, or the reason why it is dropped."""
        if not self.is_control:
            bit = self.first_bit + number
            if key_size < 0:
                self.keyless += 1
                return False
            if (self.superseded[bit >> 3] >> (bit & 7)) & 1:
                return False
            if value_size < 0 and self.is_expired:
                self.expired += 1
                return False
        self.kept += 1
        self.tombstones += 1 if value_size < 0 else 0
        return True

    def _copy_run(self, start: int, end: int, target: int) -> int:
        """Copy ``data[start:end]`` to ``out[target:]``; return the end of the copy."""
        if end > start:
            words.copy_bytes(self.out, target, self.data, start, end - start)
        return target + end - start

    def _emit(self, row: int, start: int, size: int) -> int:
        """Fill a row of ``out_table`` for a written batch, with record count and timestamp of the batch on disk; return
        the index of the row's first column. The caller changes what differs.
        """
        at = self.written * OUT_COLUMNS
        self.out_table[at + OUT_POSITION], self.out_table[at + OUT_SIZE] = start, size
        self.out_table[at + OUT_LAST_OFFSET] = _sum(self.table[row + BASE_OFFSET], self.table[row + LAST_OFFSET_DELTA])
        self.out_table[at + OUT_MAX_TIMESTAMP] = self.table[row + MAX_TIMESTAMP]
        self.out_table[at + OUT_COUNT] = self.table[row + COUNT]
        self.out_table[at + OUT_CODEC] = self.out_table[at + OUT_CHANGED] = 0
        return at

    def _keep_whole(self, row: int, start: int) -> int:
        """Copy the unchanged bytes of a batch; return the end."""
        size = self.table[row + SIZE]
        words.copy_bytes(self.out, start, self.data, self.table[row + POSITION], size)
        at = self._emit(row, start, size)
        if self.table[row + STATE] == _POISON:
            self.out_table[at + OUT_COUNT] = 0
            self.out_table[at + OUT_LAST_OFFSET] = UNKNOWN_OFFSET
            self.out_table[at + OUT_MAX_TIMESTAMP] = _NO_TIMESTAMP
        return start + size

    def _copy_header(self, row: int, start: int, attributes: int) -> None:
        body = self.table[row + BODY]
        words.copy_bytes(self.out, start, self.data, body - BATCH_OVERHEAD, BATCH_OVERHEAD)
        words.store_be_u16(self.out, start + 21, attributes)

    def _write_empty(self, row: int, start: int) -> int:
        """Write the header of a batch without records, whose last sequence, epoch or offset is still needed; return the
        end."""
        self._copy_header(row, start, self.table[row + ATTRIBUTES] & ~(CODEC_MASK | DELETE_HORIZON_MASK))
        words.store_be_u64(self.out, start + 27, _NO_TIMESTAMP)
        words.store_be_u32(self.out, start + 57, 0)
        _finish(self.out, start, start + BATCH_OVERHEAD)
        at = self._emit(row, start, BATCH_OVERHEAD)
        self.out_table[at + OUT_COUNT], self.out_table[at + OUT_CHANGED] = 0, 1
        return start + BATCH_OVERHEAD

    def _write_changed(self, row: int, start: int, end: int, horizon: int) -> int:
        """Write a header before the kept records ``out[start + 61:end]``; return the end.

        A ``horizon`` that is not negative becomes the batch's delete horizon. It replaces the base timestamp, so the
        records' timestamp deltas are rewritten.
        """
        attributes, largest = self.table[row + ATTRIBUTES], self.largest
        if horizon >= 0:
            # The records are moved up first: a rewritten delta may take 9 bytes more, and the length before it 1.
            gap, body = 10 * self.kept + 10, start + BATCH_OVERHEAD
            words.copy_bytes(self.out, body + gap, self.out, body, end - body)
            shift = _sum(self.table[row + BASE_TIMESTAMP], -horizon)
            end = _rebase(self.out, body + gap, end + gap, body, shift)
            attributes |= DELETE_HORIZON_MASK
        if attributes & TIMESTAMP_TYPE_MASK:
            largest = self.table[row + MAX_TIMESTAMP]
        self._copy_header(row, start, attributes)
        if horizon >= 0:
            words.store_be_u64(self.out, start + 27, horizon)
        words.store_be_u64(self.out, start + 35, largest)
        words.store_be_u32(self.out, start + 57, self.kept)
        at = self._emit(row, start, end - start)
        self.out_table[at + OUT_COUNT], self.out_table[at + OUT_MAX_TIMESTAMP] = self.kept, largest
        self.out_table[at + OUT_CODEC], self.out_table[at + OUT_CHANGED] = attributes & CODEC_MASK, 1
        if not attributes & CODEC_MASK:
            _finish(self.out, start, end)
        return end


def _index_entries(table: Integers, written: int, interval: int, state: Integers, entries: Integers) -> int:
    """See :func:`index_entries`."""
    found = 0
    for number in range(written):
        row = number * OUT_COLUMNS
        if table[row + OUT_MAX_TIMESTAMP] > state[2]:
            state[2], state[3] = table[row + OUT_MAX_TIMESTAMP], table[row + OUT_LAST_OFFSET]
        if state[1] > interval and table[row + OUT_LAST_OFFSET] >= 0:
            entry = found * _ENTRY_COLUMNS
            entries[entry], entries[entry + 1] = table[row + OUT_LAST_OFFSET], state[0]
            entries[entry + 2], entries[entry + 3] = state[2], state[3]
            found += 1
            state[1] = 0
        state[0] += table[row + OUT_SIZE]
        state[1] += table[row + OUT_SIZE]
    return found
