"""Compiled routines that build records sections from columns, without Python code per row.

``tidelog.pipeline.sink.build`` describes the columns and calls these routines. ``take`` computes the size first, so
``encode`` writes into an array of exactly that size and checks nothing: its count and array must come from ``take``
over the same columns. Everything runs without the interpreter lock. Types for C stand in ``sections.pxd``. Any thread.
"""

from __future__ import annotations

from typing import Any

from tidelog.protocol.compiled import words
from tidelog.protocol.compiled.words import Bytes

try:
    import cython
except ImportError:
    from tidelog.protocol.compiled import uncompiled as cython

IS_COMPILED = cython.compiled
"""Whether this module runs as machine code."""

_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C

Integers = memoryview
"""An array of signed integers of 64 bits."""


class HeldColumn:
    """The buffers of a ``ByteColumn``, held until :meth:`release`."""

    def __init__(self, column: Any) -> None:
        self.data = words.hold(column.data)
        self.start = words.hold(column.start)
        self.length = words.hold(column.length)

    def release(self) -> None:
        """Release the buffers."""
        words.release(self.length)
        words.release(self.start)
        words.release(self.data)


class HeldColumns:
    """The buffers of a ``RecordColumns`` and of an array of row numbers, held until :meth:`release`."""

    def __init__(self, columns: Any, rows: Any) -> None:
        self.key = HeldColumn(columns.key)
        self.value = HeldColumn(columns.value)
        self.header_key = HeldColumn(columns.header_key)
        self.header_value = HeldColumn(columns.header_value)
        self.timestamp = words.hold(columns.timestamp)
        self.header_start = words.hold(columns.header_start)
        self.header_count = words.hold(columns.header_count)
        self.rows = words.hold(rows)

    def release(self) -> None:
        """Release the buffers."""
        words.release(self.rows)
        words.release(self.header_count)
        words.release(self.header_start)
        words.release(self.timestamp)
        self.header_value.release()
        self.header_key.release()
        self.value.release()
        self.key.release()


