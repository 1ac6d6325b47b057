"""Recovery's walk over a chunk of a segment, compiled: headers, CRC-32C, offsets, and what indices and state need.

``scan`` takes whole magic 2 batches from the front of a chunk as long as each is valid and follows the one before; at
the first that is not (damage, an old format, a full index) it stops, and the plain walk of
``tidelog.log.recovery.segment_recovery`` goes on from there and says what is wrong. So the kernel decides nothing about
damage, and both engines give equal results.

``walk`` (int64) carries the walk from chunk to chunk, one slot per name in ``tidelog.log.recovery.scan_layout``. Out of
a call come:

- index entries as the files hold them (8 and 12 bytes, big-endian), made at the batches where an append makes them;
- a row for each batch that begins a leader epoch, and one for each batch of a producer id.

``needed_rows`` then lists the rows a replay cannot do without: per producer its first, its last five, all control
batches, and the first transactional batch after each of them. Replaying those alone leaves equal state, and a log of
one busy producer costs a handful of rows a chunk instead of one a batch.
"""

from __future__ import annotations

import numpy as np

from tidelog.log.records.intrinsics import (
    ByteArray,
    Integer,
    IntegerArray,
    crc32c,
    kernel,
    load_be_u16,
    load_be_u32,
    load_be_u64,
    signed16,
    signed32,
    store_be_u32,
    store_be_u64,
)
from tidelog.log.recovery.scan_layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    CONSUMED,
    COUNT,
    DELTA,
    EPOCH,
    EPOCH_COUNT,
    INTERVAL,
    LARGEST,
    LARGEST_OFFSET,
    LAST_ENTRY,
    LAST_TIME,
    LATEST_EPOCH,
    MAX_TIMESTAMP,
    NEED_BYTES,
    NEXT_OFFSET,
    NOT_MINE,
    OFFSET_COUNT,
    OFFSET_ROOM,
    POSITION,
    PRODUCER,
    PRODUCER_EPOCH,
    PRODUCER_SLOTS,
    ROW_COLUMNS,
    ROW_COUNT,
    SEGMENT_BASE,
    SEQUENCE,
    SIZE,
    TABLE_FULL,
    TIME_COUNT,
    TIME_ROOM,
)

_HEADER_BYTES = 61
_CONTROL, _TRANSACTIONAL = 0x20, 0x10
_SPREAD = 0x1E3779B97F4A7C15


@kernel
def _add_entries(
    walk: IntegerArray, place: tuple[Integer, Integer], offset_entries: ByteArray, time_entries: ByteArray
) -> Integer:
    """Index entries for the batch of ``place`` (file position, last offset); false when an index has no room."""
    makes_time = walk[LARGEST] > walk[LAST_TIME]
    if walk[OFFSET_ROOM] <= 0 or (makes_time and walk[TIME_ROOM] <= 0):
        return False
    at = 8 * walk[OFFSET_COUNT]
    store_be_u32(offset_entries, at, place[1] - walk[SEGMENT_BASE])
    store_be_u32(offset_entries, at + 4, place[0])
    walk[OFFSET_COUNT] += 1
    walk[OFFSET_ROOM] -= 1
    walk[LAST_ENTRY] = place[0]
    if makes_time:
        at = 12 * walk[TIME_COUNT]
        store_be_u64(time_entries, at, walk[LARGEST])
        store_be_u32(time_entries, at + 8, walk[LARGEST_OFFSET] - walk[SEGMENT_BASE])
        walk[TIME_COUNT] += 1
        walk[TIME_ROOM] -= 1
        walk[LAST_TIME] = walk[LARGEST]
    return True


@kernel
def _add_row(chunk: ByteArray, at: Integer, size: Integer, rows: IntegerArray, number: Integer) -> None:
    row = number * ROW_COLUMNS
    rows[row + POSITION] = at
    rows[row + SIZE] = size
    rows[row + BASE_OFFSET] = np.int64(load_be_u64(chunk, at))
    rows[row + DELTA] = signed32(load_be_u32(chunk, at + 23))
    rows[row + MAX_TIMESTAMP] = np.int64(load_be_u64(chunk, at + 35))
    rows[row + EPOCH] = signed32(load_be_u32(chunk, at + 12))
    rows[row + ATTRIBUTES] = signed16(load_be_u16(chunk, at + 21))
    rows[row + PRODUCER] = np.int64(load_be_u64(chunk, at + 43))
    rows[row + PRODUCER_EPOCH] = signed16(load_be_u16(chunk, at + 51))
    rows[row + SEQUENCE] = signed32(load_be_u32(chunk, at + 53))
    rows[row + COUNT] = signed32(load_be_u32(chunk, at + 57))


@kernel
def _whole_batch(chunk: ByteArray, at: Integer, size: Integer, walk: IntegerArray) -> Integer:
    """The size of the valid batch at ``at``; 0 when it ends behind ``size``, -1 when it is not for the kernel."""
    if at + _HEADER_BYTES > size:
        return np.int64(0)
    if chunk[at + 16] != 2:
        return np.int64(-1)
    length = signed32(load_be_u32(chunk, at + 8))
    base = np.int64(load_be_u64(chunk, at))
    delta = signed32(load_be_u32(chunk, at + 23))
    if length < _HEADER_BYTES - 12 or base < walk[NEXT_OFFSET] or delta < 0:
        return np.int64(-1)
    if base - walk[SEGMENT_BASE] > 0x7FFFFFFF - delta:
        return np.int64(-1)
    if at + 12 + length > size:
        return np.int64(0)
    if np.int64(load_be_u32(chunk, at + 17)) != crc32c(chunk, at + 21, length + 12 - 21):
        return np.int64(-1)
    return length + 12


