"""The builder of record sections from columns: of an Arrow batch's buffers, not of its rows.

A writer that holds its records as columns has, per field, one buffer of bytes and where each row's stretch of it lies.
From there to the records section of a magic 2 batch are three steps, each for many rows at once:

    key_hashes     murmur2 of each key: the partition it belongs to, as Kafka's own producer chooses it
    take           how many rows, from the first on, make a section of at most so many bytes
    encode         those rows' records, deltas against the first row's timestamp, offsets 0, 1, 2 ...

The rows of one section need not lie side by side: ``rows`` names them in order, so that a batch of rows for many
partitions is sorted by partition in its row numbers alone. ``tidelog.pipeline.sink.sections`` does the work, uncompiled
as well (10 µs a row). Free functions, any thread.
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
    """Records as columns of equal length; row i has the headers from ``header_start[i]`` on, ``header_count[i]`` many.

    ``timestamp`` is in ms. ``header_key`` holds no nulls. Arrays are uint8 (data) and int64, contiguous.
    """

    key: ByteColumn
    value: ByteColumn
    timestamp: IntegerArray
    header_start: IntegerArray
    header_count: IntegerArray
    header_key: ByteColumn
    header_value: ByteColumn


class Taken(NamedTuple):
    """Rows that make one section: how many, its bytes, and the times of its batch in ms."""

    rows: int
    section_bytes: int
    base_timestamp: int
    max_timestamp: int


def read_only(array: IntegerArray) -> IntegerArray:
    """Return the array as int64, contiguous and closed for writing."""
    view = np.ascontiguousarray(array, np.int64).view()
    view.flags.writeable = False
    return view


def byte_column(data: Buffer, start: IntegerArray, length: IntegerArray) -> ByteColumn:
    """Build a column over any buffer; ``length`` -1 is null."""
    view = np.frombuffer(data, np.uint8) if len(data) else np.zeros(0, np.uint8)
    view.flags.writeable = False
    return ByteColumn(view, read_only(start), read_only(length))


def key_hashes(keys: ByteColumn) -> IntegerArray:
    """Compute ``murmur2 & 0x7fffffff`` per row, to be taken modulo the number of partitions; -1 for a null key."""
    hashes: IntegerArray = np.empty(keys.length.size, np.int64)
    sections.key_hashes(keys, hashes)
    return hashes


def take(columns: RecordColumns, rows: IntegerArray, first: int, limit_bytes: int) -> Taken:
    """Take the rows ``rows[first:first + count]`` whose section has at most ``limit_bytes``; one at least, however
    large.
    """
    return Taken(*sections.take(columns, rows, first, limit_bytes))


def encode(columns: RecordColumns, rows: IntegerArray, first: int, taken: Taken) -> Buffer:
    """Encode the records section of the rows ``take`` found from ``first`` on."""
    section = np.empty(taken.section_bytes, np.uint8)
    sections.encode(columns, rows, first, taken.rows, section)
    return section.data
