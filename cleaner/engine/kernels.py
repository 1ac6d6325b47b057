"""Compiled loops of the cleaner over batches and records; ``tidelog.cleaner.engine.reference`` is the plain form.

- ``scan_batches`` frames a chunk into a batch table and checks lengths, magic and CRC;
- ``parse_records`` lists the keys of the table's readable batches, ready to be hashed;
- ``filter_batches`` writes what stays: whole batches as they are, changed ones with their kept records copied in runs.

Every record is walked by ``_record``, which checks all its lengths against the record and the record against the
batch; a batch where that fails becomes POISON and is kept as bytes. Positions never leave the buffer: headers are read
only after the batch was found to lie within the chunk, and varints stop at the end of the batch.
Functions are short for the reader and inlined by the compiler.
"""

from __future__ import annotations

import numpy as np

from tidelog.cleaner.engine.batch_table import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    BATCH_OVERHEAD,
    BODY,
    BODY_SIZE,
    CODEC_MASK,
    CONTROL_MASK,
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
    BatchState,
    Unreadable,
)
from tidelog.log.records.intrinsics import (
    ByteArray,
    Integer,
    IntegerArray,
    copy_bytes,
    crc32c,
    kernel,
    load_be_u16,
    load_be_u32,
    load_be_u64,
    signed32,
    store_be_u32,
    store_be_u64,
)

_PLAIN, _PACKED = int(BatchState.PLAIN), int(BatchState.PACKED)
_EXPANDED, _CONVERTED = int(BatchState.EXPANDED), int(BatchState.CONVERTED)
_POISON = int(BatchState.POISON)
_BAD_MAGIC, _BAD_CRC, _BAD_COUNT = int(Unreadable.MAGIC), int(Unreadable.CRC), int(Unreadable.COUNT)
_BAD_RECORDS, _BAD_LENGTH = int(Unreadable.RECORDS), int(Unreadable.LENGTH)
_SMALLEST_V2 = BATCH_OVERHEAD - LOG_OVERHEAD
_SMALLEST_LEGACY = 14  # crc, magic, attributes, two lengths
_NO_TIMESTAMP = -1


@kernel
def _header(buffer: ByteArray, position: Integer, table: IntegerArray, row: Integer) -> None:
    """Fill the columns that a version 2 header holds."""
    table[row, ATTRIBUTES] = load_be_u16(buffer, position + 21)
    table[row, LAST_OFFSET_DELTA] = signed32(load_be_u32(buffer, position + 23))
    table[row, BASE_TIMESTAMP] = np.int64(load_be_u64(buffer, position + 27))
    table[row, MAX_TIMESTAMP] = np.int64(load_be_u64(buffer, position + 35))
    table[row, PRODUCER_ID] = np.int64(load_be_u64(buffer, position + 43))
    table[row, PRODUCER_EPOCH] = np.int64(np.int16(load_be_u16(buffer, position + 51)))
    table[row, COUNT] = signed32(load_be_u32(buffer, position + 57))
    table[row, BODY] = position + BATCH_OVERHEAD
    table[row, BODY_SIZE] = table[row, SIZE] - BATCH_OVERHEAD


@kernel
def _check_header(buffer: ByteArray, table: IntegerArray, row: Integer, low: Integer, high: Integer) -> None:
    """Set STATE and REASON of a version 2 batch from its checksum and plausibility."""
    position, size = table[row, POSITION], table[row, SIZE]
    last_offset = table[row, BASE_OFFSET] + table[row, LAST_OFFSET_DELTA]
    if np.int64(load_be_u32(buffer, position + 17)) != crc32c(buffer, position + 21, size - 21):
        table[row, STATE], table[row, REASON] = _POISON, _BAD_CRC
    elif table[row, BASE_OFFSET] < low or last_offset >= high or table[row, LAST_OFFSET_DELTA] < 0:
        table[row, STATE], table[row, REASON] = _POISON, _BAD_COUNT
    elif table[row, ATTRIBUTES] & CODEC_MASK:
        table[row, STATE] = _PACKED
    elif table[row, COUNT] < 0 or table[row, COUNT] * SMALLEST_RECORD > table[row, BODY_SIZE]:
        table[row, STATE], table[row, REASON] = _POISON, _BAD_COUNT


