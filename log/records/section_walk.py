"""Compiled walks over a records section, equal to those of ``tidelog.log.records.reference``, which defines a section.

Each call takes any buffer of bytes. ``check_section`` and ``first_at_or_after`` pass a malformed section to the
reference, which names the fault, and walk large sections without the interpreter lock. Bits above 32 and 64 in varints
of 5 and 10 bytes are dropped, as in the reference. C types are in ``section_walk.pxd``. Any thread.
"""

from __future__ import annotations

from tidelog.log.records import reference
from tidelog.log.records.reference import NOTHING, SectionCheck, TimestampPosition, explain
from tidelog.log.records.work_budget import NO_LIMIT
from tidelog.protocol.compiled import words
from tidelog.protocol.compiled.words import Buffer

try:
    import cython
except ImportError:
    from tidelog.protocol.compiled import uncompiled as cython

IS_COMPILED = cython.compiled
"""Whether this module runs as machine code."""

_LOCKED_BYTES = 4096
"""Up to this size the interpreter lock is kept: to drop it and take it again takes longer than the walk."""
_SINGLE_KEYLESS = SectionCheck(0, 0, 0, True)
# Called as ``_new_tuple(SectionCheck, fields)``: builds a named tuple without its Python constructor.
_new_tuple = tuple.__new__
_MIN_RECORD_BYTES = 7


def check_section(section: Buffer, count: int, max_header_bytes: int = NO_LIMIT) -> SectionCheck:
    """See :func:`tidelog.log.records.reference.check_section`; ``max_header_bytes`` has no effect here."""
    held = words.hold(section)
    if held.size <= _LOCKED_BYTES:
        is_whole, low, high, keyless, is_consecutive = walk(held.data, held.size, count)
    else:
        with cython.nogil:
            is_whole, low, high, keyless, is_consecutive = walk(held.data, held.size, count)
    words.release(held)
    if not is_whole:
        return explain(section, count)
    if count <= 1 and low == 0 and high == 0 and is_consecutive:
        # NOTHING also has the fields of a single record with a key.
        return _SINGLE_KEYLESS if keyless == 0 else NOTHING
    return _new_tuple(SectionCheck, (low, high, keyless, is_consecutive))


def first_at_or_after(
    section: Buffer, count: int, timestamp_delta: int, min_offset_delta: int
) -> TimestampPosition | None:
    """See :func:`tidelog.log.records.reference.first_at_or_after`."""
    held = words.hold(section)
    if held.size <= _LOCKED_BYTES:
        is_whole, offset, timestamp = _find(held.data, held.size, count, timestamp_delta, min_offset_delta)
    else:
        with cython.nogil:
            is_whole, offset, timestamp = _find(held.data, held.size, count, timestamp_delta, min_offset_delta)
    words.release(held)
    if not is_whole:
        return reference.first_at_or_after(section, count, timestamp_delta, min_offset_delta)
    return None if offset < 0 else TimestampPosition(offset, timestamp)


def value_spans(section: Buffer, count: int) -> list[tuple[int, int, int]] | None:
    """Find offset delta, position and size of each record's value (size -1: null); None for a malformed section."""
    held = words.hold(section)
    found = _find_values(held.data, held.size, count)
    words.release(held)
    return found


def _find_values(data: Buffer, size: int, count: int) -> list[tuple[int, int, int]] | None:
    """See ``value_spans``."""
    if count < 0 or count > size // _MIN_RECORD_BYTES:
        return None
    position = 0
    found: list[tuple[int, int, int]] = []
    for _ in range(count):
        _timestamp, offset, position, end = _read_deltas(data, size, position)
        if end < 0:
            return None
        _is_keyless, position = _skip_field(data, size, position, end)
        if position < 0:
            return None
        raw, start = _read_raw(data, size, position, 5)
        is_null, position = _skip_field(data, size, position, end)
        if position < 0 or _skip_headers(data, size, position, end) != end:
            return None
        length = -1 if is_null else raw >> 1
        found.append((offset, start, length))
        position = end
    return found if position == size else None


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


def _zigzag(raw: int) -> int:
    """Decode the zigzag form of 64 bits."""
    return (raw >> 1) ^ -(raw & 1)


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


def _skip_field(data: Buffer, size: int, position: int, end: int) -> tuple[bool, int]:
    """Skip a nullable field: (whether it is null, next position); position -1 when malformed or past ``end``."""
    raw, position = _read_raw(data, size, position, 5)
    if position < 0:
        return False, -1
    if raw & 1:
        return True, position
    position += raw >> 1
    return False, position if position <= end else -1


def _skip_headers(data: Buffer, size: int, position: int, end: int) -> int:
    """Return the position after header count and headers, -1 when malformed."""
    raw, position = _read_raw(data, size, position, 5)
    count = raw >> 1
    if position < 0 or raw & 1 or count > end - position:
        return -1
    while count > 0:
        count -= 1
        is_null, position = _skip_field(data, size, position, end)
        if position < 0 or is_null:
            return -1
        is_null, position = _skip_field(data, size, position, end)
        if position < 0:
            return -1
    return position


def _skip_rest(data: Buffer, size: int, position: int, end: int) -> tuple[bool, bool]:
    """Skip key, value and headers: (whether the key is null, whether the headers end at ``end``)."""
    is_keyless, position = _skip_field(data, size, position, end)
    if position < 0:
        return is_keyless, False
    _, position = _skip_field(data, size, position, end)
    if position < 0 or position >= size:
        return is_keyless, False
    if data[position] == 0:
        return is_keyless, position + 1 == end
    return is_keyless, _skip_headers(data, size, position, end) == end


def walk(data: Buffer, size: int, count: int) -> tuple[bool, int, int, int, bool]:
    """Walk over a section: (whether it is well-formed, smallest and largest timestamp delta, number of the first record
    without a key or -1, whether offset deltas are 0, 1, 2 ...).
    """
    if count < 0 or count > size // _MIN_RECORD_BYTES:
        return False, 0, 0, 0, False
    if count == 0:
        return size == 0, 0, 0, -1, True
    position = 0
    low, high = words.MAX_INT_64, words.MIN_INT_64
    first_keyless = -1
    is_consecutive = True
    for index in range(count):
        delta, offset, position, end = _read_deltas(data, size, position)
        if end < 0:
            return False, 0, 0, 0, False
        if delta < low:
            low = delta
        if delta > high:
            high = delta
        if offset != index:
            is_consecutive = False
        is_keyless, is_whole = _skip_rest(data, size, position, end)
        if not is_whole:
            return False, 0, 0, 0, False
        if is_keyless and first_keyless < 0:
            first_keyless = index
        position = end
    return position == size, low, high, first_keyless, is_consecutive


def _find(data: Buffer, size: int, count: int, timestamp_delta: int, min_offset_delta: int) -> tuple[bool, int, int]:
    """Find the first record with at least these deltas: (whether well-formed, offset delta or -1, timestamp delta)."""
    if count < 0 or count > size // _MIN_RECORD_BYTES:
        return False, 0, 0
    position = 0
    for _ in range(count):
        timestamp, offset, _, position = _read_deltas(data, size, position)
        if position < 0 or offset < 0:
            return False, 0, 0
        if timestamp >= timestamp_delta and offset >= min_offset_delta:
            return True, offset, timestamp
    return True, -1, 0
