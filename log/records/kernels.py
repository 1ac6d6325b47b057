"""Compiled forms of ``tidelog.log.records.reference``: the same walks without the GIL.

Importing this module loads machine code from numba's cache on disk, or compiles (5 s) when there is none; a serving
process therefore imports it only through ``tidelog.log.records.kernel_loader``, after a child process has filled the
cache.

Each kernel takes a read-only ``uint8`` array (the records section) and returns a tuple whose first item is 0 when the
section is well-formed; anything else means malformed, and the reference then says what is wrong. Positions and values
are ``int64``; varints of 5 and 10 bytes drop the bits above 32 and 64, as the reference does. Any thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidelog.log.records.kernel_cache import njit

#: Read-only views are what frames give; numba lets writable arrays pass for them, so one signature serves both.
_CHECK = "UniTuple(int64, 5)(Array(uint8, 1, 'C', True), int64)"
_AT_OR_AFTER = "UniTuple(int64, 3)(Array(uint8, 1, 'C', True), int64, int64, int64)"
_MIN_RECORD_BYTES = 7
_MIN_INT64, _MAX_INT64 = -0x8000000000000000, 0x7FFFFFFFFFFFFFFF
MALFORMED = 1


@njit(nogil=True)
def _read_long_varint(data: Any, position: int, max_bytes: int) -> Any:
    """A raw varint of any length: (raw, next position), position -1 when it does not end in time."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    for index in range(position, min(position + max_bytes, data.size)):
        byte = np.uint64(data[index])
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            if max_bytes == 5:
                raw &= np.uint64(0xFFFFFFFF)
            return np.int64(raw), index + 1
        shift += np.uint64(7)
    return np.int64(0), -1


@njit(nogil=True)
def _read_raw(data: Any, position: int, max_bytes: int) -> Any:
    """A raw varint, its one- and two-byte cases inline: (raw, next position), position -1 when malformed."""
    if position + 2 <= data.size:
        first = np.int64(data[position])
        if first < 0x80:
            return first, position + 1
        second = np.int64(data[position + 1])
        if second < 0x80:
            return (first & 0x7F) | (second << 7), position + 2
    return _read_long_varint(data, position, max_bytes)


@njit(nogil=True)
def _zigzag(raw: int) -> Any:
    """Undo zigzag on the 64 bits of ``raw``."""
    bits = np.uint64(raw)
    return np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1))


@njit(nogil=True)
def _read_deltas(data: Any, position: int) -> Any:
    """(timestamp delta, offset delta, position after them, end of the record); end -1 when malformed."""
    raw, position = _read_raw(data, position, 5)
    end = position + (raw >> 1)
    if position < 0 or raw & 1 != 0 or end > data.size:
        return np.int64(0), np.int64(0), 0, -1
    raw_timestamp, position = _read_raw(data, position + 1, 10)
    if position < 0:
        return np.int64(0), np.int64(0), 0, -1
    raw_offset, position = _read_raw(data, position, 5)
    if position < 0:
        return np.int64(0), np.int64(0), 0, -1
    return _zigzag(raw_timestamp), _zigzag(raw_offset), position, end


@njit(nogil=True)
def _skip_field(data: Any, position: int, end: int) -> Any:
    """Skip a nullable field: (whether it is null, next position), position -1 when malformed or past ``end``."""
    raw, position = _read_raw(data, position, 5)
    if position < 0:
        return False, -1
    if raw & 1 != 0:
        return True, position
    position += raw >> 1
    return False, position if position <= end else -1


@njit(nogil=True)
def _skip_headers(data: Any, position: int, end: int) -> Any:
    """The position after header count and headers, -1 when malformed."""
    raw, position = _read_raw(data, position, 5)
    if position < 0 or raw & 1 != 0 or (raw >> 1) > end - position:
        return -1
    for _ in range(raw >> 1):
        is_null, position = _skip_field(data, position, end)
        if position < 0 or is_null:
            return -1
        is_null, position = _skip_field(data, position, end)
        if position < 0:
            return -1
    return position


@njit(nogil=True)
def _skip_rest(data: Any, position: int, end: int) -> Any:
    """Key, value and headers: (whether the key is null, whether they end at ``end``)."""
    is_keyless, position = _skip_field(data, position, end)
    if position < 0:
        return is_keyless, False
    _, position = _skip_field(data, position, end)
    if position < 0 or position >= data.size:
        return is_keyless, False
    if data[position] == 0:
        return is_keyless, position + 1 == end
    return is_keyless, _skip_headers(data, position, end) == end


@njit(_CHECK, nogil=True, cache=True)
def check_section(data: Any, count: int) -> Any:
    """(status, least and largest timestamp delta, first index without key or -1, 1 if offset deltas are 0..n-1)."""
    if count < 0 or count > data.size // _MIN_RECORD_BYTES:
        return MALFORMED, 0, 0, 0, 0
    position = 0
    low, high = np.int64(_MAX_INT64), np.int64(_MIN_INT64)
    first_keyless, consecutive = -1, 1
    for index in range(count):
        delta, offset, position, end = _read_deltas(data, position)
        if end < 0:
            return MALFORMED, 0, 0, 0, 0
        low, high = min(low, delta), max(high, delta)
        if offset != index:
            consecutive = 0
        is_keyless, is_whole = _skip_rest(data, position, end)
        if not is_whole:
            return MALFORMED, 0, 0, 0, 0
        if is_keyless and first_keyless < 0:
            first_keyless = index
        position = end
    if position != data.size:
        return MALFORMED, 0, 0, 0, 0
    return 0, low, high, first_keyless, consecutive


@njit(_AT_OR_AFTER, nogil=True, cache=True)
def first_at_or_after(data: Any, count: int, timestamp_delta: int, min_offset_delta: int) -> Any:
    """(status, offset delta, timestamp delta) of the first record at or after; offset delta -1 when there is none."""
    if count < 0 or count > data.size // _MIN_RECORD_BYTES:
        return MALFORMED, 0, 0
    position = 0
    for _ in range(count):
        timestamp, offset, _, position = _read_deltas(data, position)
        if position < 0 or offset < 0:
            return MALFORMED, 0, 0
        if timestamp >= timestamp_delta and offset >= min_offset_delta:
            return 0, offset, timestamp
    return 0, -1, 0
