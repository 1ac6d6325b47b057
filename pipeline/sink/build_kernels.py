"""The numba twins of ``tidelog.pipeline.sink.build_reference``: record sections from columns without a step of Python
per row.

``columns`` is a :class:`~tidelog.pipeline.sink.build_reference.RecordColumns` whose arrays are all read-only, which
keeps numba to one compilation. ``take`` measures first, so ``encode`` writes into an array of the exact size and checks
nothing: what it is given must come from ``take`` over the same columns. Any thread; the interpreter lock is not held.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidelog.log.records.intrinsics import ByteArray, Integer, IntegerArray, copy_bytes, kernel

_MULTIPLIER = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)


@kernel
def _murmur2(data: ByteArray, start: Integer, size: Integer) -> Integer:
    whole = start + (size & ~3)
    hashed = _SEED ^ np.uint32(size)
    for at in range(start, whole, 4):
        word = np.uint32(data[at]) | (np.uint32(data[at + 1]) << np.uint32(8))
        word |= (np.uint32(data[at + 2]) << np.uint32(16)) | (np.uint32(data[at + 3]) << np.uint32(24))
        word = np.uint32(word * _MULTIPLIER)
        word = np.uint32((word ^ (word >> np.uint32(24))) * _MULTIPLIER)
        hashed = np.uint32(hashed * _MULTIPLIER) ^ word
    rest = size & 3
    if rest:
        word = np.uint32(0)
        for index in range(rest):
            word |= np.uint32(data[whole + index]) << np.uint32(8 * index)
        hashed = np.uint32((hashed ^ word) * _MULTIPLIER)
    hashed = np.uint32((hashed ^ (hashed >> np.uint32(13))) * _MULTIPLIER)
    return hashed ^ (hashed >> np.uint32(15))


@kernel
def key_hashes(keys: Any, out: IntegerArray) -> None:
    """As ``build_reference.key_hashes``, into ``out`` (int64, one per row)."""
    for row in range(keys.length.size):
        if keys.length[row] < 0:
            out[row] = -1
        else:
            hashed = _murmur2(keys.data, keys.start[row], keys.length[row])
            out[row] = np.int64(hashed) & np.int64(0x7FFFFFFF)


@kernel
def _zigzag(value: Integer) -> Integer:
    return np.uint64(value << 1) ^ np.uint64(value >> 63)


@kernel
def _varint_bytes(value: Integer) -> Integer:
    raw = _zigzag(value)
    size = 1
    while raw >= np.uint64(0x80):
        raw >>= np.uint64(7)
        size += 1
    return size


@kernel
def _put_varint(out: ByteArray, at: Integer, value: Integer) -> Integer:
    raw = _zigzag(value)
    while raw >= np.uint64(0x80):
        out[at] = np.uint8((raw & np.uint64(0x7F)) | np.uint64(0x80))
        raw >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(raw)
    return at + 1


@kernel
def _field_bytes(length: Integer) -> Integer:
    return _varint_bytes(length) + max(length, 0)


@kernel
def _put_field(out: ByteArray, at: Integer, column: Any, row: Integer) -> Integer:
    length = column.length[row]
    at = _put_varint(out, at, length)
    if length > 0:
        copy_bytes(out, at, column.data, column.start[row], length)
        at += length
    return at


@kernel
def _body_bytes(columns: Any, row: Integer, delta: Integer, base_timestamp: Integer) -> Integer:
    """Compute a record's size after its length field."""
    headers = columns.header_count[row]
    size = 1 + _varint_bytes(columns.timestamp[row] - base_timestamp) + _varint_bytes(delta)
    size += _field_bytes(columns.key.length[row]) + _field_bytes(columns.value.length[row]) + _varint_bytes(headers)
    first = columns.header_start[row]
    for at in range(first, first + headers):
        size += _field_bytes(columns.header_key.length[at]) + _field_bytes(columns.header_value.length[at])
    return size


@kernel
def take(columns: Any, rows: IntegerArray, first: Integer, limit_bytes: Integer) -> Any:
    """As ``build_reference.take``: count, section bytes, base and max timestamp."""
    base_timestamp = columns.timestamp[rows[first]]
    max_timestamp = base_timestamp
    section_bytes = np.int64(0)
    count = np.int64(0)
    for position in range(first, rows.size):
        row = rows[position]
        body = _body_bytes(columns, row, count, base_timestamp)
        size = _varint_bytes(body) + body
        if count and section_bytes + size > limit_bytes:
            break
        section_bytes += size
        count += 1
        max_timestamp = max(max_timestamp, columns.timestamp[row])
    return count, section_bytes, base_timestamp, max_timestamp


@kernel
def encode(columns: Any, rows: IntegerArray, first: Integer, count: Integer, out: ByteArray) -> Integer:
    """As ``build_reference.encode``, into ``out`` of the size ``take`` found. Returns the bytes written."""
    base_timestamp = columns.timestamp[rows[first]]
    at = np.int64(0)
    for delta in range(count):
        row = rows[first + delta]
        at = _put_varint(out, at, _body_bytes(columns, row, delta, base_timestamp))
        out[at] = 0
        at = _put_varint(out, at + 1, columns.timestamp[row] - base_timestamp)
        at = _put_varint(out, at, delta)
        at = _put_field(out, at, columns.key, row)
        at = _put_field(out, at, columns.value, row)
        headers = columns.header_count[row]
        at = _put_varint(out, at, headers)
        start = columns.header_start[row]
        for header in range(start, start + headers):
            at = _put_field(out, at, columns.header_key, header)
            at = _put_field(out, at, columns.header_value, header)
    return at
