"""Compiled walks over records for indexing and look-ups: rows of a chunk, records that match, a record by its number.

The results are those of ``tidelog.log.find.engine.reference``. ``walk_chunk`` leaves to it the batches that are
compressed, of an old format or malformed, or have odd offsets. ``match_records`` leaves to it the sections in which a
record is malformed or has a timestamp beyond 64 bits. Every read is checked against the end of the batch's records.
Bits above 32 and 64 in varints of 5 and 10 bytes are dropped, as in the reference. ``walk_chunk`` and ``match_records``
run without the interpreter lock. C types are in ``walk.pxd``. Any thread.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from tidelog.log.find.engine.reference import MatchQuery, RowSettings, WalkEnd, WalkStop
from tidelog.protocol.compiled import words
from tidelog.protocol.compiled.words import Buffer
from tidelog.protocol.errors import InvalidRecordError

try:
    import cython
except ImportError:
    from tidelog.protocol.compiled import uncompiled as cython

if TYPE_CHECKING:
    from tidelog.log.find.rows import Rows

IS_COMPILED = cython.compiled
"""Whether this module runs as machine code."""

Integers = memoryview
_END, _FULL, _ODD = 0, 1, 2
_NO_KEY = -1
_HEADER_BYTES = 61
_MAGIC_OFFSET = 16
_LENGTH_OFFSET = 12  # the length field counts the bytes from here on
_MIN_RECORD_BYTES = 7
_CONTROL, _APPEND_TIME_MASK, _COMPRESSION_MASK = 0x20, 8, 7
_HAS_KEY, _HAS_TAG, _APPEND_TIME = 1, 2, 4
_LARGEST_HASH = 0x7FFFFFFF
_SIGN_32, _SIGN_64 = 1 << 31, 1 << 63


# ---- calls


def walk_chunk(rows: Rows, chunk: Buffer, settings: RowSettings, base_position: int) -> WalkEnd:
    """See :func:`tidelog.log.find.engine.reference.walk_chunk`."""
    held, name = words.hold(chunk), words.hold(settings.tag_header or b"")
    offsets, timestamps = words.hold_writable(rows.offsets), words.hold_writable(rows.timestamps)
    keys, tags = words.hold_writable(rows.key_hashes), words.hold_writable(rows.tag_hashes)
    positions, sizes = words.hold_writable(rows.positions), words.hold_writable(rows.sizes)
    seed, before, capacity = settings.seed & words.MASK_32, rows.count, rows.capacity
    lowest, end_offset = settings.begin, settings.end
    with cython.nogil:
        stop, position, next_offset, count = _walk(
            held.data, held.size, base_position, lowest, end_offset, seed, name.data, name.size, before, capacity,
            offsets.integers, timestamps.integers, keys.integers, tags.integers, positions.integers, sizes.integers,
        )  # fmt: skip
    words.release(sizes)
    words.release(positions)
    words.release(tags)
    words.release(keys)
    words.release(timestamps)
    words.release(offsets)
    words.release(name)
    words.release(held)
    rows.count = count
    return WalkEnd(WalkStop(stop), position, next_offset)


def match_records(section: bytes, count: int, query: MatchQuery) -> list[tuple[int, int]] | None:
    """Find the byte ranges of a section's records that match; None if the reference has to do it."""
    flags = _HAS_KEY * (query.key is not None) + _HAS_TAG * (query.tag is not None)
    flags += _APPEND_TIME * (query.append_time is not None)
    append_time = 0 if query.append_time is None else query.append_time
    base_timestamp, begin, end = query.base_timestamp, query.begin, query.end
    if count < 0 or count > len(section) // _MIN_RECORD_BYTES:
        return None
    held, spans = words.hold(section), array("q", bytes(16 * count))
    key, name, tag = words.hold(query.key or b""), words.hold(query.tag_header), words.hold(query.tag or b"")
    out = words.hold_writable(spans)
    with cython.nogil:
        found = _match_all(
            held.data, held.size, count, flags, base_timestamp, append_time, begin, end,
            key.data, key.size, name.data, name.size, tag.data, tag.size, out.integers,
        )  # fmt: skip
    words.release(out)
    words.release(tag)
    words.release(name)
    words.release(key)
    words.release(held)
    return None if found < 0 else list(zip(spans[0 : 2 * found : 2], spans[1 : 2 * found : 2], strict=True))