@kernel
def scan_batches(
    buffer: ByteArray, limits: tuple[Integer, Integer], offsets: tuple[Integer, Integer], table: IntegerArray
) -> tuple[Integer, Integer, Integer]:
    """Describe the whole batches in ``buffer[limits[0]:limits[1]]``.

    ``offsets``: lowest base offset and lowest offset beyond the segment; a batch outside is POISON (its base offset
    is not covered by the CRC). Returns (rows, position behind the last of them, the size the next batch claims: 0 when
    fewer than 12 bytes are left or the table is full, negative when no batch can have that size).
    """
    position, end = limits
    row = 0
    while row < len(table) and position + LOG_OVERHEAD <= end:
        length = signed32(load_be_u32(buffer, position + 8))
        if length < _SMALLEST_LEGACY:
            return row, position, -1
        size = length + LOG_OVERHEAD
        if position + size > end:
            return row, position, size
        table[row] = 0
        table[row, POSITION], table[row, SIZE] = position, size
        table[row, BASE_OFFSET] = np.int64(load_be_u64(buffer, position))
        magic = np.int8(buffer[position + 16])
        if magic == 2 and length < _SMALLEST_V2:
            return row, position, -1
        if magic == 2:
            _header(buffer, position, table, row)
            _check_header(buffer, table, row, offsets[0], offsets[1])
        elif magic == 0 or magic == 1:
            table[row, STATE], table[row, COUNT] = _PACKED, -1
            table[row, PRODUCER_ID] = -1
        else:
            table[row, STATE], table[row, REASON] = _POISON, _BAD_MAGIC
        position += size
        row += 1
    return row, position, 0


@kernel
def _varint(buffer: ByteArray, position: Integer, end: Integer) -> tuple[Integer, Integer]:
    """(zigzag value, position behind it); position -1 when it runs over ``end`` or 10 bytes."""
    if position >= end:
        return 0, -1
    byte = np.uint64(buffer[position])
    position += 1
    if byte < 0x80:
        return np.int64(byte >> np.uint64(1)) ^ -np.int64(byte & np.uint64(1)), position
    value = byte & np.uint64(0x7F)
    shift = np.uint64(7)
    while position < end and shift < np.uint64(70):
        byte = np.uint64(buffer[position])
        position += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < 0x80:
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), position
        shift += np.uint64(7)
    return 0, -1


@kernel
def _skip_headers(buffer: ByteArray, position: Integer, end: Integer) -> Integer:
    """Position behind a record's headers, or -1."""
    count, position = _varint(buffer, position, end)
    if position < 0 or count < 0 or count > end - position:
        return -1
    for _ in range(count):
        for least in (0, -1):  # a header's key may not be null, its value may
            size, position = _varint(buffer, position, end)
            if position < 0 or size < least or size > end - position:
                return -1
            position += max(size, 0)
    return position


@kernel
def _record(
    buffer: ByteArray, position: Integer, end: Integer
) -> tuple[Integer, Integer, Integer, Integer, Integer, Integer]:
    """Walk one record: (position behind it or -1, key position, key size, value size, timestamp and offset delta)."""
    bad = (-1, 0, 0, 0, 0, 0)
    length, position = _varint(buffer, position, end)
    if position < 0 or length < SMALLEST_RECORD - 1 or length > end - position:
        return bad
    end = position + length
    timestamp_delta, position = _varint(buffer, position + 1, end)
    if position < 0:
        return bad
    offset_delta, position = _varint(buffer, position, end)
    if position < 0:
        return bad
    key_size, key = _varint(buffer, position, end)
    if key < 0 or key_size < -1 or key_size > end - key:
        return bad
    value_size, position = _varint(buffer, key + max(key_size, 0), end)
    if position < 0 or value_size < -1 or value_size > end - position:
        return bad
    position = _skip_headers(buffer, position + max(value_size, 0), end)
    if position != end:
        return bad
    return end, key, key_size, value_size, timestamp_delta, offset_delta


