"""The decoder of records to columns in plain Python, over the format's own reader: the oracle of
``tidelog.pipeline.decode.columns``. ``tidelog.pipeline.decode.layout`` describes tables and statuses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tidelog.pipeline.decode.layout import (
    APPEND_TIME,
    BAD_CRC,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    BEGIN,
    CLEANED_BELOW,
    COMPRESSED,
    CONSUMED,
    END,
    END_OFFSET,
    FIRST,
    HAS_KEY,
    HEADERS,
    HEADERS_START,
    HOLE,
    IS_APPEND_TIME,
    LAST,
    MALFORMED,
    MAX_TIME,
    MIN_TIME,
    NEED_BYTES,
    NEXT_OFFSET,
    OLD_FORMAT,
    PRODUCER,
    RECORDS,
    ROWS,
    SECTION_END,
    SECTION_START,
    SIZE,
    START_OFFSET,
    TABLE_FULL,
    VERIFIED_FROM,
    VERIFIED_TO,
)
from tidelog.protocol.errors import InvalidRecordError
from tidelog.protocol.record.crc import crc32c
from tidelog.protocol.record.record_batch import (
    ATTRIBUTES_OFFSET,
    COMPRESSION_MASK,
    CONTROL_MASK,
    HEADER,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    MAGIC_V2,
    MIN_RECORD_BYTES,
    RECORD_BATCH_OVERHEAD,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    read_varint,
    read_varlong,
)

IntegerArray = np.ndarray[Any, np.dtype[np.int64]]
OffsetArray = np.ndarray[Any, np.dtype[np.int32]]
ByteArray = np.ndarray[Any, np.dtype[np.uint8]]

_MASK_64 = 0xFFFFFFFFFFFFFFFF


class _Row(NamedTuple):
    offset: int
    timestamp: int
    timestamp_type: int
    key_start: int
    key_size: int
    value_start: int
    value_size: int
    headers_start: int
    headers: int


def decode_chunk(
    chunk: ByteArray,
    bounds: IntegerArray,
    limits: IntegerArray,
    key: ByteArray,
    aborted: IntegerArray,
    table: IntegerArray,
    progress: IntegerArray,
) -> int:
    """Decode the complete batches of magic 2 of a chunk into ``table``; returns the status at which decoding stopped.

    The layout describes the arguments.
    """
    data = chunk.data
    at, size = int(bounds[BEGIN]), int(bounds[SIZE])
    status = NEED_BYTES
    while size - at > MAGIC_OFFSET:
        if progress[NEXT_OFFSET] >= limits[END_OFFSET]:
            status = END
            break
        if data[at + MAGIC_OFFSET] != MAGIC_V2:
            status = OLD_FORMAT
            break
        status, batch_size, is_wanted = _look(data, at, bounds, int(progress[NEXT_OFFSET]), limits, aborted)
        if status == NEED_BYTES and batch_size and is_wanted:
            context = _context(data, at, batch_size)
            room = table.shape[1] - int(progress[ROWS])
            if context[RECORDS] < 0 or context[RECORDS] * MIN_RECORD_BYTES > batch_size - RECORD_BATCH_OVERHEAD:
                status = MALFORMED
            elif context[RECORDS] > room:
                status = TABLE_FULL
            else:
                status = decode_section(chunk, context, limits, key, table, progress)
        if status != NEED_BYTES or batch_size == 0:
            break
        progress[NEXT_OFFSET] = _last_offset(data, at) + 1
        at += batch_size
    progress[CONSUMED] = at
    return status


def _look(
    data: memoryview, at: int, bounds: IntegerArray, next_offset: int, limits: IntegerArray, aborted: IntegerArray
) -> tuple[int, int, bool]:
    """Check a batch's header; return (status, size of the batch or 0 if it is incomplete, whether it may have rows).

    The status NEED_BYTES means that nothing is wrong.
    """
    size = int(bounds[SIZE])
    if size - at < RECORD_BATCH_OVERHEAD:
        return NEED_BYTES, 0, False
    base_offset, length, _, _, crc, attributes, delta, _, max_timestamp, producer, _, _, _ = HEADER.unpack_from(
        data, at
    )
    if base_offset >= limits[END_OFFSET]:
        return END, 0, False
    if length < RECORD_BATCH_OVERHEAD - LOG_OVERHEAD or delta < 0 or base_offset < next_offset:
        return MALFORMED, 0, False
    if length > size - at - LOG_OVERHEAD:
        return NEED_BYTES, 0, False
    batch_size = length + LOG_OVERHEAD
    is_verified = bounds[VERIFIED_FROM] <= at < bounds[VERIFIED_TO]
    if not is_verified and crc32c(data[at + ATTRIBUTES_OFFSET : at + batch_size]) != crc:
        return BAD_CRC, 0, False
    if base_offset > max(next_offset, limits[START_OFFSET]):
        is_damaged = _reaches_into(data[:size], at + batch_size, base_offset + delta)
        if base_offset > limits[CLEANED_BELOW] or is_damaged:
            return HOLE, 0, False
    if base_offset + delta < limits[START_OFFSET] or max_timestamp < limits[MIN_TIME] or attributes & CONTROL_MASK:
        return NEED_BYTES, batch_size, False
    if attributes & TRANSACTIONAL_MASK and _is_aborted(aborted, producer, base_offset):
        return NEED_BYTES, batch_size, False
    return (COMPRESSED if attributes & COMPRESSION_MASK else NEED_BYTES), batch_size, True


def _reaches_into(data: memoryview, at: int, last: int) -> bool:
    """Return whether the batch at ``at``, if its header is there, begins at or below an offset."""
    if len(data) - at < RECORD_BATCH_OVERHEAD or data[at + MAGIC_OFFSET] != MAGIC_V2:
        return False
    return bool(HEADER.unpack_from(data, at)[0] <= last)


def _is_aborted(aborted: IntegerArray, producer: int, offset: int) -> bool:
    return any(row[PRODUCER] == producer and row[FIRST] <= offset <= row[LAST] for row in aborted)


def _last_offset(data: memoryview, at: int) -> int:
    fields = HEADER.unpack_from(data, at)
    return int(fields[0]) + int(fields[6])


def _context(data: memoryview, at: int, batch_size: int) -> IntegerArray:
    base_offset, _, _, _, _, attributes, _, base_timestamp, max_timestamp, _, _, _, count = HEADER.unpack_from(data, at)
    is_append_time = int(bool(attributes & TIMESTAMP_TYPE_MASK))
    start, end = at + RECORD_BATCH_OVERHEAD, at + batch_size
    return np.array([base_offset, base_timestamp, max_timestamp, is_append_time, count, start, end], np.int64)


def decode_section(
    buffer: ByteArray,
    context: IntegerArray,
    limits: IntegerArray,
    key: ByteArray,
    table: IntegerArray,
    progress: IntegerArray,
) -> int:
    """Append the records of one uncompressed section to the table, which has room for ``context[RECORDS]`` of them.

    Returns NEED_BYTES if the section is well-formed, else MALFORMED, with ``progress[ROWS]`` unchanged.
    """
    start, end, count = int(context[SECTION_START]), int(context[SECTION_END]), int(context[RECORDS])
    if count < 0 or count * MIN_RECORD_BYTES > end - start:
        return MALFORMED
    data = buffer[:end].tobytes()
    row, position = int(progress[ROWS]), start
    try:
        for _ in range(count):
            record, position = _record(data, position, context)
            if _is_wanted(record, data, limits, key):
                table[:, row] = record
                row += 1
    except (IndexError, InvalidRecordError):
        return MALFORMED
    if position != end:
        return MALFORMED
    progress[ROWS] = row
    return NEED_BYTES


def _is_wanted(record: _Row, data: bytes, limits: IntegerArray, key: ByteArray) -> bool:
    if not limits[START_OFFSET] <= record.offset < limits[END_OFFSET]:
        return False
    if not limits[MIN_TIME] <= record.timestamp <= limits[MAX_TIME]:
        return False
    if not limits[HAS_KEY]:
        return True
    return record.key_size >= 0 and data[record.key_start : record.key_start + record.key_size] == key.tobytes()


def _record(data: bytes, position: int, context: IntegerArray) -> tuple[_Row, int]:
    length, position = read_varint(data, position)
    end = position + length
    if length < 0 or end > len(data):
        raise InvalidRecordError("length")
    timestamp_delta, position = read_varlong(data, position + 1)
    offset_delta, position = read_varint(data, position)
    key_start, key_size = _field(data, position, end)
    value_start, value_size = _field(data, key_start + max(key_size, 0), end)
    headers, headers_start = read_varint(data, value_start + max(value_size, 0))
    if headers < 0 or headers > end - headers_start:
        raise InvalidRecordError("headers")
    position = headers_start
    for _ in range(2 * headers):
        start, size = _field(data, position, end)
        position = start + max(size, 0)
    _ensure_names(data, headers_start, headers, end)
    if position != end:
        raise InvalidRecordError("size")
    timestamp = _signed(int(context[BASE_TIMESTAMP]) + timestamp_delta)
    if context[IS_APPEND_TIME]:
        timestamp = int(context[APPEND_TIME])
    offset = _signed(int(context[BASE_OFFSET]) + offset_delta)
    kind = int(context[IS_APPEND_TIME])
    row = _Row(offset, timestamp, kind, key_start, key_size, value_start, value_size, headers_start, headers)
    return row, end


def _signed(value: int) -> int:
    return ((value + (1 << 63)) & _MASK_64) - (1 << 63)


def _field(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Read a nullable field's start and size, -1 for null."""
    size, position = read_varint(data, position)
    if position + max(size, 0) > end:
        raise InvalidRecordError("field")
    return position, max(size, -1)