def find_nth_record(section: Buffer, index: int) -> tuple[int, int]:
    """See :func:`tidelog.log.find.engine.reference.find_nth_record`. Raises InvalidRecordError."""
    held = words.hold(section)
    start, end = _nth(held.data, held.size, index)
    words.release(held)
    if start < 0:
        raise InvalidRecordError("Found invalid record structure")
    return start, end


# ---- fields of a record


def _read_long_varint(data: Buffer, size: int, position: int, max_bytes: int) -> tuple[int, int]:
    """Read a varint of up to ``max_bytes``: (value before zigzag, next position); position -1 if it does not end."""
    raw = 0
    shift = 0
    end = position + max_bytes if position + max_bytes < size else size
    while position < end:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw & (words.MASK_32 if max_bytes == 5 else words.MASK_64), position
        shift += 7
    return 0, -1


def _read_raw(data: Buffer, size: int, position: int, max_bytes: int) -> tuple[int, int]:
    """Read a varint, those of one and two bytes inline: (value before zigzag, next position); position -1 when
    malformed."""
    if position + 2 <= size:
        first = data[position]
        if first < 0x80:
            return first, position + 1
        second = data[position + 1]
        if second < 0x80:
            return (first & 0x7F) | (second << 7), position + 2
    return _read_long_varint(data, size, position, max_bytes)


def _to_signed(word: int) -> int:
    """Return the signed number of the same 64 bits."""
    return (word & words.MAX_INT_64) | -(word & _SIGN_64)


def _zigzag(raw: int) -> int:
    """Decode the zigzag form of 64 bits."""
    return (raw >> 1) ^ -(raw & 1)


def _sum(one: int, other: int) -> int:
    """Add two signed numbers, wrapped to 64 bits."""
    return _to_signed((one + other) & words.MASK_64)


def _is_sum_larger(one: int, other: int) -> bool:
    """Return whether a sum of two signed numbers needs more than 64 bits."""
    if other > 0:
        return one > words.MAX_INT_64 - other
    return one < words.MIN_INT_64 - other


def _read_deltas(data: Buffer, size: int, position: int) -> tuple[int, int, int, int]:
    """Read the first fields of a record: (timestamp delta, offset delta, position after them, end of the record); end
    -1 when malformed.
    """
    raw, position = _read_raw(data, size, position, 5)
    length = raw >> 1
    if position < 0 or raw & 1 or length > size - position:
        return 0, 0, 0, -1
    end = position + length
    raw_timestamp, position = _read_raw(data, size, position + 1, 10)
    if position < 0:
        return 0, 0, 0, -1
    raw, position = _read_raw(data, size, position, 5)
    if position < 0:
        return 0, 0, 0, -1
    return _zigzag(raw_timestamp), _zigzag(raw), position, end


def _read_field(data: Buffer, size: int, position: int, end: int) -> tuple[int, int]:
    """Read a nullable field: (its first byte or -1 for null, position after it); position -1 when malformed."""
    raw, position = _read_raw(data, size, position, 5)
    if position < 0:
        return -1, -1
    if raw & 1:
        return -1, position
    start = position
    position += raw >> 1
    return start, position if position <= end else -1


def _is_equal(data: Buffer, start: int, end: int, wanted: Buffer, size: int) -> bool:
    if end - start != size:
        return False
    for index in range(size):  # noqa: SIM110 - a generator is not compiled to a loop
        if data[start + index] != wanted[index]:
            return False
    return True


def _read_tag(data: Buffer, size: int, position: int, end: int, name: Buffer, length: int) -> tuple[int, int, int]:
    """Find the value of the first header called ``name``: (its first byte or -1, its end, position after the headers).

    The position is -1 when the headers are malformed.
    """
    raw, position = _read_raw(data, size, position, 5)
    count = raw >> 1
    if position < 0 or raw & 1 or count > end - position:
        return -1, -1, -1
    start = stop = -1
    is_found = False
    while count > 0:
        count -= 1
        name_start, name_end = _read_field(data, size, position, end)
        if name_start < 0 or name_end < 0:
            return -1, -1, -1
        value, position = _read_field(data, size, name_end, end)
        if position < 0:
            return -1, -1, -1
        if not is_found and _is_equal(data, name_start, name_end, name, length):
            is_found = True
            start, stop = value, position
    return start, stop, position


