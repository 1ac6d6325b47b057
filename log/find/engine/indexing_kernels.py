"""Compiled forms of the indexing functions of ``tidelog.log.find.engine.reference``: they walk, hash and put chunks
without the GIL.

Results are those of the reference, which gets every batch that is compressed, old or malformed. Arrays: a chunk, an
index file and entries are ``uint8``, rows are ``int64`` columns. Bytes are named by their address: see
``tidelog.log.records.intrinsics.address_of``. Every read is checked against the end of the batch's records (``limit``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidelog.log.records.intrinsics import (
    address_of,
    be_u16_at,
    be_u32_at,
    be_u64_at,
    byte_at,
    put_be_u32_at,
    put_be_u64_at,
    signed32,
)
from tidelog.log.records.kernel_cache import njit

END, FULL, ODD = 0, 1, 2
_NO_KEY = -1
_MAX_INT64, _MIN_INT64 = 0x7FFFFFFFFFFFFFFF, -0x8000000000000000
_MAX_TIME_DIFF = 0x7FFFFFFF
_HEADER_BYTES = 61
_MIN_RECORD_BYTES = 7
_INDEX_HEADER_BYTES = 40
_ENTRY_BYTES = 20

_BYTES = "Array(uint8, 1, 'C', True)"
_OUT = "Array(uint8, 1, 'C')"
_COLUMN = "Array(int64, 1, 'C')"
_WALK = f"UniTuple(int64, 4)({_BYTES}, int64, int64, {_BYTES}, int64, {_COLUMN}, {_COLUMN}, {_COLUMN}, {_COLUMN}, "
_WALK += f"{_COLUMN}, {_COLUMN}, int64)"
_PUT = f"UniTuple(int64, 5)({_OUT}, {_OUT}, UniTuple(int64, 4), {_COLUMN}, {_COLUMN}, {_COLUMN}, int64, int64)"
_TAGS = f"void({_OUT}, {_COLUMN}, {_COLUMN}, {_COLUMN}, {_COLUMN}, int64, int64)"

_31, _31_2, _31_3, _31_4 = np.uint64(31), np.uint64(31**2), np.uint64(31**3), np.uint64(31**4)


# ---- fields of a record


@njit(nogil=True)
def _raw_of_any_length(place: int, limit: int, max_bytes: int) -> Any:
    raw = np.uint64(0)
    shift = np.uint64(0)
    for at in range(place, min(place + max_bytes, limit)):
        byte = np.uint64(byte_at(at))
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            if max_bytes == 5:
                raw &= np.uint64(0xFFFFFFFF)
            return np.int64(raw), np.int64(at + 1)
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@njit(nogil=True)
def _raw(place: int, limit: int, max_bytes: int) -> Any:
    """A raw varint, its one- and two-byte cases inline: (raw, next place), place -1 when malformed."""
    if place + 2 <= limit:
        first = np.int64(byte_at(place))
        if first < 0x80:
            return first, np.int64(place + 1)
        second = np.int64(byte_at(place + 1))
        if second < 0x80:
            return (first & 0x7F) | (second << 7), np.int64(place + 2)
    return _raw_of_any_length(place, limit, max_bytes)


@njit(nogil=True)
def _zigzag(raw: int) -> Any:
    bits = np.uint64(raw)
    return np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1))


@njit(nogil=True)
def _field(place: int, limit: int, end: int) -> Any:
    """A nullable field: (its first byte, the place behind it or -1 when malformed or past ``end``); first byte 0 for
    a null."""
    raw, start = _raw(place, limit, 5)
    if start < 0:
        return np.int64(0), np.int64(-1)
    if raw & 1 != 0:
        return np.int64(0), start
    behind = start + (raw >> 1)
    return start, behind if behind <= end else np.int64(-1)


@njit(nogil=True)
def _java_hash(place: int, end: int, seed: int) -> Any:
    """``tidelog.log.find.hashing.java_hash``: signed 32 bits. Four bytes at a time, so that one multiplication in four
    waits for the one before; bits above 32 never come down."""
    value = np.uint64(seed)
    while place + 4 <= end:
        value = (
            value * _31_4
            + np.uint64(byte_at(place)) * _31_3
            + np.uint64(byte_at(place + 1)) * _31_2
            + np.uint64(byte_at(place + 2)) * _31
            + np.uint64(byte_at(place + 3))
        )
        place += 4
    while place < end:
        value = value * _31 + np.uint64(byte_at(place))
        place += 1
    return signed32(value & np.uint64(0xFFFFFFFF))


@njit(nogil=True)
def _key_hash(place: int, end: int, seed: int) -> Any:
    value = abs(_java_hash(place, end, seed))
    return value if value <= 0x7FFFFFFF else np.int64(0)


@njit(nogil=True)
def _is_name(start: int, end: int, name: int, name_size: int) -> Any:
    if end - start != name_size:
        return False
    for index in range(name_size):  # noqa: SIM110 - numba compiles no generators
        if byte_at(start + index) != byte_at(name + index):
            return False
    return True


@njit(nogil=True)
def _walk_headers(place: int, limit: int, end: int, name: int, name_size: int) -> Any:
    """(tag hash of the first header of that name or 0, place behind the headers or -1)."""
    raw, place = _raw(place, limit, 5)
    if place < 0 or raw & 1 != 0 or (raw >> 1) > end - place:
        return np.int64(0), np.int64(-1)
    tag, is_found = np.int64(0), name_size == 0
    for _ in range(raw >> 1):
        length, start = _raw(place, limit, 5)
        if start < 0 or length & 1 != 0 or start + (length >> 1) > end:
            return np.int64(0), np.int64(-1)
        name_end = start + (length >> 1)
        value_start, place = _field(name_end, limit, end)
        if place < 0:
            return np.int64(0), np.int64(-1)
        if not is_found and _is_name(start, name_end, name, name_size):
            is_found = True
            if value_start != 0:
                tag = _java_hash(value_start, place, 0)
    return tag, place


@njit(nogil=True)
def _walk_record(place: int, limit: int, seed: int, name: int, name_size: int) -> Any:
    """(timestamp delta, offset delta, key hash, tag hash, end of the record); end -1 when malformed."""
    zero, malformed = np.int64(0), np.int64(-1)
    raw, place = _raw(place, limit, 5)
    end = place + (raw >> 1)
    if place < 0 or raw & 1 != 0 or end > limit:
        return zero, zero, zero, zero, malformed
    timestamp, place = _raw(place + 1, limit, 10)
    if place < 0:
        return zero, zero, zero, zero, malformed
    offset, place = _raw(place, limit, 5)
    if place < 0:
        return zero, zero, zero, zero, malformed
    start, place = _field(place, limit, end)
    if place < 0:
        return zero, zero, zero, zero, malformed
    key = malformed if start == 0 else _key_hash(start, place, seed)
    _, place = _field(place, limit, end)
    if place < 0 or place >= end:
        return zero, zero, zero, zero, malformed
    tag, place = _walk_headers(place, limit, end, name, name_size)
    return _zigzag(timestamp), _zigzag(offset), key, tag, end if place == end else malformed


# ---- a chunk


@njit(_WALK, nogil=True, cache=True)
def walk_chunk(
    chunk: Any, base_position: int, seed: int, name: Any, count: int, offsets: Any, timestamps: Any, keys: Any,
    tags: Any, positions: Any, sizes: Any, capacity: int,
) -> Any:  # fmt: skip
    """(stop, position, next offset, rows): see the reference. One argument per column: numba takes no objects."""
    chunk_start, name_start, name_size = address_of(chunk), address_of(name), name.size
    position: Any = np.int64(0)
    next_offset: Any = np.int64(-1)
    while chunk.size - position >= _HEADER_BYTES:
        batch = chunk_start + position
        size = 12 + signed32(be_u32_at(batch + 8))
        if size > chunk.size - position:
            break
        attributes = np.int64(be_u16_at(batch + 21))
        if size < _HEADER_BYTES or byte_at(batch + 16) != 2 or attributes & 7 != 0:
            return ODD, position, next_offset, count
        base_offset, base_timestamp = np.int64(be_u64_at(batch)), np.int64(be_u64_at(batch + 27))
        max_timestamp, records = np.int64(be_u64_at(batch + 35)), signed32(be_u32_at(batch + 57))
        if records > capacity - count:
            return FULL, position, next_offset, count
        if attributes & 0x20 == 0:
            limit, at = batch + size, batch + _HEADER_BYTES
            if records < 0 or records * _MIN_RECORD_BYTES > limit - at:
                return ODD, position, next_offset, count
            for row in range(count, count + records):
                timestamp, offset, key, tag, at = _walk_record(at, limit, seed, name_start, name_size)
                if at < 0:
                    return ODD, position, next_offset, count
                offsets[row], keys[row], tags[row] = base_offset + offset, key, tag
                timestamps[row] = max_timestamp if attributes & 8 != 0 else base_timestamp + timestamp
                positions[row], sizes[row] = base_position + position, size
            if at != limit:
                return ODD, position, next_offset, count
            count += records
        next_offset = base_offset + signed32(be_u32_at(batch + 23)) + 1
        position += size
    return END, position, next_offset, count


# ---- entries


@njit(_PUT, nogil=True, cache=True)
def put_entries(
    data: Any, entries: Any, file: Any, offsets: Any, timestamps: Any, keys: Any, start: int, end: int
) -> Any:
    """``file`` is (slots, capacity, next entry, begin timestamp); the result is the reference's ``Put``."""
    slots, capacity, number, begin = file
    first_slot, entry = address_of(data) + _INDEX_HEADER_BYTES, address_of(entries)
    low, high, last_offset = np.int64(_MAX_INT64), np.int64(_MIN_INT64), np.int64(-1)
    for row in range(start, end):
        hashed = keys[row]
        if hashed == _NO_KEY:
            continue
        if number >= capacity:
            return number, row, low, high, last_offset
        timestamp, last_offset = timestamps[row], offsets[row]
        slot = first_slot + 4 * np.int64(np.uint32(hashed) % np.uint32(slots))
        diff = max(np.int64(0), min((timestamp - begin) // 1000, np.int64(_MAX_TIME_DIFF)))
        put_be_u32_at(entry, hashed)
        put_be_u64_at(entry + 4, last_offset)
        put_be_u32_at(entry + 12, diff)
        put_be_u32_at(entry + 16, signed32(be_u32_at(slot)))
        put_be_u32_at(slot, number)
        entry += _ENTRY_BYTES
        number += 1
        low, high = min(low, timestamp), max(high, timestamp)
    return number, end, low, high, last_offset


@njit(_TAGS, nogil=True, cache=True)
def put_tags(entries: Any, offsets: Any, positions: Any, sizes: Any, tags: Any, start: int, end: int) -> None:
    """See the reference."""
    base = address_of(entries) - _ENTRY_BYTES * offsets[start]
    for row in range(start, end):
        entry = base + _ENTRY_BYTES * offsets[row]
        put_be_u64_at(entry, positions[row])
        put_be_u32_at(entry + 8, sizes[row])
        put_be_u64_at(entry + 12, tags[row])
