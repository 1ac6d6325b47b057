"""Recovery's walk over a chunk of a segment, compiled: headers, CRC-32C, offsets, and what indices and state need.

``scan`` takes whole magic 2 batches from the front of a chunk as long as each is valid and follows the one before; at
the first that is not (damage, an old format, a full index) it stops, and the plain walk of ``log.recovery`` goes on
from there and says what is wrong. So the kernel decides nothing about damage, and both engines give equal results.

``walk`` (int64) carries the walk from chunk to chunk, one slot per name below. What comes out per call:

- index entries as the files hold them (8 and 12 bytes, big-endian), made at the batches where an append makes them;
- a row for each batch that begins a leader epoch, and one for each batch of a producer id (columns below).

``needed_rows`` then marks the rows a replay cannot do without: per producer its first, its last five, all control
batches, and the first transactional batch after each of them. Replaying those alone leaves equal state, and a log of
one busy producer costs a handful of rows a chunk instead of one a batch.
"""

from __future__ import annotations

import numpy as np

from log.records.intrinsics import (
    ByteArray,
    Integer,
    IntegerArray,
    crc32c,
    kernel,
    load_be_u16,
    load_be_u32,
    load_be_u64,
    store_be_u32,
    store_be_u64,
)

#: Slots of ``walk``.
SEGMENT_BASE, INTERVAL, NEXT_OFFSET, LAST_ENTRY, LARGEST, LARGEST_OFFSET, LAST_TIME, LATEST_EPOCH = range(8)
OFFSET_ROOM, TIME_ROOM, OFFSET_COUNT, TIME_COUNT, EPOCH_COUNT, ROW_COUNT, CONSUMED = range(8, 15)
WALK_SLOTS = 15

#: Columns of a producer row.
POSITION, SIZE, BASE_OFFSET, DELTA, MAX_TIMESTAMP, EPOCH, ATTRIBUTES, PRODUCER, PRODUCER_EPOCH, SEQUENCE, COUNT = range(
    11
)
ROW_COLUMNS = 11

#: Why ``scan`` came back: the chunk ends within a batch; an output table is full (call again behind CONSUMED); the
#: batch at CONSUMED is not for the kernel.
NEED_BYTES, TABLE_FULL, NOT_MINE = range(3)

_HEADER_BYTES = 61
_CONTROL, _TRANSACTIONAL = 0x20, 0x10
#: Slots of the producer table: twice the rows of a call, so that probes stay short.
PRODUCER_ROWS = 8192
_TABLE_SLOTS = 2 * PRODUCER_ROWS
_SPREAD = 0x1E3779B97F4A7C15


@kernel
def _signed32(word: Integer) -> Integer:
    return np.int64(np.int32(np.uint32(word)))


@kernel
def _signed16(word: Integer) -> Integer:
    return np.int64(np.int16(np.uint16(word)))