def _ensure_names(data: bytes, position: int, headers: int, end: int) -> None:
    for _ in range(headers):
        start, size = _field(data, position, end)
        if size < 0:
            raise InvalidRecordError("name")
        position, size = _field(data, start + size, end)
        position += max(size, 0)


def gather(
    buffer: ByteArray,
    starts: IntegerArray,
    sizes: IntegerArray,
    span: IntegerArray,
    offsets: OffsetArray,
    validity: ByteArray,
    data: ByteArray,
) -> int:
    """Copy fields one after the other into ``data``, as in an Arrow binary column; returns the number of nulls.

    Rows ``span[0]`` to below ``span[1]`` of the table become rows ``span[2]`` and on of the column. ``offsets`` at
    ``span[2]`` says where the first field goes. The following offsets are written, and so are the bits of ``validity``
    (0 before) of fields that are not null. ``data`` has room for all fields.
    """
    nulls, out = 0, int(span[2])
    for row in range(int(span[0]), int(span[1])):
        at, size = int(offsets[out]), int(sizes[row])
        if size < 0:
            nulls += 1
            size = 0
        else:
            validity[out >> 3] |= 1 << (out & 7)
            start = int(starts[row])
            data[at : at + size] = buffer[start : start + size]
        out += 1
        offsets[out] = at + size
    return nulls


def total_size(sizes: IntegerArray) -> int:
    """Sum the sizes of fields; -1 is the size of null."""
    return int(sizes[sizes > 0].sum())


def header_fields(buffer: ByteArray, table: IntegerArray, span: IntegerArray, fields: IntegerArray) -> int:
    """Write name start, name size, value start and value size of every header of rows ``span[0]`` to below ``span[1]``.

    They are written, in order, to the four rows of ``fields`` from index ``span[2]`` on. Returns the index after the
    last header.
    """
    number = int(span[2])
    data = bytes(buffer)
    for row in range(int(span[0]), int(span[1])):
        position = int(table[HEADERS_START, row])
        for _ in range(int(table[HEADERS, row])):
            name, name_size = _field(data, position, len(data))
            value, value_size = _field(data, name + name_size, len(data))
            fields[:, number] = (name, name_size, value, value_size)
            position = value + max(value_size, 0)
            number += 1
    return number
