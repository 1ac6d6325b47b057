"""The numba twins of ``tidelog.pipeline.decode.columns_reference``: equal results, without the GIL.

A record costs 15 ns beside its bytes: one- and two-byte varints are read inline from one unaligned word, longer ones by
a call. Buffers end with ``PADDING`` bytes, so a varint needs no bounds check of its own; a record's end is checked.
"""

from __future__ import annotations

import numpy as np

from tidelog.log.records.intrinsics import (
    ByteArray,
    Integer,
    IntegerArray,
    copy_bytes,
    crc32c,
    kernel,
    load_be_u16,
    load_be_u32,
    load_be_u64,
    signed16,
    signed32,
)
from tidelog.pipeline.decode.columns_reference import (
    APPEND_TIME,
    BAD_CRC,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    CLEANED_BELOW,
    COLUMNS,
    COMPRESSED,
    CONSUMED,
    CONTEXT_SLOTS,
    END,
    END_OFFSET,
    FIRST,
    HAS_KEY,
    HEADERS,
    HEADERS_START,
    HOLE,
    IS_APPEND_TIME,
    KEY_SIZE,
    KEY_START,
    LAST,
    LIMIT_SLOTS,
    MALFORMED,
    MAX_TIME,
    MIN_TIME,
    NEED_BYTES,
    NEXT_OFFSET,
    OFFSET,
    OLD_FORMAT,
    PADDING,
    PRODUCER,
    PROGRESS_SLOTS,
    RECORDS,
    ROWS,
    SECTION_END,
    SECTION_START,
    START_OFFSET,
    TABLE_FULL,
    TIMESTAMP,
    TIMESTAMP_TYPE,
    VALUE_SIZE,
    VALUE_START,
    OffsetArray,
)

_HEADER_BYTES = 61
_LOG_OVERHEAD = 12
_MIN_RECORD_BYTES = 7
_CONTROL, _TRANSACTIONAL, _APPEND_TIME_BIT, _CODEC = 0x20, 0x10, 0x08, 0x07