@kernel
def parse_records(buffer: ByteArray, table: IntegerArray, rows: tuple[Integer, Integer], keys: IntegerArray) -> Integer:
    """List the keyed records of the indexed batches of ``rows``: (key position, key size, ordinal) into ``keys``.

    Returns how many. A batch that does not parse becomes POISON and adds none.
    """
    found = 0
    for row in range(rows[0], rows[1]):
        if table[row, STATE] == _POISON or table[row, DECISION] & NOT_INDEXED:
            continue
        before, position = found, table[row, BODY]
        end = position + table[row, BODY_SIZE]
        last_delta = -1
        for number in range(table[row, COUNT]):
            position, key, key_size, _, _, delta = _record(buffer, position, end)
            if position < 0 or delta <= last_delta or delta > table[row, LAST_OFFSET_DELTA]:
                position = -1
                break
            last_delta = delta
            if key_size >= 0:
                keys[found, 0], keys[found, 1], keys[found, 2] = key, key_size, table[row, ORDINAL] + number
                found += 1
        if position != end:
            table[row, STATE], table[row, REASON] = _POISON, _BAD_RECORDS
            found = before
    return found


@kernel
def _stays(
    table: IntegerArray,
    row: Integer,
    sizes: tuple[Integer, Integer],
    superseded: Integer,
    clock: tuple[Integer, Integer],
    stats: IntegerArray,
) -> bool:
    """Whether a record with these key and value sizes is kept; counts why not."""
    if table[row, ATTRIBUTES] & CONTROL_MASK:
        return True
    if sizes[0] < 0:
        stats[STAT_KEYLESS] += 1
        return False
    if superseded:
        return False
    expired = table[row, ATTRIBUTES] & DELETE_HORIZON_MASK and table[row, BASE_TIMESTAMP] <= clock[0]
    if sizes[1] < 0 and expired:
        stats[STAT_TOMBSTONES_DROPPED] += 1
        return False
    return True


@kernel
def _copy_run(buffer: ByteArray, start: Integer, end: Integer, out: ByteArray, target: Integer) -> Integer:
    """Copy ``buffer[start:end]`` to ``out[target:]``; returns the end there."""
    if end > start:
        copy_bytes(out, target, buffer, start, end - start)
        target += end - start
    return target


@kernel
def _copy_kept(
    buffer: ByteArray,
    table: IntegerArray,
    row: Integer,
    superseded: ByteArray,
    bias: Integer,
    clock: tuple[Integer, Integer],
    out: ByteArray,
    target: Integer,
    stats: IntegerArray,
) -> tuple[Integer, Integer, Integer, Integer]:
    """Copy the kept records of one batch to ``out[target:]`` in runs.

    Returns (position behind them or -1 when the batch does not parse, records kept, tombstones kept, largest
    timestamp kept).
    """
    kept, tombstones, largest = 0, 0, np.int64(_NO_TIMESTAMP)
    position = run = table[row, BODY]
    end = position + table[row, BODY_SIZE]
    last_delta = -1
    base_timestamp = table[row, BASE_TIMESTAMP]
    for number in range(table[row, COUNT]):
        start = position
        position, _, key_size, value_size, timestamp_delta, delta = _record(buffer, position, end)
        if position < 0 or delta <= last_delta or delta > table[row, LAST_OFFSET_DELTA]:
            return -1, 0, 0, 0
        last_delta = delta
        bit = table[row, ORDINAL] + number - bias
        dropped = np.int64(superseded[bit >> 3] >> (bit & 7)) & 1
        if _stays(table, row, (key_size, value_size), dropped, clock, stats):
            kept += 1
            tombstones += value_size < 0
            largest = max(largest, base_timestamp + timestamp_delta)
            continue
        target = _copy_run(buffer, run, start, out, target)
        run = position
    if position != end:
        return -1, 0, 0, 0
    return _copy_run(buffer, run, end, out, target), kept, tombstones, largest


