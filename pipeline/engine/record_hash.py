"""Compiled routines that walk over batches and hash records; :mod:`tidelog.pipeline.engine.reference` describes them.

Two chains of multiplications run side by side, each over 16 bytes in a step. Positions are compared with the end of
their section before each read. The routines run without the interpreter lock. Types for C stand in
``record_hash.pxd``. Any thread.
"""

from __future__ import annotations

from tidelog.pipeline.engine import reference
from tidelog.pipeline.engine.reference import ByteArray, IntegerArray, WordArray
from tidelog.protocol.compiled import words
from tidelog.protocol.compiled.words import Bytes

try:
    import cython
except ImportError:
    from tidelog.protocol.compiled import uncompiled as cython

IS_COMPILED = cython.compiled
"""Whether this module runs as machine code."""

_HEADER_BYTES, _LENGTH_OFFSET = 61, 12
_NEED_BYTES, _TABLE_FULL, _NOT_MAGIC_2 = reference.NEED_BYTES, reference.TABLE_FULL, reference.NOT_MAGIC_2
_COLUMNS = reference.COLUMNS
_OFFSET, _TIMESTAMP, _LENGTH = reference.FACTOR_OFFSET, reference.FACTOR_TIMESTAMP, reference.FACTOR_LENGTH
_CHAIN = reference.FACTOR_CHAIN
_FIRST, _SECOND, _MIDDLE, _LAST = reference.SECRETS
_MIX_FIRST, _MIX_SECOND = reference.MIX_FIRST, reference.MIX_SECOND
_SEED_KEY, _SEED_VALUE = reference.SEED_KEY, reference.SEED_VALUE
_SIGN_64 = 1 << 63
_COMPRESSION_MASK, _APPEND_TIME_MASK = 7, 8


# ---- calls


def walk_batches(chunk: ByteArray, start: int, size: int, table: IntegerArray) -> tuple[int, int, int]:
    """See :func:`tidelog.pipeline.engine.reference.walk_batches`."""
    held, rows = words.hold(chunk), words.hold_writable(table)
    room = rows.size // (8 * _COLUMNS)
    with cython.nogil:
        stop, count, position = _walk(held.data, start, size, rows.integers, room)
    words.release(rows)
    words.release(held)
    return stop, count, position


def hash_section(
    section: ByteArray, bases: tuple[int, int, int], count: int, out: tuple[IntegerArray, IntegerArray, WordArray]
) -> int:
    """See :func:`tidelog.pipeline.engine.reference.hash_section`."""
    base_offset, base_timestamp, append_time = bases
    held = words.hold(section)
    offsets, timestamps, hashes = words.hold_writable(out[0]), words.hold_writable(out[1]), words.hold_writable(out[2])
    with cython.nogil:
        done = _hash_records(
            held.data, 0, held.size, base_offset, base_timestamp, append_time, count,
            offsets.integers, timestamps.integers, hashes.words, 0,
        )  # fmt: skip
    words.release(hashes)
    words.release(timestamps)
    words.release(offsets)
    words.release(held)
    return done


def hash_rows(
    chunk: ByteArray, table: IntegerArray, first: int, last: int, out: tuple[IntegerArray, IntegerArray, WordArray]
) -> tuple[int, int]:
    """See :func:`tidelog.pipeline.engine.reference.hash_rows`."""
    held, rows = words.hold(chunk), words.hold(table)
    offsets, timestamps, hashes = words.hold_writable(out[0]), words.hold_writable(out[1]), words.hold_writable(out[2])
    with cython.nogil:
        done, records = _hash_rows(
            held.data, held.size, rows.integers, first, last,
            offsets.integers, timestamps.integers, hashes.words, hashes.size // 8,
        )  # fmt: skip
    words.release(hashes)
    words.release(timestamps)
    words.release(offsets)
    words.release(rows)
    words.release(held)
    return done, records


def hash_columns(
    offsets_and_times: tuple[IntegerArray, IntegerArray],
    key: tuple[ByteArray, IntegerArray, ByteArray],
    value: tuple[ByteArray, IntegerArray, ByteArray],
    hashes: WordArray,
) -> None:
    """See :func:`tidelog.pipeline.engine.reference.hash_columns`."""
    offsets, timestamps, out = (
        words.hold(offsets_and_times[0]),
        words.hold(offsets_and_times[1]),
        words.hold_writable(hashes),
    )
    keys, key_starts, key_valid = words.hold(key[0]), words.hold(key[1]), words.hold(key[2])
    values, value_starts, value_valid = words.hold(value[0]), words.hold(value[1]), words.hold(value[2])
    with cython.nogil:
        _hash_columns(
            offsets.integers, timestamps.integers, keys.data, key_starts.integers, key_valid.data,
            values.data, value_starts.integers, value_valid.data, out.words, out.size // 8,
        )  # fmt: skip
    words.release(value_valid)
    words.release(value_starts)
    words.release(values)
    words.release(key_valid)
    words.release(key_starts)
    words.release(keys)
    words.release(out)
    words.release(timestamps)
    words.release(offsets)


