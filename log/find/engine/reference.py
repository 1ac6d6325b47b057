"""Indexing and matching of records in plain Python: the reference of the compiled routines, used where they are not
built.

    chunk of a segment -> batches -> records -> rows (offset, time, key hash, tag hash, batch position, batch size)
    rows -> entries of an IndexFile / of a ConsumeQueue

Control batches have no rows. A record's tag is the value of its first header of the tag's name; null counts as none.
"""

from __future__ import annotations

import os
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

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
    RecordContext,
    parse_records,
    read_varint,
)

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
    """The next batch is compressed, of an old format or malformed: the caller decodes it by itself."""


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


class Room(NamedTuple):
    """Room of an index file: its slots, entries in all (number 0 included), the next entry, the file's begin time."""

    slots: int
    capacity: int
    next_entry: int
    begin_timestamp: int


class Restored(NamedTuple):
    """Progress of rebuilding slots: number of a damaged entry or 0, the next entry, last offset (-1 before any)."""

    damaged_entry: int
    next_entry: int
    last_offset: int


class ChainQuery(NamedTuple):
    """Query for a chain of an index file: least and largest time difference, least offset, the file's first one."""

    slots: int
    key_hash: int
    low: int
    high: int
    min_offset: int
    begin_offset: int


class Damage(IntEnum):
    """Reason why a chain cannot be followed."""

    OUT_OF_CHAIN = 1
    """An entry's number is not below that of the entry which names it."""
    BAD_ENTRY = 2
    """The entry belongs to no chain, or to another."""
    UNREADABLE = 3
    """The file ends before the entry, or cannot be read there."""


class MatchQuery(NamedTuple):
    """Query for records of one section; ``append_time`` is the time of all of them, None where each has its own."""

    key: bytes | None
    tag: bytes | None
    tag_header: bytes
    base_timestamp: int
    append_time: int | None
    begin: int
    end: int


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
        next_offset = _wrapped(fields[0] + fields[6] + 1)
        position += size
    return Walk(Stop.END, position, next_offset)


def append_batch(rows: Rows, batch: RecordBatch | LegacyRecordBatch, wanted: Wanted, place: tuple[int, int]) -> None:
    """Append the rows of one batch of any format, which lies at ``place`` (position, size). Raises InvalidRecordError
    and what decompression raises, and then nothing was appended.
    """
    found = list(batch.records(DEFAULT_MAX_DECOMPRESSED_BYTES))
    append_time = batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else None
    rows.make_room(len(found))
    row = rows.count
    for record in found:
        rows.offsets[row] = _wrapped(record.offset)
        rows.timestamps[row] = _wrapped(record.timestamp) if append_time is None else append_time
        rows.key_hashes[row] = NO_KEY if record.key is None else key_hash(wanted.seed, record.key)
        tag = None if wanted.tag_header is None else tag_of(record, wanted.tag_header)
        rows.tag_hashes[row] = 0 if tag is None else tag_hash(tag)
        rows.positions[row], rows.sizes[row] = place
        row += 1
    rows.count = row


def _wrapped(number: int) -> int:
    """Wrap the sum of two signed 64-bit numbers as Kafka's clients do."""
    return number if MIN_INT64 <= number <= MAX_INT64 else (number - MIN_INT64) % (1 << 64) + MIN_INT64


def tag_of(record: Record, header: bytes) -> bytes | None:
    """Return the value of the record's first header of that name."""
    for name, value in record.headers:
        if name.encode() == header:
            return value
    return None