@kernel
def _write_varint(out: ByteArray, target: Integer, value: Integer) -> Integer:
    coded = np.uint64(value << 1) ^ np.uint64(value >> 63)
    while coded >= np.uint64(0x80):
        out[target] = np.uint8(coded & np.uint64(0x7F)) | np.uint8(0x80)
        coded >>= np.uint64(7)
        target += 1
    out[target] = np.uint8(coded)
    return target + 1


@kernel
def _varint_size(value: Integer) -> Integer:
    coded = np.uint64(value << 1) ^ np.uint64(value >> 63)
    size = 1
    while coded >= np.uint64(0x80):
        coded >>= np.uint64(7)
        size += 1
    return size


@kernel
def _rebase(out: ByteArray, source: Integer, end: Integer, target: Integer, shift: Integer) -> Integer:
    """Rewrite the valid records ``out[source:end]`` at ``out[target:]`` with ``shift`` added to timestamp deltas.

    ``target`` lies below ``source`` by at least what the rewritten records may grow. Returns the end.
    """
    while source < end:
        length, body = _varint(out, source, end)
        source = body + length
        delta, rest = _varint(out, body + 1, source)
        shifted = delta + shift
        target = _write_varint(out, target, 1 + _varint_size(shifted) + source - rest)
        out[target] = out[body]
        target = _write_varint(out, target + 1, shifted)
        for position in range(rest, source):  # may overlap, moves down
            out[target + position - rest] = out[position]
        target += source - rest
    return target


@kernel
def _finish(out: ByteArray, start: Integer, end: Integer) -> None:
    """Length and CRC of the batch ``out[start:end]``."""
    store_be_u32(out, start + 8, end - start - LOG_OVERHEAD)
    store_be_u32(out, start + 17, crc32c(out, start + 21, end - start - 21))


@kernel
def _write_attributes(out: ByteArray, start: Integer, attributes: Integer) -> None:
    out[start + 21], out[start + 22] = np.uint8(attributes >> 8), np.uint8(attributes & 0xFF)


@kernel
def _emit(
    out_table: IntegerArray, written: Integer, table: IntegerArray, row: Integer, span: tuple[Integer, Integer]
) -> None:
    """Describe one written batch; count, timestamp and codec are those on disk unless changed later."""
    out_table[written, OUT_POSITION], out_table[written, OUT_SIZE] = span[0], span[1]
    out_table[written, OUT_LAST_OFFSET] = table[row, BASE_OFFSET] + table[row, LAST_OFFSET_DELTA]
    out_table[written, OUT_MAX_TIMESTAMP] = table[row, MAX_TIMESTAMP]
    out_table[written, OUT_COUNT] = table[row, COUNT]
    out_table[written, OUT_CODEC] = 0
    out_table[written, OUT_CHANGED] = 0


@kernel
def _keep_whole(
    buffer: ByteArray,
    table: IntegerArray,
    row: Integer,
    out: ByteArray,
    start: Integer,
    out_table: IntegerArray,
    written: int,
) -> Integer:
    """Copy a batch as the bytes it is on disk; returns the end."""
    size = table[row, SIZE]
    copy_bytes(out, start, buffer, table[row, POSITION], size)
    _emit(out_table, written, table, row, (start, size))
    if table[row, STATE] == _POISON:
        out_table[written, OUT_COUNT] = 0
        out_table[written, OUT_MAX_TIMESTAMP] = _NO_TIMESTAMP
    return start + size