# ---- batches


def _walk(chunk: Bytes, position: int, size: int, table: Bytes, room: int) -> tuple[int, int, int]:
    """Walk over batches: (why it stopped, rows, where the next batch begins)."""
    rows = 0
    while rows < room:
        if position + _HEADER_BYTES > size:
            is_old = size >= position + 17 and chunk[position + 16] != 2
            return _NOT_MAGIC_2 if is_old else _NEED_BYTES, rows, position
        base, length = words.load_be_i64(chunk, position), words.load_be_i32(chunk, position + 8)
        delta, count = words.load_be_i32(chunk, position + 23), words.load_be_i32(chunk, position + 57)
        if chunk[position + 16] != 2 or length < _HEADER_BYTES - _LENGTH_OFFSET or delta < 0 or base < 0 or count < 0:
            return _NOT_MAGIC_2, rows, position
        whole = length + _LENGTH_OFFSET
        if position + whole > size:
            return _NEED_BYTES, rows, position
        _write_row(chunk, position, whole, table, rows * _COLUMNS)
        rows += 1
        position += whole
    return _TABLE_FULL, rows, position


def _write_row(chunk: Bytes, at: int, size: int, table: Bytes, row: int) -> None:
    table[row] = at
    table[row + 1] = size
    table[row + 2] = words.load_be_i64(chunk, at)
    table[row + 3] = _sum(words.load_be_i64(chunk, at), words.load_be_i32(chunk, at + 23))
    table[row + 4] = words.load_be_i64(chunk, at + 27)
    table[row + 5] = words.load_be_i64(chunk, at + 35)
    table[row + 6] = words.load_be_i16(chunk, at + 21)
    table[row + 7] = words.load_be_i64(chunk, at + 43)
    table[row + 8] = words.load_be_i16(chunk, at + 51)
    table[row + 9] = words.load_be_i32(chunk, at + 53)
    table[row + 10] = words.load_be_i32(chunk, at + 57)
    table[row + 11] = words.load_be_u32(chunk, at + 17) == words.crc32c(chunk, at + 21, size - 21)


# ---- fields of a record


def _to_signed(word: int) -> int:
    """Return the signed number of the same 64 bits."""
    return (word & words.MAX_INT_64) | -(word & _SIGN_64)


def _sum(one: int, other: int) -> int:
    """Add two signed numbers, wrapped to 64 bits."""
    return _to_signed((one + other) & words.MASK_64)


def _zigzag(raw: int) -> int:
    """Undo zigzag on the 64 bits of ``raw``."""
    return (raw >> 1) ^ -(raw & 1)


def _read_varint(data: Bytes, at: int, end: int, bits: int) -> tuple[int, int]:
    """Read a varint: (zigzag value, next position); the position is -1 when it has more than ``bits`` bits or does not
    end before ``end``.
    """
    if at + 1 < end:  # nearly all varints have one byte or two
        first, second = data[at], data[at + 1]
        if first < 0x80:
            return _zigzag(first), at + 1
        if second < 0x80:
            return _zigzag((first & 0x7F) | (second << 7)), at + 2
    return _read_long_varint(data, at, end, bits)


def _read_long_varint(data: Bytes, at: int, end: int, bits: int) -> tuple[int, int]:
    raw = 0
    shift = 0
    while at < end and shift < bits:
        byte = data[at]
        at += 1
        if shift + 7 > bits and (byte >> (bits - shift)) != 0:
            return 0, -1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return _zigzag(raw), at
        shift += 7
    return 0, -1


# ---- hashes


def _fold(one: int, other: int) -> int:
    """Fold the product of two words: one half xor the other."""
    return ((one * other) & words.MASK_64) ^ words.multiply_high(one, other)


def _field_hash(data: Bytes, at: int, size: int, seed: int) -> int:
    """Compute the reference's ``field_hash`` of ``size`` bytes; a ``size`` of -1 is a null."""
    if size < 0:
        return seed
    first = seed ^ ((size + 1) * _LENGTH & words.MASK_64)
    second = first ^ _CHAIN
    end = at + size
    begin = at
    while at + 32 <= end:
        first = _fold(words.load_u64(data, at) ^ _FIRST, words.load_u64(data, at + 8) ^ first)
        second = _fold(words.load_u64(data, at + 16) ^ _SECOND, words.load_u64(data, at + 24) ^ second)
        at += 32
    if at + 16 < end:
        first = _fold(words.load_u64(data, at) ^ _MIDDLE, words.load_u64(data, at + 8) ^ first)
    if at < end:
        low, high = _read_last(data, begin, end)
        second = _fold(low ^ _LAST, high ^ second)
    return (first + second * _CHAIN) & words.MASK_64