def _java_hash(data: Buffer, at: int, end: int, seed: int) -> int:
    """Compute ``tidelog.log.find.hashing.java_hash``: signed 32 bits.

    Four bytes are taken at a time, so that only every fourth multiplication waits for the one before.
    """
    value = seed
    while at + 4 <= end:
        high = value * 923521 + data[at] * 29791  # powers of 31
        value = (high + data[at + 1] * 961 + data[at + 2] * 31 + data[at + 3]) & words.MASK_32
        at += 4
    while at < end:
        value = (value * 31 + data[at]) & words.MASK_32
        at += 1
    return (value ^ _SIGN_32) - _SIGN_32


def _key_hash(data: Buffer, at: int, end: int, seed: int) -> int:
    hashed = _java_hash(data, at, end, seed)
    if hashed < 0:
        hashed = -hashed
    return hashed if hashed <= _LARGEST_HASH else 0


# ---- rows of a chunk


def _walk_record(
    data: Buffer, limit: int, position: int, seed: int, name: Buffer, name_size: int
) -> tuple[int, int, int, int, int]:
    """Walk over a record: (timestamp delta, offset delta, key hash, tag hash, end of the record); end -1 when
    malformed.
    """
    timestamp, offset, position, end = _read_deltas(data, limit, position)
    if end < 0:
        return 0, 0, 0, 0, -1
    start, position = _read_field(data, limit, position, end)
    if position < 0:
        return 0, 0, 0, 0, -1
    key = _NO_KEY if start < 0 else _key_hash(data, start, position, seed)
    _, position = _read_field(data, limit, position, end)
    if position < 0 or position >= end:
        return 0, 0, 0, 0, -1
    start, stop, position = _read_tag(data, limit, position, end, name, name_size)
    if position != end:
        return 0, 0, 0, 0, -1
    tag = _java_hash(data, start, stop, 0) if start >= 0 and name_size > 0 else 0
    return timestamp, offset, key, tag, end