def put_entries(front: bytearray, rows: Rows, room: Room, start: int, end: int) -> Put:
    """Build entries for the keyed rows from ``start`` to ``end`` in ``rows.entries`` and set the slots to them.

    ``front`` is a file's header and slots. Stops before a full file's next row. The caller writes the entries.
    """
    number = room.next_entry
    low, high, last_offset = MAX_INT64, MIN_INT64, -1
    for row in range(start, end):
        hashed = rows.key_hashes[row]
        if hashed == NO_KEY:
            continue
        if number >= room.capacity:
            return Put(number, row, low, high, last_offset)
        timestamp, last_offset = rows.timestamps[row], rows.offsets[row]
        slot = INDEX_HEADER_BYTES + 4 * (hashed % room.slots)
        diff = max(0, min((timestamp - room.begin_timestamp) // 1000, MAX_TIME_DIFF))
        previous = SLOT.unpack_from(front, slot)[0]
        INDEX_ENTRY.pack_into(rows.entries, 20 * (number - room.next_entry), hashed, last_offset, diff, previous)
        SLOT.pack_into(front, slot, number)
        number += 1
        low, high = min(low, timestamp), max(high, timestamp)
    return Put(number, end, low, high, last_offset)


def restore_slots(front: bytearray, slots: int, entries: bytes | memoryview, restored: Restored) -> Restored:
    """Rebuild slots from ``entries``, the next ones of a file, each checked against those before it."""
    number, last_offset = restored.next_entry, restored.last_offset
    for hashed, offset, diff, previous in INDEX_ENTRY.iter_unpack(entries):
        slot = INDEX_HEADER_BYTES + 4 * (hashed % slots)
        if hashed < 0 or diff < 0 or offset <= last_offset or previous != SLOT.unpack_from(front, slot)[0]:
            return Restored(number, number, last_offset)
        SLOT.pack_into(front, slot, number)
        last_offset = offset
        number += 1
    return Restored(0, number, last_offset)


def put_tags(rows: Rows, start: int, end: int) -> None:
    """Build entries for rows ``start`` to ``end`` in ``rows.entries``, each as far from its beginning as the row's
    offset is from the first row's. A row without room there gets none.
    """
    first = rows.offsets[start] if start < end else 0
    for row in range(start, end):
        place = 20 * (rows.offsets[row] - first)
        if 0 <= place <= len(rows.entries) - 20:
            TAG_ENTRY.pack_into(rows.entries, place, rows.positions[row], rows.sizes[row], rows.tag_hashes[row])


def write_pieces(descriptor: int, data: memoryview, position: int, piece: int) -> int:
    """Write as much of ``data`` as the system takes, ``piece`` bytes at a time; returns how much that is."""
    written = 0
    try:
        while written < len(data):
            written += os.pwrite(descriptor, data[written : written + piece], position + written)
    except OSError:
        pass  # the caller writes the rest, and meets the error
    return written


def match_records(section: bytes, count: int, query: MatchQuery) -> list[tuple[int, int]]:
    """Find the places of the records of an uncompressed section that match. Raises InvalidRecordError."""
    context = RecordContext(0, query.base_timestamp, -1, query.append_time)
    places, position = [], 0
    for record in parse_records(section, count, context):
        length, body = read_varint(section, position)
        if _is_match(record, query):
            places.append((position, body + length))
        position = body + length
    return places


def _is_match(record: Record, query: MatchQuery) -> bool:
    if query.key is not None and record.key != query.key:
        return False
    if query.tag is not None and tag_of(record, query.tag_header) != query.tag:
        return False
    return query.begin <= record.timestamp <= query.end


def nth_place(section: bytes, index: int) -> tuple[int, int]:
    """Find the byte range of record number ``index``: in a batch without gaps the number is the offset delta.

    Lengths of one and two bytes are read inline: 0.1 µs for each record passed, instead of 1.2 µs. Raises
    InvalidRecordError.
    """
    position = 0
    try:
        for _ in range(index + 1):
            start = position
            first = section[start]
            if first < 0x80:
                position = start + 1 + (first >> 1)
                continue
            second = section[start + 1]
            if second < 0x80:
                position = start + 2 + ((first & 0x7F | second << 7) >> 1)
                continue
            length, position = read_varint(section, start)
            position += max(length, 0)
    except IndexError:
        raise InvalidRecordError("Found invalid record structure") from None
    return start, position
