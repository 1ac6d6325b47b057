"""The builder of record sections from columns, in plain Python: the oracle of ``tidelog.pipeline.sink.build_kernels``.

A writer that holds its records as columns (an Arrow batch) has, per field, one buffer of bytes and where each row's
stretch of it lies. From there to the records section of a magic 2 batch are three steps, each for many rows at once:

    key_hashes     murmur2 of each key: the partition it belongs to, as Kafka's own producer chooses it
    take           how many rows, from the first on, make a section of at most so many bytes
    encode         those rows' records, deltas against the first row's timestamp, offsets 0, 1, 2 ...

The rows of one section need not lie side by side: ``rows`` names them in order, so that a batch of rows for many
partitions is sorted by partition in its row numbers alone. Free functions, any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.protocol.record.record_batch import Record, append_record

if TYPE_CHECKING:
    import numpy as np

    ByteArray = np.ndarray[Any, np.dtype[np.uint8]]
    IntegerArray = np.ndarray[Any, np.dtype[np.int64]]

MURMUR2_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_WORD = 0xFFFFFFFF


class ByteColumn(NamedTuple):
    """One field of many rows: row i is ``data[start[i] : start[i] + length[i]]``, or null where the length is -1."""

    data: ByteArray
    start: IntegerArray
    length: IntegerArray

    def row(self, index: int) -> bytes | None:
        """The bytes of one row."""
        start, length = int(self.start[index]), int(self.length[index])
        return None if length < 0 else self.data[start : start + length].tobytes()


class RecordColumns(NamedTuple):
    """Records as columns of equal length; row i has the headers from ``header_start[i]`` on, ``header_count[i]`` many.

    ``timestamp`` is in ms. ``header_key`` holds no nulls. Arrays are uint8 (data) and int64.
    """

    key: ByteColumn
    value: ByteColumn
    timestamp: IntegerArray
    header_start: IntegerArray
    header_count: IntegerArray
    header_key: ByteColumn
    header_value: ByteColumn

    def record(self, index: int, offset: int) -> Record:
        """One row as a record at ``offset``."""
        first = int(self.header_start[index])
        headers = tuple(
            ((self.header_key.row(at) or b"").decode("utf-8"), self.header_value.row(at))
            for at in range(first, first + int(self.header_count[index]))
        )
        return Record(offset, int(self.timestamp[index]), self.key.row(index), self.value.row(index), headers)


class Taken(NamedTuple):
    """Rows that make one section: how many, its bytes, and the times of its batch in ms."""

    rows: int
    section_bytes: int
    base_timestamp: int
    max_timestamp: int


def murmur2(data: bytes) -> int:
    """The 32-bit hash of a key, unsigned, as Kafka's producers compute it (MurmurHash2 with Kafka's seed)."""
    size = len(data)
    whole = size & ~3
    hashed = MURMUR2_SEED ^ size
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _WORD
        word = (word ^ word >> 24) * _MULTIPLIER & _WORD
        hashed = hashed * _MULTIPLIER & _WORD ^ word
    if size > whole:
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _WORD
    hashed = (hashed ^ hashed >> 13) * _MULTIPLIER & _WORD
    return hashed ^ hashed >> 15


def key_hashes(keys: ByteColumn) -> list[int]:
    """``murmur2 & 0x7fffffff`` per row, to be taken modulo the number of partitions; -1 for a null key."""
    found = (keys.row(index) for index in range(len(keys.length)))
    return [-1 if key is None else murmur2(key) & 0x7FFFFFFF for key in found]


def take(columns: RecordColumns, rows: Sequence[int], first: int, limit_bytes: int) -> Taken:
    """The rows ``rows[first:first + count]`` whose section has at most ``limit_bytes``; one at least, however large."""
    base_timestamp = max_timestamp = int(columns.timestamp[rows[first]])
    section = bytearray()
    for count, index in enumerate(rows[first:]):
        before = len(section)
        append_record(section, columns.record(int(index), count), 0, base_timestamp)
        if count and len(section) > limit_bytes:
            return Taken(count, before, base_timestamp, max_timestamp)
        max_timestamp = max(max_timestamp, int(columns.timestamp[index]))
    return Taken(len(rows) - first, len(section), base_timestamp, max_timestamp)


def encode(columns: RecordColumns, rows: Sequence[int], first: int, taken: Taken) -> bytearray:
    """The records section of the rows ``take`` found from ``first`` on."""
    section = bytearray()
    for count in range(taken.rows):
        append_record(section, columns.record(int(rows[first + count]), count), 0, taken.base_timestamp)
    return section
