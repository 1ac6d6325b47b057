"""The builder of records sections from columns: it works on an Arrow batch's buffers, not on Python objects.

Records as columns have, for each field, one buffer of bytes, and the start and length of each row's bytes in it. Three
steps lead to the records section of a magic 2 batch, each for many rows at once:

    key_hashes     murmur2 of each key, by which Kafka's own producer chooses the partition
    take           how many rows, from the first on, fit a section of a given size in bytes
    encode         the records of those rows: time deltas to the first row's timestamp, offset deltas 0, 1, 2 ...

The rows of one section need not be adjacent: ``rows`` lists their numbers in order. So to sort rows
by partition, only their numbers are moved. ``tidelog.pipeline.sink.sections`` does the work. Any thread.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tidelog.pipeline.sink import sections
from tidelog.protocol.record.record_batch import Buffer

ByteArray = np.ndarray[Any, np.dtype[np.uint8]]
IntegerArray = np.ndarray[Any, np.dtype[np.int64]]


class ByteColumn(NamedTuple):
    """One field of many rows: row i is ``data[start[i] : start[i] + length[i]]``, or null where the length is -1."""

    data: ByteArray
    start: IntegerArray
    length: IntegerArray


class RecordColumns(NamedTuple):
    """Records as columns of equal length; row i has ``header_count[i]`` headers, from number ``header_start[i]`` on.

    ``timestamp`` is in ms. ``header_key`` holds no nulls. Arrays are uint8 (data) and int64, contiguous.
    """

    key: ByteColumn
    value: ByteColumn
    timestamp: IntegerArray
    header_start: IntegerArray
    header_count: IntegerArray
    header_key: ByteColumn
    header_value: ByteColumn


class TakenRows(NamedTuple):
    """The rows of one section: their number, the section's size in bytes, and the timestamps of its batch in ms."""

    rows: int
    section_bytes: int
    base_timestamp: int
    max_timestamp: int


def read_only(array: IntegerArray) -> IntegerArray:
    """Return the array as int64, contiguous and read-only."""
    view = np.ascontiguousarray(array, np.int64).view()
    view.flags.writeable = False
    return view


def byte_column(data: Buffer, start: IntegerArray, length: IntegerArray) -> ByteColumn:
    """Build a column over any buffer; ``length`` -1 is null."""
    view = np.frombuffer(data, np.uint8) if len(data) else np.zeros(0, np.uint8)
    view.flags.writeable = False
    return ByteColumn(view, read_only(start), read_only(length))


def key_hashes(keys: ByteColumn) -> IntegerArray:
    """Compute ``murmur2 & 0x7fffffff`` per row, -1 for a null key. Modulo the number of partitions it gives the
    partition."""
    hashes: IntegerArray = np.empty(keys.length.size, np.int64)
    sections.write_key_hashes(keys, hashes)
    return hashes


def take(columns: RecordColumns, rows: IntegerArray, first: int, limit_bytes: int) -> TakenRows:
    """Find how many of ``rows`` from ``first`` on fit a section of ``limit_bytes``; at least one row, however large."""
    return TakenRows(*sections.take(columns, rows, first, limit_bytes))


def encode(columns: RecordColumns, rows: IntegerArray, first: int, taken: TakenRows) -> Buffer:
    """Encode the records section of the rows that ``take`` found from ``first`` on."""
    section = np.empty(taken.section_bytes, np.uint8)
    sections.encode(columns, rows, first, taken.rows, section)
    return section.data
