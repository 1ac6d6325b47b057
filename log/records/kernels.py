"""Fields of records for the kernels of ``tidelog.log.find.engine``: varints, deltas, nullable fields.

Positions and values are ``int64``; varints of 5 and 10 bytes drop the bits above 32 and 64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidelog.log.records.kernel_cache import njit


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
