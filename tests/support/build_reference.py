"""The builder of record sections from columns in plain Python, over the format's own builder: the oracle of
``tidelog.pipeline.sink.sections``. ``tidelog.pipeline.sink.build`` describes its functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.pipeline.sink.build import ByteColumn, RecordColumns, TakenRows
from tidelog.protocol.record.record_batch import Record, append_record

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_WORD = 0xFFFFFFFF


def field_of(column: ByteColumn, index: int) -> bytes | None:
    """Return the bytes of one row."""
    start, length = int(column.start[index]), int(column.length[index])
    return None if length < 0 else column.data[start : start + length].tobytes()


def record_of(columns: RecordColumns, index: int, offset: int) -> Record:
    """Build a record at ``offset`` from one row."""
    first = int(columns.header_start[index])
    headers = tuple(
        ((field_of(columns.header_key, at) or b"").decode("utf-8"), field_of(columns.header_value, at))
        for at in range(first, first + int(columns.header_count[index]))
    )
    key, value = field_of(columns.key, index), field_of(columns.value, index)
    return Record(offset, int(columns.timestamp[index]), key, value, headers)


def murmur2(data: bytes) -> int:
    """Compute the 32-bit hash of a key, unsigned, as Kafka's producers do (MurmurHash2 with Kafka's seed)."""
    size = len(data)
    words_end = size & ~3
    hashed = _SEED ^ size
    for at in range(0, words_end, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _WORD
        word = (word ^ word >> 24) * _MULTIPLIER & _WORD
        hashed = hashed * _MULTIPLIER & _WORD ^ word
    if size > words_end:
        hashed = (hashed ^ int.from_bytes(data[words_end:], "little")) * _MULTIPLIER & _WORD
    hashed = (hashed ^ hashed >> 13) * _MULTIPLIER & _WORD
    return hashed ^ hashed >> 15


def key_hashes(keys: ByteColumn) -> list[int]:
    """Compute ``murmur2 & 0x7fffffff`` per row, to be taken modulo the number of partitions; -1 for a null key."""
    found = (field_of(keys, index) for index in range(len(keys.length)))
    return [-1 if key is None else murmur2(key) & 0x7FFFFFFF for key in found]


def take(columns: RecordColumns, rows: Sequence[int], first: int, limit_bytes: int) -> TakenRows:
    """Count the rows from ``rows[first]`` on whose records section has at most ``limit_bytes``; at least one row, of
    any size. Returns their number, the section's size, and the base and the maximum timestamp.
    """
    base_timestamp = max_timestamp = int(columns.timestamp[rows[first]])
    section = bytearray()
    for count, index in enumerate(rows[first:]):
        before = len(section)
        append_record(section, record_of(columns, int(index), count), 0, base_timestamp)
        if count and len(section) > limit_bytes:
            return TakenRows(count, before, base_timestamp, max_timestamp)
        max_timestamp = max(max_timestamp, int(columns.timestamp[index]))
    return TakenRows(len(rows) - first, len(section), base_timestamp, max_timestamp)


def encode(columns: RecordColumns, rows: Sequence[int], first: int, taken: TakenRows) -> bytearray:
    """Encode the records section of the rows ``take`` found from ``first`` on."""
    section = bytearray()
    for count in range(taken.rows):
        append_record(section, record_of(columns, int(rows[first + count]), count), 0, taken.base_timestamp)
    return section