@kernel
def _long_varint(data: ByteArray, position: Integer, max_bytes: Integer) -> Integer:
    """A raw varint of any length: (raw, next position), position -1 when it does not end in ``max_bytes``."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    for index in range(position, position + max_bytes):
        byte = np.uint64(data[index])
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            if max_bytes == 5:
                raw &= np.uint64(0xFFFFFFFF)
            return np.int64(raw), index + 1
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@kernel
def _raw_varint(data: ByteArray, position: Integer, max_bytes: Integer) -> Integer:
    first = np.int64(data[position])
    if first < 0x80:
        return first, position + 1
    second = np.int64(data[position + 1])
    if second < 0x80:
        return (first & 0x7F) | (second << 7), position + 2
    return _long_varint(data, position, max_bytes)


@kernel
def _zigzag(raw: Integer) -> Integer:
    bits = np.uint64(raw)
    return np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1))


@kernel
def _field(data: ByteArray, position: Integer, end: Integer) -> Integer:
    """(start, size or -1 for null, next position); next position -1 when it does not fit."""
    raw, position = _raw_varint(data, position, 5)
    if position < 0 or position > end:
        return np.int64(0), np.int64(0), np.int64(-1)
    if raw & 1:
        return position, np.int64(-1), position
    size = raw >> 1
    if size > end - position:
        return np.int64(0), np.int64(0), np.int64(-1)
    return position, size, position + size


@kernel
def _skip_headers(data: ByteArray, position: Integer, count: Integer, end: Integer) -> Integer:
    """Return the position after ``count`` headers, -1 when malformed."""
    for _ in range(count):
        if position >= end:
            return np.int64(-1)
        _, size, position = _field(data, position, end)
        if position < 0 or size < 0 or position >= end:
            return np.int64(-1)
        _, size, position = _field(data, position, end)
        if position < 0:
            return np.int64(-1)
    return position


@kernel
def _is_key(data: ByteArray, start: Integer, size: Integer, key: ByteArray) -> Integer:
    if size != key.size:
        return False
    for index in range(size):  # noqa: SIM110 - numba compiles no generators
        if data[start + index] != key[index]:
            return False
    return True


@kernel
def _is_wanted(offset: Integer, timestamp: Integer, limits: IntegerArray) -> Integer:
    if offset < limits[START_OFFSET] or offset >= limits[END_OFFSET]:
        return False
    return limits[MIN_TIME] <= timestamp <= limits[MAX_TIME]


@kernel
def decode_section(  # noqa: C901 - one loop: with a record's walk in a function of its own it takes 34 ns for 25
    buffer: ByteArray,
    context: IntegerArray,
    limits: IntegerArray,
    key: ByteArray,
    table: IntegerArray,
    progress: IntegerArray,
) -> Integer:
    """Compiled twin of the function of this name in ``columns_reference``."""
    position, end, count = context[SECTION_START], context[SECTION_END], context[RECORDS]
    if count < 0 or count * _MIN_RECORD_BYTES > end - position:
        return MALFORMED
    base_offset, base_timestamp = context[BASE_OFFSET], context[BASE_TIMESTAMP]
    append_time, is_append_time = context[APPEND_TIME], context[IS_APPEND_TIME]
    row = progress[ROWS]
    for _ in range(count):
        if position >= end:
            return MALFORMED
        raw, position = _raw_varint(buffer, position, 5)
        if position < 0 or raw & 1 or (raw >> 1) > end - position:
            return MALFORMED
        record_end = position + (raw >> 1)
        raw, position = _raw_varint(buffer, position + 1, 10)
        if position < 0:
            return MALFORMED
        timestamp = append_time if is_append_time else base_timestamp + _zigzag(raw)
        raw, position = _raw_varint(buffer, position, 5)
        if position < 0 or position >= record_end:
            return MALFORMED
        offset = base_offset + _zigzag(raw)
        key_start, key_size, position = _field(buffer, position, record_end)
        if position < 0 or position >= record_end:
            return MALFORMED
        value_start, value_size, position = _field(buffer, position, record_end)
        if position < 0 or position >= record_end:
            return MALFORMED
        raw, headers_start = _raw_varint(buffer, position, 5)
        if headers_start < 0 or raw & 1 or (raw >> 1) > record_end - headers_start:
            return MALFORMED
        if _skip_headers(buffer, headers_start, raw >> 1, record_end) != record_end:
            return MALFORMED
        position = record_end
        if not _is_wanted(offset, timestamp, limits):
            continue
        if limits[HAS_KEY] and not _is_key(buffer, key_start, key_size, key):
            continue
        table[OFFSET, row], table[TIMESTAMP, row], table[TIMESTAMP_TYPE, row] = offset, timestamp, is_append_time
        table[KEY_START, row], table[KEY_SIZE, row] = key_start, key_size
        table[VALUE_START, row], table[VALUE_SIZE, row] = value_start, value_size
        table[HEADERS_START, row], table[HEADERS, row] = headers_start, raw >> 1
        row += 1
    if position != end:
        return MALFORMED
    progress[ROWS] = row
    return NEED_BYTES


@kernel
def _is_aborted(aborted: IntegerArray, producer: Integer, offset: Integer) -> Integer:
    """Search ``aborted``: rows are sorted by producer and first offset; a producer's transactions do not overlap."""
    low, high = np.int64(0), np.int64(aborted.shape[0])
    while low < high:
        middle = (low + high) >> 1
        other = aborted[middle, PRODUCER]
        if other < producer or (other == producer and aborted[middle, FIRST] <= offset):
            low = middle + 1
        else:
            high = middle
    return low > 0 and aborted[low - 1, PRODUCER] == producer and offset <= aborted[low - 1, LAST]


@kernel
def _look(
    chunk: ByteArray, at: Integer, size: Integer, least: Integer, limits: IntegerArray, aborted: IntegerArray
) -> Integer:
    """(status, batch size or 0 when it is cut, whether it may hold rows); NEED_BYTES means nothing is wrong."""
    if size - at < _HEADER_BYTES:
        return NEED_BYTES, np.int64(0), False
    base = np.int64(load_be_u64(chunk, at))
    if base >= limits[END_OFFSET]:
        return END, np.int64(0), False
    length = signed32(load_be_u32(chunk, at + 8))
    delta = signed32(load_be_u32(chunk, at + 23))
    if length < _HEADER_BYTES - _LOG_OVERHEAD or delta < 0 or base < least:
        return MALFORMED, np.int64(0), False
    if length > size - at - _LOG_OVERHEAD:
        return NEED_BYTES, np.int64(0), False
    if np.int64(load_be_u32(chunk, at + 17)) != crc32c(chunk, at + 21, length + _LOG_OVERHEAD - 21):
        return BAD_CRC, np.int64(0), False
    if base > least and base > limits[START_OFFSET] and base > limits[CLEANED_BELOW]:
        return HOLE, np.int64(0), False
    batch_size = length + _LOG_OVERHEAD
    attributes = signed16(load_be_u16(chunk, at + 21))
    max_timestamp = np.int64(load_be_u64(chunk, at + 35))
    if base + delta < limits[START_OFFSET] or max_timestamp < limits[MIN_TIME] or attributes & _CONTROL:
        return NEED_BYTES, batch_size, False
    if attributes & _TRANSACTIONAL and _is_aborted(aborted, np.int64(load_be_u64(chunk, at + 43)), base):
        return NEED_BYTES, batch_size, False
    return (COMPRESSED if attributes & _CODEC else NEED_BYTES), batch_size, True