@kernel
def _note_epoch(epoch: Integer, base_offset: Integer, walk: IntegerArray, epochs: IntegerArray) -> None:
    """A later leader epoch than any before begins with this batch."""
    if epoch > walk[LATEST_EPOCH]:
        walk[LATEST_EPOCH] = epoch
        epochs[2 * walk[EPOCH_COUNT]], epochs[2 * walk[EPOCH_COUNT] + 1] = epoch, base_offset
        walk[EPOCH_COUNT] += 1


@kernel
def _has_room(
    walk: IntegerArray, offset_entries: ByteArray, time_entries: ByteArray, epochs: IntegerArray, rows: IntegerArray
) -> Integer:
    """Whether the tables take what one more batch may add."""
    if 8 * walk[OFFSET_COUNT] >= len(offset_entries) or 12 * walk[TIME_COUNT] >= len(time_entries):
        return False
    return 2 * walk[EPOCH_COUNT] < len(epochs) and ROW_COLUMNS * walk[ROW_COUNT] < len(rows)


@kernel
def scan(
    chunk: ByteArray,
    bounds: tuple[Integer, Integer, Integer],
    walk: IntegerArray,
    offset_entries: ByteArray,
    time_entries: ByteArray,
    epochs: IntegerArray,
    rows: IntegerArray,
) -> Integer:
    """See the module. ``bounds``: where in the chunk to begin, its size, the file position of its first byte. Counts
    in ``walk`` start from 0 at each call; CONSUMED is where the next call goes on. No GIL; any thread."""
    at, size, file_position = bounds
    walk[OFFSET_COUNT] = walk[TIME_COUNT] = walk[EPOCH_COUNT] = walk[ROW_COUNT] = 0
    status = TABLE_FULL
    while _has_room(walk, offset_entries, time_entries, epochs, rows):
        batch = _whole_batch(chunk, at, size, walk)
        if batch <= 0:
            status = NEED_BYTES if batch == 0 else NOT_MINE
            break
        base, max_timestamp = np.int64(load_be_u64(chunk, at)), np.int64(load_be_u64(chunk, at + 35))
        last_offset = base + signed32(load_be_u32(chunk, at + 23))
        largest, largest_offset = walk[LARGEST], walk[LARGEST_OFFSET]
        if max_timestamp > largest:
            walk[LARGEST], walk[LARGEST_OFFSET] = max_timestamp, last_offset
        is_due = file_position + at - walk[LAST_ENTRY] > walk[INTERVAL]
        if is_due and not _add_entries(walk, (file_position + at, last_offset), offset_entries, time_entries):
            walk[LARGEST], walk[LARGEST_OFFSET] = largest, largest_offset
            status = NOT_MINE
            break
        _note_epoch(signed32(load_be_u32(chunk, at + 12)), base, walk, epochs)
        if np.int64(load_be_u64(chunk, at + 43)) >= 0:
            _add_row(chunk, at, batch, rows, walk[ROW_COUNT])
            walk[ROW_COUNT] += 1
        walk[NEXT_OFFSET], at = last_offset + 1, at + batch
    walk[CONSUMED] = at
    return status


@kernel
def _slot(producers: IntegerArray, producer_id: Integer) -> Integer:
    """The producer's slot, or the free one it belongs in."""
    slot = ((producer_id * _SPREAD) >> 40) & (PRODUCER_SLOTS - 1)
    while producers[slot] >= 0 and producers[slot] != producer_id:
        slot = (slot + 1) & (PRODUCER_SLOTS - 1)
    return slot


@kernel
def _needed_forwards(
    rows: IntegerArray, count: Integer, producers: IntegerArray, in_transaction: ByteArray, needed: IntegerArray
) -> None:
    """Mark each producer's first row, its control batches and the first batch of each transaction."""
    for number in range(count):
        producer, attributes = rows[number * ROW_COLUMNS + PRODUCER], rows[number * ROW_COLUMNS + ATTRIBUTES]
        slot = _slot(producers, producer)
        is_first = producers[slot] < 0
        producers[slot] = producer
        needed[number] = 1 if is_first or attributes & _CONTROL else 0
        if attributes & _CONTROL:
            in_transaction[slot] = 0
        elif attributes & _TRANSACTIONAL and not in_transaction[slot]:
            in_transaction[slot] = 1
            needed[number] = 1


@kernel
def needed_rows(
    rows: IntegerArray, count: Integer, producers: IntegerArray, marks: ByteArray, needed: IntegerArray
) -> Integer:
    """List the rows a replay needs, ascending, in ``needed``; returns how many. ``count`` <= PRODUCER_ROWS.

    ``producers`` and ``marks``: scratch of PRODUCER_SLOTS items.
    """
    producers[:] = -1
    marks[:] = 0
    _needed_forwards(rows, count, producers, marks, needed)
    marks[:] = 0
    for number in range(count - 1, -1, -1):
        slot = _slot(producers, rows[number * ROW_COLUMNS + PRODUCER])
        if marks[slot] < 5 and not rows[number * ROW_COLUMNS + ATTRIBUTES] & _CONTROL:
            marks[slot] += 1
            needed[number] = 1
    found = 0
    for number in range(count):
        if needed[number]:
            needed[found] = number
            found += 1
    return found
