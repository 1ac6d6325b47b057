"""Record-level work in plain Python: the reference for ``tidelog.log.records.section_walk``, used where that is not
compiled.

Each function takes the uncompressed records section of a magic 2 batch and walks it once. Malformed input raises
InvalidRecordError. The compiled walks only find *that* something is malformed; this module then finds what, so that
both raise the same error (in a section of at most EXPLAINED_RECORDS records).

A section is one record after the other (drawn in ``tidelog.protocol.record.record_batch``):

    length | attributes | timestamp delta | offset delta | key | value | header count | headers

A section is well-formed if ``count`` records fill it to the last byte and each record's fields fill its length to the
last byte. Header names must not be null, and every varint must end within its 5 or 10 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.log.records.work_budget import NO_LIMIT, TooMuchForTurnError
from tidelog.protocol.errors import InvalidRecordError
from tidelog.protocol.record.record_batch import MIN_RECORD_BYTES, read_raw_varint, read_varint, read_varlong

MAX_INT64 = (1 << 63) - 1

Buffer = bytes | bytearray | memoryview


class SectionCheck(NamedTuple):
    """Result of one walk over a records section. Timestamp deltas are relative to the batch's base timestamp, in ms."""

    min_timestamp_delta: int
    max_timestamp_delta: int
    first_keyless_index: int
    """Number of the first record without a key, counted from 0; -1 if all have keys."""
    is_consecutive: bool
    """Whether offset deltas are 0, 1, 2 ..."""


def ensure_plausible_count(count: int, section_bytes: int) -> None:
    """Raise InvalidRecordError if a section of this size cannot hold ``count`` records. Call it before any loop over
    them."""
    if count < 0 or count * MIN_RECORD_BYTES > section_bytes:
        raise InvalidRecordError(f"Found invalid record count {count} in a section of {section_bytes} bytes")


EXPLAINED_RECORDS = 2_000
"""Largest number of records of a malformed section for which plain Python finds what is wrong."""

#: Result for a batch without records, as a cleaner leaves them.
NOTHING = SectionCheck(0, 0, -1, True)
_SINGLE_KEYED = SectionCheck(0, 0, -1, True)
_SINGLE_KEYLESS = SectionCheck(0, 0, 0, True)


def check_section(section: Buffer, count: int, max_header_bytes: int = NO_LIMIT) -> SectionCheck:
    """Walk ``count`` records and check their structure; the contents of values and headers are not checked.

    Raises InvalidRecordError when the section is not exactly ``count`` well-formed records, TooMuchForTurnError when
    their headers take more than ``max_header_bytes``. Any thread.
    """
    ensure_plausible_count(count, len(section))
    if count == 0 and not section:
        return NOTHING
    data = bytes(section)  # indexing bytes takes half the time of indexing a memoryview
    if count == 1:
        usual = check_usual_record(data)
        if usual is not None:
            return usual
    try:
        return check_records(data, count, max_header_bytes)
    except IndexError:
        raise InvalidRecordError("Found invalid record structure: it ends early") from None


def explain(section: Buffer, count: int) -> SectionCheck:
    """Raise InvalidRecordError for a section that a compiled walk refused, with the reason if it holds few records."""
    if count > EXPLAINED_RECORDS:
        ensure_plausible_count(count, len(section))
        raise InvalidRecordError(f"Found invalid record structure in a batch of {count} records")
    return check_section(section, count)


def check_usual_record(data: bytes) -> SectionCheck | None:
    """Check a single record of the form most small requests have: both deltas 0, no headers, length and value size in
    at most two bytes, key size in one. Return None for any other, also a malformed one.
    """
    size = len(data)
    position = 1
    raw = data[0]
    if raw > 127:
        raw += (data[1] << 7) - 128
        position = 2
    if position + (raw >> 1) != size or raw & 1 or raw > 0x3FFF or data[position : position + 3] != b"\0\0\0":
        return None
    raw_key = data[position + 3]
    position += 4
    if raw_key > 127:
        return None
    if not raw_key & 1:
        position += raw_key >> 1
        if position >= size:
            return None
    raw = data[position]
    position += 1
    if raw > 127 and position < size:
        raw += (data[position] << 7) - 128
        position += 1
    if raw & 1 or raw > 0x3FFF or position + (raw >> 1) != size - 1 or data[-1]:
        return None
    return _SINGLE_KEYLESS if raw_key & 1 else _SINGLE_KEYED