@kernel
def _add_entries(
    walk: IntegerArray, place: IntegerArray, offset_entries: ByteArray, time_entries: ByteArray
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
    row = rows[number]
    row[POSITION] = at
    row[SIZE] = size
    row[BASE_OFFSET] = np.int64(load_be_u64(chunk, at))
    row[DELTA] = _signed32(load_be_u32(chunk, at + 23))
    row[MAX_TIMESTAMP] = np.int64(load_be_u64(chunk, at + 35))
    row[EPOCH] = _signed32(load_be_u32(chunk, at + 12))
    row[ATTRIBUTES] = _signed16(load_be_u16(chunk, at + 21))
    row[PRODUCER] = np.int64(load_be_u64(chunk, at + 43))
    row[PRODUCER_EPOCH] = _signed16(load_be_u16(chunk, at + 51))
    row[SEQUENCE] = _signed32(load_be_u32(chunk, at + 53))
    row[COUNT] = _signed32(load_be_u32(chunk, at + 57))


@kernel
def _whole_batch(chunk: ByteArray, at: Integer, size: Integer, walk: IntegerArray) -> Integer:
    """The size of the valid batch at ``at``; 0 when it ends behind ``size``, -1 when it is not for the kernel."""
    if at + _HEADER_BYTES > size:
        return np.int64(0)
    if chunk[at + 16] != 2:
        return np.int64(-1)
    length = _signed32(load_be_u32(chunk, at + 8))
    base = np.int64(load_be_u64(chunk, at))
    delta = _signed32(load_be_u32(chunk, at + 23))
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
        epochs[walk[EPOCH_COUNT], 0], epochs[walk[EPOCH_COUNT], 1] = epoch, base_offset
        walk[EPOCH_COUNT] += 1


@kernel
def scan(
    chunk: ByteArray,
    bounds: IntegerArray,
    walk: IntegerArray,
    offset_entries: ByteArray,
    time_entries: ByteArray,
    epochs: IntegerArray,
    rows: IntegerArray,
) -> Integer:
    """See the module. ``bounds``: where in the chunk to begin, its size, the file position of its first byte. Counts
    in ``walk`` start from 0 at each call; CONSUMED is where the next call goes on. No GIL; any thread."""
    at, size, file_position = bounds[0], bounds[1], bounds[2]
    walk[OFFSET_COUNT] = walk[TIME_COUNT] = walk[EPOCH_COUNT] = walk[ROW_COUNT] = 0
    place = np.empty(2, np.int64)
    status = TABLE_FULL
    while walk[ROW_COUNT] < len(rows) and walk[EPOCH_COUNT] < len(epochs) and 12 * walk[TIME_COUNT] < len(time_entries):
        if 8 * walk[OFFSET_COUNT] >= len(offset_entries):
            break
        batch = _whole_batch(chunk, at, size, walk)
        if batch <= 0:
            status = NEED_BYTES if batch == 0 else NOT_MINE
            break
        base, max_timestamp = np.int64(load_be_u64(chunk, at)), np.int64(load_be_u64(chunk, at + 35))
        last_offset = base + _signed32(load_be_u32(chunk, at + 23))
        largest, largest_offset = walk[LARGEST], walk[LARGEST_OFFSET]
        if max_timestamp > largest:
            walk[LARGEST], walk[LARGEST_OFFSET] = max_timestamp, last_offset
        if file_position + at - walk[LAST_ENTRY] > walk[INTERVAL]:
            place[0], place[1] = file_position + at, last_offset
            if not _add_entries(walk, place, offset_entries, time_entries):
                walk[LARGEST], walk[LARGEST_OFFSET] = largest, largest_offset
                status = NOT_MINE
                break
        _note_epoch(_signed32(load_be_u32(chunk, at + 12)), base, walk, epochs)
        if np.int64(load_be_u64(chunk, at + 43)) >= 0:
            _add_row(chunk, at, batch, rows, walk[ROW_COUNT])
            walk[ROW_COUNT] += 1
        walk[NEXT_OFFSET], at = last_offset + 1, at + batch
    walk[CONSUMED] = at
    return status


@kernel
def _slot(producers: IntegerArray, producer_id: Integer) -> Integer:
    """The producer's slot, or the free one it belongs in."""
    slot = ((producer_id * _SPREAD) >> 40) & (_TABLE_SLOTS - 1)
    while producers[slot] >= 0 and producers[slot] != producer_id:
        slot = (slot + 1) & (_TABLE_SLOTS - 1)
    return slot


@kernel
def needed_rows(rows: IntegerArray, count: Integer, needed: ByteArray) -> None:
    """Set ``needed[i]`` to 1 for the rows a replay needs, 0 for the others. ``count`` <= PRODUCER_ROWS."""
    producers = np.full(_TABLE_SLOTS, -1, np.int64)
    in_transaction = np.zeros(_TABLE_SLOTS, np.uint8)
    for number in range(count):
        row = rows[number]
        slot = _slot(producers, row[PRODUCER])
        is_first = producers[slot] < 0
        producers[slot] = row[PRODUCER]
        needed[number] = 1 if is_first or row[ATTRIBUTES] & _CONTROL else 0
        if row[ATTRIBUTES] & _CONTROL:
            in_transaction[slot] = 0
        elif row[ATTRIBUTES] & _TRANSACTIONAL and not in_transaction[slot]:
            in_transaction[slot] = 1
            needed[number] = 1
    seen = np.zeros(_TABLE_SLOTS, np.uint8)
    for number in range(count - 1, -1, -1):
        slot = _slot(producers, rows[number, PRODUCER])
        if seen[slot] < 5 and not rows[number, ATTRIBUTES] & _CONTROL:
            seen[slot] += 1
            needed[number] = 1


def compile_all() -> None:
    """Compile both kernels for the types recovery uses, or take them from the cache."""
    chunk, walk = np.zeros(64, np.uint8), np.zeros(WALK_SLOTS, np.int64)
    table, epochs, rows = np.zeros(24, np.uint8), np.zeros((1, 2), np.int64), np.zeros((1, ROW_COLUMNS), np.int64)
    scan(chunk, np.array([0, 64, 0]), walk, table, table.copy(), epochs, rows)
    needed_rows(rows, 0, table)


compile_all()
