"""The compiled decoder of records to columns: batches become tables of positions, and these become Arrow's buffers.

``tidelog.pipeline.decode.layout`` describes tables and statuses. Uncompiled it gives the same results. Buffers end with
``PADDING`` bytes, so a varint needs no bounds check of its own; a record's end is checked. All routines but
``total_size`` run without the interpreter lock. Types for C stand in ``columns.pxd``. Any thread.
"""

from __future__ import annotations

from typing import Any

from tidelog.pipeline.decode import layout
from tidelog.protocol.compiled import words
from tidelog.protocol.compiled.words import Bytes

try:
    import cython
except ImportError:
    from tidelog.protocol.compiled import uncompiled as cython

IS_COMPILED = cython.compiled
"""Whether this module runs as machine code."""

_HEADER_BYTES = 61
_LENGTH_OFFSET = 12  # a batch's length counts from here
_MIN_RECORD_BYTES = 7
_CONTROL, _TRANSACTIONAL, _APPEND_TIME_BIT, _CODEC = 0x20, 0x10, 0x08, 0x07
# The layout's constants again, as names of this module: ``columns.pxd`` declares them as C integers.
_COLUMNS, _HEADERS_START, _HEADERS = layout.COLUMNS, layout.HEADERS_START, layout.HEADERS
_BEGIN, _SIZE = layout.BEGIN, layout.SIZE
_VERIFIED_FROM, _VERIFIED_TO = layout.VERIFIED_FROM, layout.VERIFIED_TO
_START_OFFSET, _END_OFFSET, _MIN_TIME = layout.START_OFFSET, layout.END_OFFSET, layout.MIN_TIME
_MAX_TIME, _HAS_KEY, _CLEANED_BELOW = layout.MAX_TIME, layout.HAS_KEY, layout.CLEANED_BELOW
_ROWS, _CONSUMED, _NEXT_OFFSET = layout.ROWS, layout.CONSUMED, layout.NEXT_OFFSET
_NEED_BYTES, _TABLE_FULL, _END, _COMPRESSED = layout.NEED_BYTES, layout.TABLE_FULL, layout.END, layout.COMPRESSED
_OLD_FORMAT, _BAD_CRC, _MALFORMED, _HOLE = layout.OLD_FORMAT, layout.BAD_CRC, layout.MALFORMED, layout.HOLE
_PRODUCER, _FIRST, _LAST = layout.PRODUCER, layout.FIRST, layout.LAST
_BASE_OFFSET, _BASE_TIMESTAMP, _APPEND_TIME = layout.BASE_OFFSET, layout.BASE_TIMESTAMP, layout.APPEND_TIME
_IS_APPEND_TIME, _RECORDS = layout.IS_APPEND_TIME, layout.RECORDS
_SECTION_START, _SECTION_END = layout.SECTION_START, layout.SECTION_END

Integers = memoryview
"""An array of signed integers of 64 bits: in C an address, else a memory view."""


def decode_chunk(chunk: Any, bounds: Any, limits: Any, key: Any, aborted: Any, table: Any, progress: Any) -> int:
    """Decode the whole magic 2 batches of a chunk into ``table``; returns the status at which it stopped.

    The layout describes the arguments.
    """
    held = words.hold(chunk)
    span = words.hold(bounds)
    wanted = words.hold(limits)
    wanted_key = words.hold(key)
    transactions = words.hold(aborted)
    rows = words.hold_writable(table)
    done = words.hold_writable(progress)
    with cython.nogil:
        status = _decode_batches(
            held.data, span.integers, wanted.integers, wanted_key.data, wanted_key.size,
            transactions.integers, transactions.size // 24, rows.integers, rows.size // 8 // _COLUMNS, done.integers,
        )  # fmt: skip
    words.release(done)
    words.release(rows)
    words.release(transactions)
    words.release(wanted_key)
    words.release(wanted)
    words.release(span)
    words.release(held)
    return status