def check_records(  # noqa: C901 - one hot loop with varints of one and two bytes inline takes 1.0 µs a record, else 2.4
    data: bytes, count: int, max_header_bytes: int
) -> SectionCheck:
    size = len(data)
    position = header_bytes = 0
    max_delta, min_delta = -MAX_INT64 - 1, MAX_INT64
    first_keyless, is_consecutive, last_raw = -1, True, -1
    for expected in range(0, 2 * count, 2):  # an offset delta's zigzag form is its double
        raw = data[position]
        position += 1
        if raw > 127:
            byte = data[position]
            position += 1
            raw += (byte << 7) - 128
            if byte > 127:
                raw, position = read_raw_varint(data, position - 2, 5)
        end = position + (raw >> 1)
        if raw & 1 or end > size:
            raise InvalidRecordError(f"Invalid record size before byte {position} of {size}")
        position += 1
        raw = data[position]
        position += 1
        if raw > 127:
            raw, position = read_raw_varint(data, position - 1, 10)
        if raw != last_raw:
            last_raw = raw
            delta = (raw >> 1) ^ -(raw & 1)
            if delta > max_delta:
                max_delta = delta
            if delta < min_delta:
                min_delta = delta
        raw = data[position]
        position += 1
        if raw > 127:
            byte = data[position]
            position += 1
            raw += (byte << 7) - 128
            if byte > 127:
                raw, position = read_raw_varint(data, position - 2, 5)
        if raw != expected:
            is_consecutive = False
        raw = data[position]
        position += 1
        if raw > 127:
            raw, position = read_raw_varint(data, position - 1, 5)
        if not raw & 1:
            position += raw >> 1
        elif first_keyless < 0:
            first_keyless = expected >> 1
        raw = data[position]
        position += 1
        if raw > 127:
            raw, position = read_raw_varint(data, position - 1, 5)
        if not raw & 1:
            position += raw >> 1
        if data[position]:
            header_bytes += end - position
            if header_bytes > max_header_bytes:
                raise TooMuchForTurnError
            position = _skip_headers(data, position, end)
        else:
            position += 1
        if position != end:
            raise InvalidRecordError(f"Invalid record size: fields end at byte {position}, the record at {end}")
    if position != size:
        raise InvalidRecordError(f"{size - position} bytes remain after the last of {count} records")
    return SectionCheck(min_delta, max_delta, first_keyless, is_consecutive)


def _skip_headers(section: Buffer, position: int, end: int) -> int:
    """Return the position after a record's header count and headers. Raises InvalidRecordError, and IndexError past the
    end of the section.
    """
    count, position = read_varint(section, position)
    if count < 0 or count > end - position:
        raise InvalidRecordError(f"Found invalid number of record headers {count}")
    for _ in range(count):
        length, position = read_varint(section, position)
        if length < 0:
            raise InvalidRecordError("Invalid negative header key size")
        position += length
        length, position = read_varint(section, position)
        if length > 0:
            position += length
        if position > end:
            raise InvalidRecordError("Header does not fit its record")
    return position


class TimestampPosition(NamedTuple):
    """Offset delta and timestamp delta of a record that was found by time."""

    offset_delta: int
    timestamp_delta: int


def first_at_or_after(
    section: Buffer, count: int, timestamp_delta: int, min_offset_delta: int
) -> TimestampPosition | None:
    """Find the first record whose deltas are at least ``timestamp_delta`` ms and ``min_offset_delta``.

    Raises InvalidRecordError if the section cannot hold ``count`` records, or if the length or a delta of that record,
    or of one before it, is malformed. Other fields are not checked.
    """
    for found in _deltas(section, count):
        if found.timestamp_delta >= timestamp_delta and found.offset_delta >= min_offset_delta:
            return found
    return None


def _deltas(section: Buffer, count: int) -> Iterator[TimestampPosition]:
    ensure_plausible_count(count, len(section))
    position = 0
    try:
        for _ in range(count):
            length, position = read_varint(section, position)
            if length < 0 or position + length > len(section):
                raise InvalidRecordError(f"Invalid record size {length} at byte {position} of {len(section)}")
            timestamp_delta, after = read_varlong(section, position + 1)
            offset_delta, _ = read_varint(section, after)
            yield TimestampPosition(offset_delta, timestamp_delta)
            position += length
    except IndexError:
        raise InvalidRecordError("Found invalid record structure: it ends early") from None
