"""The numba twins of ``log.find.reference``: whole chunks of a log walked, hashed and put without the GIL.

Results are those of the reference, which gets every batch that is compressed, old or malformed. Arrays: a chunk and an
index file are ``uint8``, rows are ``int64`` columns. Imported only through ``log.records.kernel_loader``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from log.records.kernel_cache import njit
from log.records.kernels import _read_deltas, _read_raw, _skip_field

END, FULL, ODD = 0, 1, 2
_NO_KEY = -1
_MAX_INT64, _MIN_INT64 = 0x7FFFFFFFFFFFFFFF, -0x8000000000000000
_MAX_TIME_DIFF = 0x7FFFFFFF
_HEADER_BYTES = 61
_MIN_RECORD_BYTES = 7
_INDEX_HEADER_BYTES = 40
_INDEX_ENTRY_BYTES = 20

_BYTES = "Array(uint8, 1, 'C', True)"
_OUT = "Array(uint8, 1, 'C')"
_COLUMN = "Array(int64, 1, 'C')"
_WALK = f"UniTuple(int64, 4)({_BYTES}, int64, int64, {_BYTES}, int64, {_COLUMN}, {_COLUMN}, {_COLUMN}, {_COLUMN}, "
_WALK += f"{_COLUMN}, {_COLUMN}, int64)"
_PUT = f"UniTuple(int64, 5)({_OUT}, UniTuple(int64, 4), {_COLUMN}, {_COLUMN}, {_COLUMN}, int64, int64)"
_CHAIN = f"int64({_BYTES}, int64, UniTuple(int64, 5), {_COLUMN}, {_COLUMN})"
_MATCH = f"int64({_BYTES}, int64, UniTuple(int64, 6), {_BYTES}, {_BYTES}, {_BYTES}, {_COLUMN})"
_NTH = f"UniTuple(int64, 2)({_BYTES}, int64)"
_TAGS = f"void({_OUT}, int64, {_COLUMN}, {_COLUMN}, {_COLUMN}, {_COLUMN}, int64, int64)"


@njit(nogil=True)
def _get(data: Any, position: int, size: int) -> Any:
    """A big-endian unsigned number of up to 8 bytes, as the signed one of the same bits."""
    value = np.uint64(0)
    for index in range(position, position + size):
        value = (value << np.uint64(8)) | np.uint64(data[index])
    return np.int64(value)


@njit(nogil=True)
def _set(data: Any, position: int, size: int, value: int) -> None:
    bits = np.uint64(value)
    for index in range(size):
        data[position + size - 1 - index] = np.uint8(bits & np.uint64(0xFF))
        bits >>= np.uint64(8)


@njit(nogil=True)
def _java_hash(data: Any, start: int, end: int, seed: int) -> Any:
    """``log.find.hashing.java_hash``: signed 32 bits."""
    value = np.uint32(seed & 0xFFFFFFFF)
    for index in range(start, end):
        value = np.uint32(np.uint32(31) * value + np.uint32(data[index]))
    return np.int64(np.int32(value))


@njit(nogil=True)
def _key_hash(data: Any, start: int, end: int, seed: int) -> Any:
    value = abs(_java_hash(data, start, end, seed))
    return value if value <= 0x7FFFFFFF else np.int64(0)


@njit(nogil=True)
def _is_name(data: Any, start: int, end: int, name: Any) -> Any:
    if end - start != name.size:
        return False
    for index in range(name.size):  # noqa: SIM110 - numba compiles no generators
        if data[start + index] != name[index]:
            return False
    return True


@njit(nogil=True)
def _walk_headers(data: Any, position: int, end: int, name: Any) -> Any:
    """(tag hash of the first header called ``name`` or 0, position behind the headers or -1)."""
    raw, position = _read_raw(data, position, 5)
    if position < 0 or raw & 1 != 0 or (raw >> 1) > end - position:
        return np.int64(0), -1
    tag, is_found = np.int64(0), name.size == 0
    for _ in range(raw >> 1):
        length, start = _read_raw(data, position, 5)
        if start < 0 or length & 1 != 0 or start + (length >> 1) > end:
            return np.int64(0), -1
        name_end = start + (length >> 1)
        is_null, position = _skip_field(data, name_end, end)
        if position < 0:
            return np.int64(0), -1
        if not is_found and _is_name(data, start, name_end, name):
            is_found = True
            if not is_null:
                _, value_start = _read_raw(data, name_end, 5)
                tag = _java_hash(data, value_start, position, 0)
    return tag, position


@njit(nogil=True)
def _walk_record(data: Any, position: int, seed: int, name: Any) -> Any:
    """(timestamp delta, offset delta, key hash, tag hash, end of the record); end -1 when malformed."""
    timestamp, offset, position, end = _read_deltas(data, position)
    if end < 0:
        return np.int64(0), np.int64(0), np.int64(0), np.int64(0), -1
    _, start = _read_raw(data, position, 5)
    is_keyless, position = _skip_field(data, position, end)
    if position < 0:
        return np.int64(0), np.int64(0), np.int64(0), np.int64(0), -1
    key = np.int64(_NO_KEY) if is_keyless else _key_hash(data, start, position, seed)
    _, position = _skip_field(data, position, end)
    if position < 0 or position >= end:
        return np.int64(0), np.int64(0), np.int64(0), np.int64(0), -1
    tag, position = _walk_headers(data, position, end, name)
    return timestamp, offset, key, tag, end if position == end else -1


@njit(_WALK, nogil=True, cache=True)
def walk_chunk(
    chunk: Any, base_position: int, seed: int, name: Any, count: int, offsets: Any, timestamps: Any, keys: Any,
    tags: Any, positions: Any, sizes: Any, capacity: int,
) -> Any:  # fmt: skip
    """(stop, position, next offset, rows): see the reference. One argument per column: numba takes no objects."""
    position: Any = 0
    next_offset: Any = -1
    while chunk.size - position >= _HEADER_BYTES:
        size = 12 + np.int64(np.int32(_get(chunk, position + 8, 4)))
        if size > chunk.size - position:
            break
        attributes = _get(chunk, position + 21, 2)
        if size < _HEADER_BYTES or chunk[position + 16] != 2 or attributes & 7 != 0:
            return ODD, position, next_offset, count
        base_offset, base_timestamp = _get(chunk, position, 8), _get(chunk, position + 27, 8)
        max_timestamp, records = _get(chunk, position + 35, 8), np.int64(np.int32(_get(chunk, position + 57, 4)))
        if records > capacity - count:
            return FULL, position, next_offset, count
        if attributes & 0x20 == 0:
            end, at, row = position + size, position + _HEADER_BYTES, count
            section = chunk[:end]
            if records < 0 or records * _MIN_RECORD_BYTES > end - at:
                return ODD, position, next_offset, count
            for _ in range(records):
                timestamp, offset, keys[row], tags[row], at = _walk_record(section, at, seed, name)
                if at < 0:
                    return ODD, position, next_offset, count
                offsets[row] = base_offset + offset
                timestamps[row] = max_timestamp if attributes & 8 != 0 else base_timestamp + timestamp
                positions[row], sizes[row] = base_position + position, size
                row += 1
            if at != end:
                return ODD, position, next_offset, count
            count = row
        last_offset_delta = np.int64(np.int32(_get(chunk, position + 23, 4)))
        next_offset = base_offset + last_offset_delta + 1
        position += size
    return END, position, next_offset, count


@njit(_PUT, nogil=True, cache=True)
def put_entries(data: Any, file: Any, offsets: Any, timestamps: Any, keys: Any, start: int, end: int) -> Any:
    """``file`` is (slots, capacity, next entry, begin timestamp); the result is the reference's ``Put``."""
    slots, capacity, number, begin = file
    first_entry = _INDEX_HEADER_BYTES + 4 * slots
    low, high, last_offset = np.int64(_MAX_INT64), np.int64(_MIN_INT64), np.int64(-1)
    for row in range(start, end):
        hashed = keys[row]
        if hashed == _NO_KEY:
            continue
        if number >= capacity:
            return number, row, low, high, last_offset
        timestamp, last_offset = timestamps[row], offsets[row]
        slot = _INDEX_HEADER_BYTES + 4 * (hashed % slots)
        diff = max(np.int64(0), min((timestamp - begin) // 1000, np.int64(_MAX_TIME_DIFF)))
        entry = first_entry + _INDEX_ENTRY_BYTES * number
        _set(data, entry, 4, hashed)
        _set(data, entry + 4, 8, last_offset)
        _set(data, entry + 12, 4, diff)
        _set(data, entry + 16, 4, _get(data, slot, 4))
        _set(data, slot, 4, number)
        number += 1
        low, high = min(low, timestamp), max(high, timestamp)
    return number, end, low, high, last_offset


@njit(_TAGS, nogil=True, cache=True)
def put_tags(
    data: Any, base_offset: int, offsets: Any, positions: Any, sizes: Any, tags: Any, start: int, end: int
) -> None:
    """See the reference."""
    for row in range(start, end):
        entry = 20 * (offsets[row] - base_offset)
        _set(data, entry, 8, positions[row])
        _set(data, entry + 8, 4, sizes[row])
        _set(data, entry + 12, 8, tags[row])


# ---- look-ups

_HAS_KEY, _HAS_TAG, _APPEND_TIME = 1, 2, 4
_OUT_OF_CHAIN, _BAD_ENTRY = 1, 2


@njit(nogil=True)
def _signed32(data: Any, position: int) -> Any:
    return np.int64(np.int32(_get(data, position, 4)))


@njit(_CHAIN, nogil=True, cache=True)
def walk_chain(data: Any, slots: int, wanted: Any, state: Any, offsets: Any) -> Any:
    """Follow a chain of an index file and collect the offsets that match, newest first; returns how many.

    ``wanted`` is (key hash, least and largest time difference, least offset, begin offset of the file). ``state`` is
    (next entry or 0, entry before it, its offset, damage: 0, 1 a chain that does not go back, 2 an entry out of it).
    """
    hashed, low, high, min_offset, begin_offset = wanted
    first_entry = _INDEX_HEADER_BYTES + 4 * slots
    number, limit, last_offset = state[0], state[1], state[2]
    found = 0
    while number != 0 and found < offsets.size:
        if number < 0 or number >= limit:
            state[3] = _OUT_OF_CHAIN
            break
        entry = first_entry + _INDEX_ENTRY_BYTES * number
        stored, offset, diff = _signed32(data, entry), _get(data, entry + 4, 8), _signed32(data, entry + 12)
        if offset < begin_offset or offset >= last_offset or stored < 0 or diff < 0:
            state[3] = _BAD_ENTRY
            last_offset = offset
            break
        if offset < min_offset:
            number = 0
            break
        if stored == hashed and low <= diff and diff <= high:
            offsets[found] = offset
            found += 1
        limit, last_offset, number = number, offset, _signed32(data, entry + 16)
    state[0], state[1], state[2] = number, limit, last_offset
    return found


@njit(nogil=True)
def _equals(data: Any, start: int, end: int, wanted: Any) -> Any:
    if end - start != wanted.size:
        return False
    for index in range(wanted.size):  # noqa: SIM110 - numba compiles no generators
        if data[start + index] != wanted[index]:
            return False
    return True


@njit(nogil=True)
def _match_tag(data: Any, position: int, end: int, name: Any, tag: Any) -> Any:
    """(whether the first header called ``name`` has the value ``tag``, position behind the headers or -1)."""
    raw, position = _read_raw(data, position, 5)
    if position < 0 or raw & 1 != 0 or (raw >> 1) > end - position:
        return False, -1
    is_found = has_tag = False
    for _ in range(raw >> 1):
        length, start = _read_raw(data, position, 5)
        if start < 0 or length & 1 != 0 or start + (length >> 1) > end:
            return False, -1
        name_end = start + (length >> 1)
        is_null, position = _skip_field(data, name_end, end)
        if position < 0:
            return False, -1
        if not is_found and _equals(data, start, name_end, name):
            is_found = True
            _, value_start = _read_raw(data, name_end, 5)
            has_tag = not is_null and _equals(data, value_start, position, tag)
    return has_tag, position


@njit(nogil=True)
def _match_record(data: Any, position: int, query: Any, key: Any, name: Any, tag: Any) -> Any:
    """(whether the record matches, end of the record or -1)."""
    flags, base_timestamp, append_time, begin, last, _ = query
    timestamp, _, position, end = _read_deltas(data, position)
    if end < 0:
        return False, -1
    timestamp = append_time if flags & _APPEND_TIME != 0 else base_timestamp + timestamp
    _, start = _read_raw(data, position, 5)
    is_keyless, position = _skip_field(data, position, end)
    if position < 0:
        return False, -1
    matches = begin <= timestamp and timestamp <= last
    if flags & _HAS_KEY != 0 and (is_keyless or not _equals(data, start, position, key)):
        matches = False
    _, position = _skip_field(data, position, end)
    if position < 0 or position >= end:
        return False, -1
    has_tag, position = _match_tag(data, position, end, name, tag)
    if position != end:
        return False, -1
    return matches and (flags & _HAS_TAG == 0 or has_tag), end


@njit(_MATCH, nogil=True, cache=True)
def match_records(section: Any, count: int, query: Any, key: Any, name: Any, tag: Any, places: Any) -> Any:
    """How many of a section's ``count`` records match, -1 when one is malformed; (start, end) of each in ``places``.

    ``query`` is (1 with a key | 2 with a tag | 4 when all have the append time, base timestamp, append time, first and
    last time, unused). ``tag`` is compared with the value of the first header called ``name``.
    """
    found = np.int64(0)
    position: Any = 0
    for _ in range(count):
        matches, end = _match_record(section, position, query, key, name, tag)
        if end < 0:
            return np.int64(-1)
        if matches:
            places[2 * found], places[2 * found + 1] = position, end
            found += 1
        position = end
    return found if position == section.size else np.int64(-1)


@njit(_NTH, nogil=True, cache=True)
def nth_place(section: Any, index: int) -> Any:
    """The byte range of the record with ``index`` before it; (-1, -1) when the section is too short for it."""
    start: Any = 0
    position: Any = 0
    for _ in range(index + 1):
        start = position
        raw, position = _read_raw(section, position, 5)
        if position < 0 or raw & 1 != 0 or (raw >> 1) > section.size - position:
            return np.int64(-1), np.int64(-1)
        position += raw >> 1
    return np.int64(start), np.int64(position)