def _walk(
    chunk: Buffer, size: int, base_position: int, lowest: int, end_offset: int, seed: int, name: Buffer,
    name_size: int, count: int, capacity: int, offsets: Integers, timestamps: Integers, keys: Integers, tags: Integers,
    positions: Integers, sizes: Integers,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Walk over batches: (reason to stop, position, next offset, number of rows); see ``reference.walk_chunk``."""
    position, next_offset = 0, -1
    while size - position >= _HEADER_BYTES:
        batch = _LENGTH_OFFSET + words.load_be_i32(chunk, position + 8)
        if batch > size - position:
            break
        attributes = words.load_be_u16(chunk, position + 21)
        if batch < _HEADER_BYTES or chunk[position + 16] != 2 or attributes & _COMPRESSION_MASK:
            return _ODD, position, next_offset, count
        records = words.load_be_i32(chunk, position + 57)
        if records * _MIN_RECORD_BYTES > batch - _HEADER_BYTES:
            return _ODD, position, next_offset, count
        last_offset = _sum(words.load_be_i64(chunk, position), words.load_be_i32(chunk, position + 23))
        if not _is_possible(chunk, size, position, position + batch, last_offset, lowest, end_offset):
            return _ODD, position, next_offset, count
        if records > capacity - count:
            return _FULL, position, next_offset, count
        if not attributes & _CONTROL:
            end = _walk_batch(chunk, position, position + batch, records, seed, name, name_size, count,
                              offsets, timestamps, keys, tags)  # fmt: skip
            if end < 0:
                return _ODD, position, next_offset, count
            for row in range(count, count + records):
                positions[row] = base_position + position
                sizes[row] = batch
            count += records
        next_offset = lowest = last_offset + 1
        position += batch
    return _END, position, next_offset, count


def _is_possible(
    chunk: Buffer, size: int, position: int, end: int, last_offset: int, lowest: int, end_offset: int
) -> bool:
    """Return whether a batch's offsets lie from ``lowest`` to below ``end_offset``, and below those of the next batch,
    at byte ``end``."""
    first_offset = words.load_be_i64(chunk, position)
    if first_offset < lowest or last_offset < first_offset or last_offset >= end_offset:
        return False
    if size - end <= _MAGIC_OFFSET or chunk[end + _MAGIC_OFFSET] > 2:
        return True
    following = words.load_be_i64(chunk, end)
    return following < 0 or following > last_offset


def _walk_batch(
    chunk: Buffer, batch: int, limit: int, records: int, seed: int, name: Buffer, name_size: int, row: int,
    offsets: Integers, timestamps: Integers, keys: Integers, tags: Integers,
) -> int:  # fmt: skip
    """Fill the rows for a batch from byte ``batch`` to ``limit``; return the row after them, -1 when malformed or when
    offsets do not rise within the batch's."""
    base_offset, base_timestamp = words.load_be_i64(chunk, batch), words.load_be_i64(chunk, batch + 27)
    before, last_delta = -1, words.load_be_i32(chunk, batch + 23)
    has_append_time = words.load_be_u16(chunk, batch + 21) & _APPEND_TIME_MASK
    max_timestamp = words.load_be_i64(chunk, batch + 35)
    at = batch + _HEADER_BYTES
    if records < 0:
        return -1
    while records > 0:
        records -= 1
        timestamp, offset, key, tag, at = _walk_record(chunk, limit, at, seed, name, name_size)
        if at < 0 or offset <= before or offset > last_delta:
            return -1
        before = offset
        offsets[row] = base_offset + offset
        timestamps[row] = max_timestamp if has_append_time else _sum(base_timestamp, timestamp)
        keys[row] = key
        tags[row] = tag
        row += 1
    return row if at == limit else -1


# ---- look-ups


def _match_record(
    data: Buffer, size: int, position: int, flags: int, base_timestamp: int, append_time: int, begin: int, last: int,
    key: Buffer, key_size: int, name: Buffer, name_size: int, tag: Buffer, tag_size: int,
) -> tuple[bool, int]:  # fmt: skip
    """Match a record: (whether it matches, its end or -1)."""
    timestamp, _, position, end = _read_deltas(data, size, position)
    if end < 0 or _is_sum_larger(base_timestamp, timestamp):
        return False, -1
    timestamp = append_time if flags & _APPEND_TIME else base_timestamp + timestamp
    matches = begin <= timestamp and timestamp <= last
    start, position = _read_field(data, size, position, end)
    if position < 0:
        return False, -1
    if flags & _HAS_KEY and (start < 0 or not _is_equal(data, start, position, key, key_size)):
        matches = False
    _, position = _read_field(data, size, position, end)
    if position < 0 or position >= end:
        return False, -1
    start, stop, position = _read_tag(data, size, position, end, name, name_size)
    if position != end:
        return False, -1
    if flags & _HAS_TAG and (start < 0 or not _is_equal(data, start, stop, tag, tag_size)):
        matches = False
    return matches, end


def _match_all(
    data: Buffer, size: int, count: int, flags: int, base_timestamp: int, append_time: int, begin: int, last: int,
    key: Buffer, key_size: int, name: Buffer, name_size: int, tag: Buffer, tag_size: int, spans: Integers,
) -> int:  # fmt: skip
    """Count the records that match, -1 when one is malformed; write start and end of each to ``spans``."""
    found = 0
    position = 0
    for _ in range(count):
        matches, end = _match_record(data, size, position, flags, base_timestamp, append_time, begin, last,
                                     key, key_size, name, name_size, tag, tag_size)  # fmt: skip
        if end < 0:
            return -1
        if matches:
            spans[2 * found] = position
            spans[2 * found + 1] = end
            found += 1
        position = end
    return found if position == size else -1


def _nth(data: Buffer, size: int, index: int) -> tuple[int, int]:
    """Find the byte range of the record that has ``index`` records before it; (-1, -1) if there is none."""
    start = 0
    position = 0
    while index >= 0:
        index -= 1
        start = position
        raw, position = _read_raw(data, size, position, 5)
        length = raw >> 1
        if position < 0 or raw & 1 or length > size - position:
            return -1, -1
        position += length
    return start, position
