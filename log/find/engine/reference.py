"""Plain Python that takes rows out of records and puts them into index files: the reference for the kernels, and the
engine until they are loaded.

    chunk of a segment -> batches -> records -> rows (offset, time, key hash, tag hash, batch position, batch size)
    rows -> entries of an IndexFile / of a ConsumeQueue

Control batches have no rows. A record has the tag of the first header of that name; a null value counts as none.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.find.hashing import NO_KEY, key_hash, tag_hash
from tidelog.log.find.rows import Rows
from tidelog.protocol.errors import InvalidRecordError
from tidelog.protocol.record.message_set import LegacyRecordBatch
from tidelog.protocol.record.record_batch import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    HEADER,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    MAGIC_V2,
    RECORD_BATCH_OVERHEAD,
    Record,
    RecordBatch,
)

if TYPE_CHECKING:
    from tidelog.log.find.index_file import IndexFile

INDEX_ENTRY = Struct(">iqii")
TAG_ENTRY = Struct(">qiq")
SLOT = Struct(">i")
INDEX_HEADER_BYTES = 40
MAX_TIME_DIFF = 0x7FFFFFFF
MIN_INT64, MAX_INT64 = -(1 << 63), (1 << 63) - 1
_LENGTH = Struct(">i")


class Stop(IntEnum):
    """Reason why a walk over a chunk ended."""

    END = 0
    """At the end of the chunk, or at a batch that is cut by it."""
    FULL = 1
    """The next batch has more records than there is room for."""
    ODD = 2
    """The next batch is compressed, of an old format or malformed: it goes batch by batch."""


class Wanted(NamedTuple):
    """Settings of a log's rows: ``seed`` of its topic's key hashes, the tag's header name or None."""

    seed: int
    tag_header: bytes | None


class Walk(NamedTuple):
    """End of a walk: why it ended, at which byte of the chunk, and the offset after the last batch (-1 when none)."""

    stop: Stop
    position: int
    next_offset: int


class Put(NamedTuple):
    """Result of a put: next entry number, the row after the last one put, bounds of the entries put."""

    next_entry: int
    next_row: int
    min_timestamp: int
    max_timestamp: int
    last_offset: int


class Restored(NamedTuple):
    """Result of rebuilding slots: number of a damaged entry or 0, last offset (-1 without entries)."""

    damaged_entry: int
    last_offset: int


def walk_chunk(rows: Rows, chunk: memoryview, wanted: Wanted, base_position: int) -> Walk:
    """Append a row for each record of the whole, uncompressed magic 2 batches at the start of ``chunk``.

    ``base_position`` is the byte of the segment that the chunk begins at.
    """
    position, next_offset = 0, -1
    while len(chunk) - position >= RECORD_BATCH_OVERHEAD:
        size = LOG_OVERHEAD + _LENGTH.unpack_from(chunk, position + 8)[0]
        if size > len(chunk) - position:
            break
        fields = HEADER.unpack_from(chunk, position)
        if size < RECORD_BATCH_OVERHEAD or chunk[position + MAGIC_OFFSET] != MAGIC_V2 or fields[5] & COMPRESSION_MASK:
            return Walk(Stop.ODD, position, next_offset)
        if fields[12] > rows.capacity - rows.count:
            return Walk(Stop.FULL, position, next_offset)
        if not fields[5] & CONTROL_MASK:
            before = rows.count
            try:
                append_batch(rows, RecordBatch(chunk, position), wanted, (base_position + position, size))
            except InvalidRecordError:
                rows.count = before
                return Walk(Stop.ODD, position, next_offset)
        next_offset = fields[0] + fields[6] + 1
        position += size
    return Walk(Stop.END, position, next_offset)


def append_batch(rows: Rows, batch: RecordBatch | LegacyRecordBatch, wanted: Wanted, place: tuple[int, int]) -> None:
    """Rows of one batch of any format, which lies at ``place`` (position, size). Raises InvalidRecordError and what
    decompression raises, and then nothing was appended."""
    found = list(batch.records(DEFAULT_MAX_DECOMPRESSED_BYTES))
    append_time = batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else None
    rows.make_room(len(found))
    row = rows.count
    for record in found:
        rows.offsets[row] = record.offset
        rows.timestamps[row] = record.timestamp if append_time is None else append_time
        rows.key_hashes[row] = NO_KEY if record.key is None else key_hash(wanted.seed, record.key)
        tag = None if wanted.tag_header is None else tag_of(record, wanted.tag_header)
        rows.tag_hashes[row] = 0 if tag is None else tag_hash(tag)
        rows.positions[row], rows.sizes[row] = place
        row += 1
    rows.count = row


def tag_of(record: Record, header: bytes) -> bytes | None:
    """The value of the record's first header of that name."""
    for name, value in record.headers:
        if name.encode() == header:
            return value
    return None


def put_entries(file: IndexFile, rows: Rows, start: int, end: int) -> Put:
    """Make entries for the keyed rows from ``start`` to ``end`` in ``rows.entries`` and set the file's slots to them.

    Stops before a full file's next row. The caller writes the entries into the file.
    """
    data, slots = file.data, file.slots
    bounds = file.bounds
    number, begin = bounds.next_entry, bounds.begin_timestamp
    low, high, last_offset = MAX_INT64, MIN_INT64, -1
    for row in range(start, end):
        hashed = rows.key_hashes[row]
        if hashed == NO_KEY:
            continue
        if number >= file.capacity:
            return Put(number, row, low, high, last_offset)
        timestamp, last_offset = rows.timestamps[row], rows.offsets[row]
        slot = INDEX_HEADER_BYTES + 4 * (hashed % slots)
        diff = max(0, min((timestamp - begin) // 1000, MAX_TIME_DIFF))
        previous = SLOT.unpack_from(data, slot)[0]
        INDEX_ENTRY.pack_into(rows.entries, 20 * (number - bounds.next_entry), hashed, last_offset, diff, previous)
        SLOT.pack_into(data, slot, number)
        number += 1
        low, high = min(low, timestamp), max(high, timestamp)
    return Put(number, end, low, high, last_offset)


def restore_slots(file: IndexFile, count: int) -> Restored:
    """Rebuild the (zeroed) slots from entries 1 to ``count - 1``, each checked against them."""
    data, slots = file.data, file.slots
    first_entry = INDEX_HEADER_BYTES + 4 * slots
    last_offset = -1
    for number in range(1, count):
        hashed, offset, diff, previous = INDEX_ENTRY.unpack_from(data, first_entry + 20 * number)
        slot = INDEX_HEADER_BYTES + 4 * (hashed % slots)
        if hashed < 0 or diff < 0 or offset <= last_offset or previous != SLOT.unpack_from(data, slot)[0]:
            return Restored(number, last_offset)
        SLOT.pack_into(data, slot, number)
        last_offset = offset
    return Restored(0, last_offset)


def put_tags(rows: Rows, start: int, end: int) -> None:
    """Make entries for rows ``start`` to ``end`` in ``rows.entries``, as far from its begin as their offsets are
    from that of the first. They must have room there."""
    first = rows.offsets[start]
    for row in range(start, end):
        place = 20 * (rows.offsets[row] - first)
        TAG_ENTRY.pack_into(rows.entries, place, rows.positions[row], rows.sizes[row], rows.tag_hashes[row])