@kernel
def _write_empty(
    buffer: ByteArray,
    table: IntegerArray,
    row: Integer,
    out: ByteArray,
    start: Integer,
    out_table: IntegerArray,
    written: int,
) -> Integer:
    """Write the header of an emptied batch (its last sequence and offset matter still); returns the end."""
    copy_bytes(out, start, buffer, table[row, BODY] - BATCH_OVERHEAD, BATCH_OVERHEAD)
    _write_attributes(out, start, table[row, ATTRIBUTES] & ~(CODEC_MASK | DELETE_HORIZON_MASK))
    store_be_u64(out, start + 27, np.int64(_NO_TIMESTAMP))
    store_be_u32(out, start + 57, np.int64(0))
    _finish(out, start, start + BATCH_OVERHEAD)
    _emit(out_table, written, table, row, (start, BATCH_OVERHEAD))
    out_table[written, OUT_COUNT], out_table[written, OUT_CHANGED] = 0, 1
    return start + BATCH_OVERHEAD


@kernel
def _write_changed(
    buffer: ByteArray,
    table: IntegerArray,
    row: Integer,
    out: ByteArray,
    span: tuple[Integer, Integer],
    kept: tuple[Integer, Integer, Integer],
    out_table: IntegerArray,
    written: Integer,
) -> Integer:
    """Header before the kept records ``out[span[0] + 61:span[1]]``; rebases them on a new delete horizon.

    ``kept``: records, largest timestamp, new delete horizon or -1. Returns the end.
    """
    (start, end), (count, largest, horizon) = span, kept
    attributes = table[row, ATTRIBUTES]
    copy_bytes(out, start, buffer, table[row, BODY] - BATCH_OVERHEAD, BATCH_OVERHEAD)
    if horizon >= 0:
        # Make room below: a delta may grow by 9 bytes and the length before it by 1.
        room = 10 * count + 10
        for position in range(end - 1, start + BATCH_OVERHEAD - 1, -1):
            out[position + room] = out[position]
        shift = table[row, BASE_TIMESTAMP] - horizon
        end = _rebase(out, start + BATCH_OVERHEAD + room, end + room, start + BATCH_OVERHEAD, shift)
        attributes |= DELETE_HORIZON_MASK
        store_be_u64(out, start + 27, horizon)
    if attributes & TIMESTAMP_TYPE_MASK:
        largest = table[row, MAX_TIMESTAMP]
    _write_attributes(out, start, attributes)
    store_be_u64(out, start + 35, largest)
    store_be_u32(out, start + 57, count)
    _emit(out_table, written, table, row, (start, end - start))
    out_table[written, OUT_COUNT], out_table[written, OUT_MAX_TIMESTAMP] = count, largest
    out_table[written, OUT_CODEC], out_table[written, OUT_CHANGED] = attributes & CODEC_MASK, 1
    if not attributes & CODEC_MASK:
        _finish(out, start, end)
    return end