def decode_section(buffer: Any, context: Any, limits: Any, key: Any, table: Any, progress: Any) -> int:
    """Append the wanted records of one uncompressed section to the table, which has room for all RECORDS of it.

    Returns NEED_BYTES when the section is well-formed, else MALFORMED with ROWS of ``progress`` as before.
    """
    held = words.hold(buffer)
    bases = words.hold(context)
    wanted = words.hold(limits)
    wanted_key = words.hold(key)
    rows = words.hold_writable(table)
    done = words.hold_writable(progress)
    with cython.nogil:
        row = _decode_records(
            held.data, bases.integers[_SECTION_START], bases.integers[_SECTION_END], bases.integers[_RECORDS],
            bases.integers[_BASE_OFFSET], bases.integers[_BASE_TIMESTAMP], bases.integers[_APPEND_TIME],
            bases.integers[_IS_APPEND_TIME], wanted.integers, wanted_key.data, wanted_key.size,
            rows.integers, rows.size // 8 // _COLUMNS, done.integers[_ROWS],
        )  # fmt: skip
        if row >= 0:
            done.integers[_ROWS] = row
    words.release(done)
    words.release(rows)
    words.release(wanted_key)
    words.release(wanted)
    words.release(bases)
    words.release(held)
    return _NEED_BYTES if row >= 0 else _MALFORMED


def gather(buffer: Any, starts: Any, sizes: Any, span: Any, offsets: Any, validity: Any, data: Any) -> int:
    """Copy fields one after the other into ``data``, as an Arrow binary column; returns the number of nulls.

    Rows ``span[0]`` to below ``span[1]`` of the table become rows ``span[2]`` and on of the column. ``offsets`` at
    ``span[2]`` says where the first field goes. The following offsets are written, and so are the bits of ``validity``
    (0 before) of fields that are not null. ``data`` has room for all fields.
    """
    held = words.hold(buffer)
    begins = words.hold(starts)
    lengths = words.hold(sizes)
    rows = words.hold(span)
    ends = words.hold_writable(offsets)
    bits = words.hold_writable(validity)
    target = words.hold_writable(data)
    with cython.nogil:
        nulls = _gather(
            held.data, begins.integers, lengths.integers, rows.integers, ends.bytes, bits.bytes, target.bytes
        )
    words.release(target)
    words.release(bits)
    words.release(ends)
    words.release(rows)
    words.release(lengths)
    words.release(begins)
    words.release(held)
    return nulls