@kernel
def _set_context(chunk: ByteArray, at: Integer, batch_size: Integer, context: IntegerArray) -> None:
    context[BASE_OFFSET] = np.int64(load_be_u64(chunk, at))
    context[BASE_TIMESTAMP] = np.int64(load_be_u64(chunk, at + 27))
    context[APPEND_TIME] = np.int64(load_be_u64(chunk, at + 35))
    context[IS_APPEND_TIME] = (signed16(load_be_u16(chunk, at + 21)) & _APPEND_TIME_BIT) >> 3
    context[RECORDS] = signed32(load_be_u32(chunk, at + 57))
    context[SECTION_START] = at + _HEADER_BYTES
    context[SECTION_END] = at + batch_size


@kernel
def decode_chunk(
    chunk: ByteArray,
    bounds: IntegerArray,
    limits: IntegerArray,
    key: ByteArray,
    aborted: IntegerArray,
    table: IntegerArray,
    progress: IntegerArray,
) -> Integer:
    """Compiled twin of the function of this name in ``columns_reference``."""
    at, size = bounds[0], bounds[1]
    context = np.empty(CONTEXT_SLOTS, np.int64)
    status = NEED_BYTES
    while size - at > 16:
        if progress[NEXT_OFFSET] >= limits[END_OFFSET]:
            status = END
            break
        if chunk[at + 16] != 2:
            status = OLD_FORMAT
            break
        status, batch_size, is_wanted = _look(chunk, at, size, progress[NEXT_OFFSET], limits, aborted)
        if status == NEED_BYTES and batch_size and is_wanted:
            _set_context(chunk, at, batch_size, context)
            count = context[RECORDS]
            if count < 0 or count * _MIN_RECORD_BYTES > batch_size - _HEADER_BYTES:
                status = MALFORMED
            elif count > table.shape[1] - progress[ROWS]:
                status = TABLE_FULL
            else:
                status = decode_section(chunk, context, limits, key, table, progress)
        if status != NEED_BYTES or batch_size == 0:
            break
        progress[NEXT_OFFSET] = np.int64(load_be_u64(chunk, at)) + signed32(load_be_u32(chunk, at + 23)) + 1
        at += batch_size
    progress[CONSUMED] = at
    return status


@kernel
def gather(
    buffer: ByteArray,
    starts: IntegerArray,
    sizes: IntegerArray,
    span: IntegerArray,
    offsets: OffsetArray,
    validity: ByteArray,
    data: ByteArray,
) -> Integer:
    """Compiled twin of the function of this name in ``columns_reference``."""
    nulls, out = np.int64(0), span[2]
    at = np.int64(offsets[out])
    for row in range(span[0], span[1]):
        size = sizes[row]
        if size < 0:
            nulls += 1
        else:
            validity[out >> 3] |= np.uint8(1 << (out & 7))
            copy_bytes(data, at, buffer, starts[row], size)
            at += size
        out += 1
        offsets[out] = at
    return nulls


@kernel
def total_size(sizes: IntegerArray) -> Integer:
    """Compiled twin of the function of this name in ``columns_reference``."""
    total = np.int64(0)
    for size in sizes:
        total += max(size, np.int64(0))
    return total


@kernel
def header_fields(buffer: ByteArray, table: IntegerArray, span: IntegerArray, fields: IntegerArray) -> Integer:
    """Compiled twin of the function of this name in ``columns_reference``."""
    number = span[2]
    for row in range(span[0], span[1]):
        position = table[HEADERS_START, row]
        for _ in range(table[HEADERS, row]):
            name, name_size, position = _field(buffer, position, buffer.size)
            value, value_size, position = _field(buffer, position, buffer.size)
            fields[0, number] = name
            fields[1, number] = name_size
            fields[2, number] = value
            fields[3, number] = value_size
            number += 1
    return number


def compile_all() -> None:
    """Compile the kernels for the types they are called with, or take them from the cache."""
    buffer, key = np.zeros(PADDING, np.uint8), np.zeros(0, np.uint8)
    bounds, limits = np.zeros(2, np.int64), np.zeros(LIMIT_SLOTS, np.int64)
    table, progress = np.zeros((COLUMNS, 1), np.int64), np.zeros(PROGRESS_SLOTS, np.int64)
    decode_chunk(buffer, bounds, limits, key, np.zeros((0, 3), np.int64), table, progress)
    decode_section(buffer, np.zeros(CONTEXT_SLOTS, np.int64), limits, key, table, progress)
    offsets = np.zeros(2, np.int32)
    gather(buffer, table[KEY_START], table[KEY_SIZE], np.zeros(3, np.int64), offsets, buffer.copy(), buffer.copy())
    total_size(table[KEY_SIZE])
    header_fields(buffer, table, np.zeros(3, np.int64), np.zeros((4, 1), np.int64))


compile_all()