def _read_last(data: Bytes, start: int, end: int) -> tuple[int, int]:
    """Read the last 16 bytes as two words; of a shorter field its first 8 and last 8, or all of it and 0."""
    if end - start >= 16:
        return words.load_u64(data, end - 16), words.load_u64(data, end - 8)
    if end - start >= 8:
        return words.load_u64(data, start), words.load_u64(data, end - 8)
    word = 0
    while end > start:
        end -= 1
        word = (word << 8) | data[end]
    return word, 0


def _record_hash(offset: int, timestamp: int, key: int, value: int) -> int:
    """Compute the reference's ``record_hash`` from the hashes of key and value."""
    x = ((offset * _OFFSET) ^ (timestamp * _TIMESTAMP)) & words.MASK_64
    x = x ^ key ^ value
    x = ((x ^ (x >> 30)) * _MIX_FIRST) & words.MASK_64
    x = ((x ^ (x >> 27)) * _MIX_SECOND) & words.MASK_64
    return x ^ (x >> 31)


def _read_field(data: Bytes, at: int, end: int, seed: int) -> tuple[int, int]:
    """Read the key or value whose length stands at ``at``: its hash and where it ends; -1 when malformed."""
    size, at = _read_varint(data, at, end, 32)
    length = size if size > 0 else 0
    if at < 0 or at + length > end:
        return 0, -1
    return _field_hash(data, at, size, seed), at + length


def _hash_records(
    data: Bytes, at: int, limit: int, base_offset: int, base_timestamp: int, append_time: int, count: int,
    offsets: Bytes, timestamps: Bytes, hashes: Bytes, row: int,
) -> int:  # fmt: skip
    """Hash the records from ``at`` to ``limit`` into the columns from ``row`` on; the next row, -1 when malformed."""
    for _ in range(count):
        length, at = _read_varint(data, at, limit, 32)
        end = at + length
        if at < 0 or length < 1 or end > limit:
            return -1
        timestamp, at = _read_varint(data, at + 1, end, 64)
        if at < 0:
            return -1
        offset, at = _read_varint(data, at, end, 32)
        if at < 0:
            return -1
        key, at = _read_field(data, at, end, _SEED_KEY)
        if at < 0:
            return -1
        value, at = _read_field(data, at, end, _SEED_VALUE)
        if at < 0:
            return -1
        offset = _sum(base_offset, offset)
        timestamp = append_time if append_time >= 0 else _sum(base_timestamp, timestamp)
        offsets[row], timestamps[row] = offset, timestamp
        hashes[row] = _record_hash(offset, timestamp, key, value)
        row += 1
        at = end
    return row if at == limit else -1


def _hash_rows(
    chunk: Bytes, size: int, table: Bytes, first: int, last: int, offsets: Bytes, timestamps: Bytes, hashes: Bytes,
    room: int,
) -> tuple[int, int]:  # fmt: skip
    """Hash the records of batch rows ``first`` to below ``last``: (row at which it stopped, records)."""
    records = 0
    for number in range(first, last):
        row = number * _COLUMNS
        count, attributes = table[row + 10], table[row + 6]
        if attributes & _COMPRESSION_MASK or records + count > room or table[row] + table[row + 1] > size:
            return number, records
        append_time = table[row + 5] if attributes & _APPEND_TIME_MASK else -1
        begin, end = table[row] + _HEADER_BYTES, table[row] + table[row + 1]
        done = _hash_records(chunk, begin, end, table[row + 2], table[row + 4], append_time, count,
                             offsets, timestamps, hashes, records)  # fmt: skip
        if done < 0:
            return number, records
        records = done
    return last, records


def _hash_columns(
    offsets: Bytes, timestamps: Bytes, keys: Bytes, key_starts: Bytes, key_valid: Bytes, values: Bytes,
    value_starts: Bytes, value_valid: Bytes, hashes: Bytes, count: int,
) -> None:  # fmt: skip
    for row in range(count):
        key_size = key_starts[row + 1] - key_starts[row] if key_valid[row] else -1
        value_size = value_starts[row + 1] - value_starts[row] if value_valid[row] else -1
        key = _field_hash(keys, key_starts[row], key_size, _SEED_KEY)
        value = _field_hash(values, value_starts[row], value_size, _SEED_VALUE)
        hashes[row] = _record_hash(offsets[row], timestamps[row], key, value)