def total_size(sizes: Any) -> int:
    """Add up the bytes of fields of these sizes, -1 being null."""
    held = words.hold(sizes)
    total = _total(held.integers, held.size // 8)
    words.release(held)
    return total


def header_fields(buffer: Any, table: Any, span: Any, fields: Any) -> int:
    """Write name start, name size, value start and value size of every header of rows ``span[0]`` to below ``span[1]``.

    They go, in order, into the four columns of ``fields`` from ``span[2]`` on. Returns one past the last.
    """
    held = words.hold(buffer)
    rows = words.hold(table)
    numbers = words.hold(span)
    found = words.hold_writable(fields)
    with cython.nogil:
        number = _find_headers(
            held.data, held.size, rows.integers, rows.size // 8 // _COLUMNS, numbers.integers, found.integers,
            found.size // 32,
        )  # fmt: skip
    words.release(found)
    words.release(numbers)
    words.release(rows)
    words.release(held)
    return number


# ---- batches


def _decode_batches(
    chunk: Bytes, bounds: Integers, limits: Integers, key: Bytes, key_size: int,
    aborted: Integers, transactions: int, table: Integers, capacity: int, progress: Integers,
) -> int:  # fmt: skip
    """See :func:`decode_chunk`; ``capacity``: rows of the table."""
    at = bounds[_BEGIN]
    size = bounds[_SIZE]
    status = _NEED_BYTES
    while size - at > 16:
        if progress[_NEXT_OFFSET] >= limits[_END_OFFSET]:
            status = _END
            break
        if chunk[at + 16] != 2:
            status = _OLD_FORMAT
            break
        status, batch_size, is_wanted = _look(chunk, at, bounds, progress[_NEXT_OFFSET], limits, aborted, transactions)
        if status == _NEED_BYTES and batch_size > 0 and is_wanted:
            status = _decode_batch(chunk, at, batch_size, limits, key, key_size, table, capacity, progress)
        if status != _NEED_BYTES or batch_size == 0:
            break
        progress[_NEXT_OFFSET] = words.load_be_i64(chunk, at) + words.load_be_i32(chunk, at + 23) + 1
        at += batch_size
    progress[_CONSUMED] = at
    return status


def _look(
    chunk: Bytes, at: int, bounds: Integers, lowest: int, limits: Integers, aborted: Integers, transactions: int
) -> tuple[int, int, bool]:
    """Check the batch at ``at``: (status, its size, whether it may have wanted rows). With NEED_BYTES no fault was
    found, and a size of 0 means that the batch is cut.
    """
    size = bounds[_SIZE]
    if size - at < _HEADER_BYTES:
        return _NEED_BYTES, 0, False
    base = words.load_be_i64(chunk, at)
    if base >= limits[_END_OFFSET]:
        return _END, 0, False
    length = words.load_be_i32(chunk, at + 8)
    delta = words.load_be_i32(chunk, at + 23)
    if length < _HEADER_BYTES - _LENGTH_OFFSET or delta < 0 or base < lowest:
        return _MALFORMED, 0, False
    if length > size - at - _LENGTH_OFFSET:
        return _NEED_BYTES, 0, False
    is_verified = bounds[_VERIFIED_FROM] <= at < bounds[_VERIFIED_TO]
    if not is_verified and words.load_be_u32(chunk, at + 17) != words.crc32c(
        chunk, at + 21, length + _LENGTH_OFFSET - 21
    ):
        return _BAD_CRC, 0, False
    if base > lowest and base > limits[_START_OFFSET]:
        # A hole below CLEANED_BELOW is usual, but the batch's offset may be damaged there, too.
        next_at = at + length + _LENGTH_OFFSET
        if base > limits[_CLEANED_BELOW] or _reaches_into(chunk, next_at, size, base + delta):
            return _HOLE, 0, False
    attributes = words.load_be_i16(chunk, at + 21)
    batch_size = length + _LENGTH_OFFSET
    is_late = words.load_be_i64(chunk, at + 35) >= limits[_MIN_TIME]
    if base + delta < limits[_START_OFFSET] or not is_late or attributes & _CONTROL:
        return _NEED_BYTES, batch_size, False
    if attributes & _TRANSACTIONAL and _is_aborted(aborted, transactions, words.load_be_i64(chunk, at + 43), base):
        return _NEED_BYTES, batch_size, False
    return _COMPRESSED if attributes & _CODEC else _NEED_BYTES, batch_size, True


def _reaches_into(chunk: Bytes, at: int, size: int, last: int) -> bool:
    """Return whether ``last`` is an offset of the batch at ``at`` or a later one; false where the chunk has no whole
    header of magic 2."""
    return size - at >= _HEADER_BYTES and chunk[at + 16] == 2 and words.load_be_i64(chunk, at) <= last


def _is_aborted(aborted: Integers, transactions: int, producer: int, offset: int) -> bool:
    """Search ``aborted``: rows are sorted by producer and first offset; a producer's transactions do not overlap."""
    low = 0
    high = transactions
    while low < high:
        middle = (low + high) >> 1
        other = aborted[3 * middle + _PRODUCER]
        if other < producer or (other == producer and aborted[3 * middle + _FIRST] <= offset):
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return False
    return aborted[3 * low - 3 + _PRODUCER] == producer and offset <= aborted[3 * low - 3 + _LAST]


def _decode_batch(
    chunk: Bytes, at: int, batch_size: int, limits: Integers, key: Bytes, key_size: int,
    table: Integers, capacity: int, progress: Integers,
) -> int:  # fmt: skip
    """Append the records of an uncompressed batch to the table; returns a status."""
    count = words.load_be_i32(chunk, at + 57)
    if count < 0 or count * _MIN_RECORD_BYTES > batch_size - _HEADER_BYTES:
        return _MALFORMED
    if count > capacity - progress[_ROWS]:
        return _TABLE_FULL
    is_append_time = (words.load_be_i16(chunk, at + 21) & _APPEND_TIME_BIT) >> 3
    row = _decode_records(
        chunk, at + _HEADER_BYTES, at + batch_size, count,
        words.load_be_i64(chunk, at), words.load_be_i64(chunk, at + 27), words.load_be_i64(chunk, at + 35),
        is_append_time, limits, key, key_size, table, capacity, progress[_ROWS],
    )  # fmt: skip
    if row < 0:
        return _MALFORMED
    progress[_ROWS] = row
    return _NEED_BYTES


# ---- records


def _decode_records(
    data: Bytes, position: int, end: int, count: int, base_offset: int, base_timestamp: int, append_time: int,
    is_append_time: int, limits: Integers, key: Bytes, key_size: int, table: Integers, capacity: int, row: int,
) -> int:  # fmt: skip
    """Write the wanted ones of ``count`` records from ``row`` on; returns the row after them, -1 when malformed."""
    start_offset, end_offset = limits[_START_OFFSET], limits[_END_OFFSET]
    min_time, max_time, has_key = limits[_MIN_TIME], limits[_MAX_TIME], limits[_HAS_KEY]
    if count < 0 or count * _MIN_RECORD_BYTES > end - position:
        return -1
    for _ in range(count):
        time_delta, offset_delta, key_start, size, value_start, value_size, headers_start, headers, position = _record(
            data, position, end
        )
        if position < 0:
            return -1
        timestamp = append_time if is_append_time else _sum(base_timestamp, time_delta)
        offset = _sum(base_offset, offset_delta)
        if offset < start_offset or offset >= end_offset or timestamp < min_time or timestamp > max_time:
            continue
        if has_key and not _is_key(data, key_start, size, key, key_size):
            continue
        # The table's columns one after the other, in the order that the layout gives them.
        slot = row
        table[slot] = offset
        slot += capacity
        table[slot] = timestamp
        slot += capacity
        table[slot] = is_append_time
        slot += capacity
        table[slot] = key_start
        slot += capacity
        table[slot] = size
        slot += capacity
        table[slot] = value_start
        slot += capacity
        table[slot] = value_size
        slot += capacity
        table[slot] = headers_start
        slot += capacity
        table[slot] = headers
        row += 1
    return row if position == end else -1


def _record(data: Bytes, position: int, end: int) -> tuple[int, int, int, int, int, int, int, int, int]:
    """Read a record: (timestamp delta, offset delta, key's start and size, value's start and size, headers' start,
    number of headers, end of the record); the end is -1 when malformed.
    """
    if position >= end:
        return 0, 0, 0, 0, 0, 0, 0, 0, -1
    raw, position = _raw_varint(data, position, 5)
    length = raw >> 1
    if position < 0 or raw & 1 or length > end - position:
        return 0, 0, 0, 0, 0, 0, 0, 0, -1
    record_end = position + length
    raw_time, position = _raw_varint(data, position + 1, 10)
    if position < 0:
        return 0, 0, 0, 0, 0, 0, 0, 0, -1
    raw_offset, position = _raw_varint(data, position, 5)
    if position < 0 or position >= record_end:
        return 0, 0, 0, 0, 0, 0, 0, 0, -1
    key_start, key_size, position = _field(data, position, record_end)
    if position < 0 or position >= record_end:
        return 0, 0, 0, 0, 0, 0, 0, 0, -1
    value_start, value_size, position = _field(data, position, record_end)
    if position < 0 or position >= record_end:
        return 0, 0, 0, 0, 0, 0, 0, 0, -1
    raw, headers_start = _raw_varint(data, position, 5)
    headers = raw >> 1
    if headers_start < 0 or raw & 1 or _skip_headers(data, headers_start, headers, record_end) != record_end:
        return 0, 0, 0, 0, 0, 0, 0, 0, -1
    return (
        _zigzag(raw_time), _zigzag(raw_offset), key_start, key_size, value_start, value_size, headers_start, headers,
        record_end,
    )  # fmt: skip


def _skip_headers(data: Bytes, position: int, count: int, end: int) -> int:
    """Return the position after ``count`` headers, -1 when malformed."""
    if count > end - position:
        return -1
    for _ in range(count):
        if position >= end:
            return -1
        _start, size, position = _field(data, position, end)
        if position < 0 or size < 0 or position >= end:
            return -1
        _start, size, position = _field(data, position, end)
        if position < 0:
            return -1
    return position


def _is_key(data: Bytes, start: int, size: int, key: Bytes, key_size: int) -> bool:
    """Return whether a record's key is the wanted one."""
    if size != key_size:
        return False
    for index in range(size):  # noqa: SIM110 - C has no generators
        if data[start + index] != key[index]:
            return False
    return True


# ---- fields


def _long_varint(data: Bytes, position: int, max_bytes: int) -> tuple[int, int]:
    """Read a raw varint of any length: (raw, next position), position -1 when it does not end in ``max_bytes``."""
    raw = 0
    shift = 0
    for index in range(position, position + max_bytes):
        byte = data[index]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw & (words.MASK_32 if max_bytes == 5 else words.MASK_64), index + 1
        shift += 7
    return 0, -1


def _raw_varint(data: Bytes, position: int, max_bytes: int) -> tuple[int, int]:
    """Read a raw varint, its one- and two-byte cases inline: (raw, next position), position -1 when malformed."""
    first = data[position]
    if first < 0x80:
        return first, position + 1
    second = data[position + 1]
    if second < 0x80:
        return (first & 0x7F) | (second << 7), position + 2
    return _long_varint(data, position, max_bytes)


def _zigzag(raw: int) -> int:
    """Undo zigzag on the 64 bits of ``raw``."""
    return (raw >> 1) ^ -(raw & 1)


def _sum(base: int, delta: int) -> int:
    """Return the sum as a signed integer of 64 bits; overflow wraps around."""
    total = (base + delta) & words.MASK_64
    return total if total >> 63 == 0 else total - words.MASK_64 - 1


def _field(data: Bytes, position: int, end: int) -> tuple[int, int, int]:
    """Read a field: (start, size or -1 for null, next position); next position -1 when it does not fit."""
    raw, position = _raw_varint(data, position, 5)
    if position < 0 or position > end:
        return 0, 0, -1
    if raw & 1:
        return position, -1, position
    size = raw >> 1
    if size > end - position:
        return 0, 0, -1
    return position, size, position + size


# ---- columns of bytes


def _gather(
    buffer: Bytes, starts: Integers, sizes: Integers, span: Integers, offsets: Bytes, validity: Bytes, data: Bytes
) -> int:
    """See :func:`gather`."""
    out = span[2]
    at = words.load_u32(offsets, 4 * out)
    nulls = 0
    for row in range(span[0], span[1]):
        size = sizes[row]
        if size < 0:
            nulls += 1
        else:
            validity[out >> 3] |= 1 << (out & 7)
            words.copy_bytes(data, at, buffer, starts[row], size)
            at += size
        out += 1
        words.store_u32(offsets, 4 * out, at)
    return nulls


def _total(sizes: Integers, count: int) -> int:
    total = 0
    for row in range(count):
        total += sizes[row] if sizes[row] > 0 else 0
    return total


def _find_headers(
    data: Bytes, size: int, table: Integers, capacity: int, span: Integers, fields: Integers, room: int
) -> int:
    """See :func:`header_fields`; ``capacity`` rows of the table, ``room`` of the fields."""
    number = span[2]
    for row in range(span[0], span[1]):
        position = table[_HEADERS_START * capacity + row]
        for _ in range(table[_HEADERS * capacity + row]):
            name, name_size, position = _field(data, position, size)
            value, value_size, position = _field(data, position, size)
            fields[number] = name
            fields[room + number] = name_size
            fields[2 * room + number] = value
            fields[3 * room + number] = value_size
            number += 1
    return number