def write_key_hashes(keys: Any, hashes: Any) -> None:
    """See :func:`tidelog.pipeline.sink.build.key_hashes`; writes to ``hashes`` (int64)."""
    column = HeldColumn(keys)
    found = words.hold_writable(hashes)
    with cython.nogil:
        _hash_keys(column, found.integers, found.size // 8)
    words.release(found)
    column.release()


def take(columns: Any, rows: Any, first: int, limit_bytes: int) -> tuple[int, int, int, int]:
    """See :func:`tidelog.pipeline.sink.build.take`; returns (rows, section bytes, base timestamp, largest
    timestamp)."""
    held = HeldColumns(columns, rows)
    with cython.nogil:
        count, section_bytes, base, largest = _take(held, first, held.rows.size // 8, limit_bytes)
    held.release()
    return count, section_bytes, base, largest


def encode(columns: Any, rows: Any, first: int, count: int, out: Any) -> int:
    """Write the section of ``count`` rows into ``out``, of the size that ``take`` found; returns the bytes written."""
    held = HeldColumns(columns, rows)
    target = words.hold_writable(out)
    with cython.nogil:
        written = _encode(held, first, count, target.bytes)
    words.release(target)
    held.release()
    return written


# ---- keys


def _hash_keys(keys: HeldColumn, hashes: Integers, rows: int) -> None:
    for row in range(rows):
        length = keys.length.integers[row]
        if length < 0:
            hashes[row] = -1
        else:
            hashes[row] = _murmur2(keys.data.data, keys.start.integers[row], length) & 0x7FFFFFFF


def _murmur2(data: Bytes, start: int, size: int) -> int:
    """Compute the 32-bit hash of a key, as Kafka's producers do (MurmurHash2 with Kafka's seed)."""
    whole = size >> 2
    hashed = _SEED ^ (size & words.MASK_32)
    for number in range(whole):
        word = (words.load_u32(data, start + 4 * number) * _MULTIPLIER) & words.MASK_32
        word = ((word ^ (word >> 24)) * _MULTIPLIER) & words.MASK_32
        hashed = ((hashed * _MULTIPLIER) & words.MASK_32) ^ word
    if size & 3:
        word = 0
        for number in range(size & 3):
            word |= data[start + 4 * whole + number] << (8 * number)
        hashed = ((hashed ^ word) * _MULTIPLIER) & words.MASK_32
    hashed = ((hashed ^ (hashed >> 13)) * _MULTIPLIER) & words.MASK_32
    return hashed ^ (hashed >> 15)


# ---- sizes


def _zigzag(value: int) -> int:
    return ((value << 1) ^ (value >> 63)) & words.MASK_64


def _varint_bytes(value: int) -> int:
    raw = _zigzag(value)
    size = 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size


def _field_bytes(length: int) -> int:
    return _varint_bytes(length) + (length if length > 0 else 0)


def _body_bytes(columns: HeldColumns, row: int, delta: int, base_timestamp: int) -> int:
    """Count a record's bytes after its length field."""
    headers = columns.header_count.integers[row]
    size = 1 + _varint_bytes(columns.timestamp.integers[row] - base_timestamp) + _varint_bytes(delta)
    size += _field_bytes(columns.key.length.integers[row]) + _field_bytes(columns.value.length.integers[row])
    size += _varint_bytes(headers)
    first = columns.header_start.integers[row]
    for at in range(first, first + headers):
        size += _field_bytes(columns.header_key.length.integers[at])
        size += _field_bytes(columns.header_value.length.integers[at])
    return size


def _take(columns: HeldColumns, first: int, rows: int, limit_bytes: int) -> tuple[int, int, int, int]:
    """See :func:`take`."""
    base_timestamp = columns.timestamp.integers[columns.rows.integers[first]]
    largest = base_timestamp
    section_bytes = 0
    count = 0
    while first + count < rows:
        row = columns.rows.integers[first + count]
        body = _body_bytes(columns, row, count, base_timestamp)
        size = _varint_bytes(body) + body
        if count > 0 and section_bytes + size > limit_bytes:
            break
        section_bytes += size
        count += 1
        timestamp = columns.timestamp.integers[row]
        if timestamp > largest:
            largest = timestamp
    return count, section_bytes, base_timestamp, largest


# ---- bytes


def _put_varint(out: Bytes, at: int, value: int) -> int:
    raw = _zigzag(value)
    while raw >= 0x80:
        out[at] = (raw & 0x7F) | 0x80
        raw >>= 7
        at += 1
    out[at] = raw
    return at + 1


def _put_field(out: Bytes, at: int, column: HeldColumn, row: int) -> int:
    length = column.length.integers[row]
    at = _put_varint(out, at, length)
    if length > 0:
        words.copy_bytes(out, at, column.data.data, column.start.integers[row], length)
        at += length
    return at


def _encode(columns: HeldColumns, first: int, count: int, out: Bytes) -> int:
    """See :func:`encode`."""
    base_timestamp = columns.timestamp.integers[columns.rows.integers[first]]
    at = 0
    for delta in range(count):
        row = columns.rows.integers[first + delta]
        at = _put_varint(out, at, _body_bytes(columns, row, delta, base_timestamp))
        out[at] = 0
        at = _put_varint(out, at + 1, columns.timestamp.integers[row] - base_timestamp)
        at = _put_varint(out, at, delta)
        at = _put_field(out, at, columns.key, row)
        at = _put_field(out, at, columns.value, row)
        headers = columns.header_count.integers[row]
        at = _put_varint(out, at, headers)
        start = columns.header_start.integers[row]
        for header in range(start, start + headers):
            at = _put_field(out, at, columns.header_key, header)
            at = _put_field(out, at, columns.header_value, header)
    return at
