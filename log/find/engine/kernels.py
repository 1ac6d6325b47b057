"""Compiled forms of ``tidelog.log.find.lookup`` and ``tidelog.log.find.filtering``, and all find kernels by
their names.

Arrays: an index file and a section of records are ``uint8``, offsets and places ``int64``. No GIL. Imported only
through ``tidelog.log.records.kernel_loader``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidelog.log.find.engine.indexing_kernels import put_entries, put_tags, walk_chunk
from tidelog.log.find.engine.writing_kernels import write_pieces
from tidelog.log.records.kernel_cache import njit
from tidelog.log.records.kernels import _read_deltas, _read_raw, _skip_field

_INDEX_HEADER_BYTES = 40
_INDEX_ENTRY_BYTES = 20

_BYTES = "Array(uint8, 1, 'C', True)"
_COLUMN = "Array(int64, 1, 'C')"
_CHAIN = f"int64({_BYTES}, int64, UniTuple(int64, 5), {_COLUMN}, {_COLUMN})"
_MATCH = f"int64({_BYTES}, int64, UniTuple(int64, 6), {_BYTES}, {_BYTES}, {_BYTES}, {_COLUMN})"
_NTH = f"UniTuple(int64, 2)({_BYTES}, int64)"


@njit(nogil=True)
def _get(data: Any, position: int, size: int) -> Any:
    """A big-endian unsigned number of up to 8 bytes, as the signed one of the same bits."""
    value = np.uint64(0)
    for index in range(position, position + size):
        value = (value << np.uint64(8)) | np.uint64(data[index])
    return np.int64(value)


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


KERNELS = {
    "walk_chunk": walk_chunk,
    "put_entries": put_entries,
    "put_tags": put_tags,
    "write_pieces": write_pieces,
    "walk_chain": walk_chain,
    "match_records": match_records,
    "nth_place": nth_place,
}
"""What ``tidelog.log.find.engine.kernel_group`` has signatures of."""