@kernel
def _filter_batch(
    buffer: ByteArray,
    table: IntegerArray,
    row: Integer,
    superseded: ByteArray,
    bias: Integer,
    clock: tuple[Integer, Integer],
    out: ByteArray,
    start: Integer,
    out_table: IntegerArray,
    written: Integer,
    stats: IntegerArray,
) -> Integer:
    """Write what stays of one readable batch; returns the end, ``start`` when nothing stays."""
    decision, attributes, kept = table[row, DECISION], table[row, ATTRIBUTES], 0
    end, tombstones, largest = start, 0, _NO_TIMESTAMP
    stats[STAT_RECORDS_READ] += table[row, COUNT]
    keyless, expired = stats[STAT_KEYLESS], stats[STAT_TOMBSTONES_DROPPED]
    if not decision & DISCARD:
        end, kept, tombstones, largest = _copy_kept(
            buffer, table, row, superseded, bias, clock, out, start + BATCH_OVERHEAD, stats
        )
        if end < 0:
            stats[STAT_KEYLESS], stats[STAT_TOMBSTONES_DROPPED] = keyless, expired
            table[row, STATE], table[row, REASON] = _POISON, _BAD_RECORDS
            return _keep_whole(buffer, table, row, out, start, out_table, written)
    stats[STAT_RECORDS_KEPT] += kept
    if kept == 0 and decision & RETAIN_EMPTY and table[row, COUNT] == 0 and table[row, STATE] != _CONVERTED:
        return _keep_whole(buffer, table, row, out, start, out_table, written)
    if kept == 0:
        stats[STAT_BATCHES_CHANGED] += 1
        return _write_empty(buffer, table, row, out, start, out_table, written) if decision & RETAIN_EMPTY else start
    tombstones += decision & MARKER_OF_EMPTY_TRANSACTION
    horizon = clock[1] if tombstones and not attributes & DELETE_HORIZON_MASK else -1
    if kept == table[row, COUNT] and horizon < 0 and table[row, STATE] != _CONVERTED:
        return _keep_whole(buffer, table, row, out, start, out_table, written)
    stats[STAT_BATCHES_CHANGED] += 1
    return _write_changed(buffer, table, row, out, (start, end), (kept, largest, horizon), out_table, written)


@kernel
def filter_batches(
    buffer: ByteArray,
    table: IntegerArray,
    rows: tuple[Integer, Integer],
    superseded: ByteArray,
    bias: Integer,
    clock: tuple[Integer, Integer],
    out: ByteArray,
    out_table: IntegerArray,
    stats: IntegerArray,
) -> tuple[Integer, Integer, Integer]:
    """Write what stays of the batches of ``rows`` to ``out`` from its start, one row of ``out_table`` per batch.

    ``superseded``: bit (ordinal - ``bias``) is set when a later record has the same key. ``clock``: now and the delete
    horizon that tombstones get on first sight, in ms. Returns (first row not done for want of room, bytes written,
    batches written).
    """
    target, written = 0, 0
    for row in range(rows[0], rows[1]):
        size = max(table[row, SIZE], BATCH_OVERHEAD + table[row, BODY_SIZE] + 20 * max(table[row, COUNT], 0) + 20)
        if written >= len(out_table) or target + size > len(out):
            return row, target, written
        end = target
        if table[row, STATE] == _POISON:
            end = _keep_whole(buffer, table, row, out, target, out_table, written)
        elif table[row, DECISION] & DISCARD == 0 or table[row, DECISION] & RETAIN_EMPTY:
            end = _filter_batch(buffer, table, row, superseded, bias, clock, out, target, out_table, written, stats)
        else:
            stats[STAT_RECORDS_READ] += table[row, COUNT]
            stats[STAT_BATCHES_CHANGED] += 1
        written += end > target
        target = end
    return rows[1], target, written


@kernel
def index_entries(
    out_table: IntegerArray, written: Integer, interval: Integer, state: IntegerArray, entries: IntegerArray
) -> Integer:
    """Where index entries belong among the written batches, as an append one by one would place them.

    ``state``: position, bytes since the last entry, largest timestamp so far and the offset that has it; carried from
    call to call. ``entries``: (last offset, position, largest timestamp, its offset). Returns how many.
    """
    found = 0
    for row in range(written):
        if out_table[row, OUT_MAX_TIMESTAMP] > state[2]:
            state[2], state[3] = out_table[row, OUT_MAX_TIMESTAMP], out_table[row, OUT_LAST_OFFSET]
        if state[1] > interval:
            entries[found, 0], entries[found, 1] = out_table[row, OUT_LAST_OFFSET], state[0]
            entries[found, 2], entries[found, 3] = state[2], state[3]
            found += 1
            state[1] = 0
        state[0] += out_table[row, OUT_SIZE]
        state[1] += out_table[row, OUT_SIZE]
    return found
