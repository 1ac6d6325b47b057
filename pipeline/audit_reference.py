"""An audit's look at records in plain Python: the kernels' oracle, and what works where numba is not installed.

    walk_batches   a chunk of a segment -> one row of integers per batch (columns below), CRC verdict included
    hash_section   the records of one batch -> offset, timestamp and 64-bit hash of each
    hash_columns   offset, timestamp, key and value columns of a table -> the same hash

A record's hash takes in its offset, its timestamp in milliseconds, its key and its value::

    word = crc32c(key) | crc32c(value) << 32                       0 for a null
    x    = offset * A ^ timestamp * B ^ word * C ^ (key length + 2) * D ^ (value length + 2) * E     mod 2^64
    hash = mix(x)                                                  lengths are -1 for a null; mix is SplitMix64's

so that the sum of hashes mod 2^64 over any set of records does not depend on their order: what a log and a table made
of it are compared by. Headers are not in it. Any thread; nothing is kept.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np

from protocol.crc import crc32c
from protocol.errors import CorruptMessageError
from protocol.record_batch import HEADER, LOG_OVERHEAD, MAGIC_V2, RECORD_BATCH_OVERHEAD
from protocol.types import read_varint, read_varlong

IntegerArray = np.ndarray[Any, np.dtype[np.int64]]
WordArray = np.ndarray[Any, np.dtype[np.uint64]]
ByteArray = np.ndarray[Any, np.dtype[np.uint8]]

#: Columns of a batch row.
POSITION, SIZE, BASE_OFFSET, LAST_OFFSET, BASE_TIMESTAMP, MAX_TIMESTAMP, ATTRIBUTES = range(7)
PRODUCER_ID, PRODUCER_EPOCH, SEQUENCE, RECORD_COUNT, IS_VALID = range(7, 12)
COLUMNS = 12

#: Why a walk came back: the chunk ends within a batch; the table is full; what lies at the position is no batch of
#: magic 2.
NEED_BYTES, TABLE_FULL, NOT_MINE = range(3)

_MASK = (1 << 64) - 1
FACTOR_OFFSET = 0x9E3779B97F4A7C15
FACTOR_TIMESTAMP = 0xC2B2AE3D27D4EB4F
FACTOR_WORD = 0xD6E8FEB86659FD93
FACTOR_KEY_LENGTH = 0xA0761D6478BD642F
FACTOR_VALUE_LENGTH = 0xE7037ED1A0B428DB
MIX_FIRST = 0xBF58476D1CE4E5B9
MIX_SECOND = 0x94D049BB133111EB
_CRC_AT, _CRC_FROM = 17, 21
_UINT = Struct(">I")


class MalformedSectionError(CorruptMessageError):
    """The records of a batch do not have the form they must have."""


def walk_batches(chunk: ByteArray, start: int, size: int, table: IntegerArray) -> tuple[int, int, int]:
    """Rows for the batches from byte ``start`` of ``chunk[:size]``: (why it stopped, rows, where the next one begins).

    ``table`` is int64 of shape (rows, COLUMNS). A batch with a wrong checksum gets a row with IS_VALID 0.
    """
    view = chunk.data[:size]
    at, rows = start, 0
    while rows < len(table):
        if at + RECORD_BATCH_OVERHEAD > size:
            # An old, short message may lie whole in what is left; the caller's plain walk knows those.
            is_old = at + RECORD_BATCH_OVERHEAD > size >= at + 17 and view[at + 16] != MAGIC_V2
            return (NOT_MINE if is_old else NEED_BYTES), rows, at
        (base, length, _, magic, crc, attributes, delta, base_timestamp, max_timestamp, producer, epoch, sequence,
         count) = HEADER.unpack_from(view, at)  # fmt: skip
        if magic != MAGIC_V2 or length < RECORD_BATCH_OVERHEAD - LOG_OVERHEAD or delta < 0 or base < 0 or count < 0:
            return NOT_MINE, rows, at
        whole = LOG_OVERHEAD + length
        if at + whole > size:
            return NEED_BYTES, rows, at
        is_valid = crc32c(view[at + _CRC_FROM : at + whole]) == crc
        table[rows] = (at, whole, base, base + delta, base_timestamp, max_timestamp, attributes,
                       producer, epoch, sequence, count, is_valid)  # fmt: skip
        rows += 1
        at += whole
    return TABLE_FULL, rows, at


def hash_section(
    section: ByteArray, bases: tuple[int, int, int], count: int, out: tuple[IntegerArray, IntegerArray, WordArray]
) -> int:
    """Hash the ``count`` records of an uncompressed section into the front of ``out``; returns ``count``, or -1 when
    the section is malformed.

    ``bases`` are the batch's base offset and base timestamp, and the log append time or -1. ``out``: offsets and
    timestamps int64, hashes uint64.
    """
    try:
        _hash_records(section.tobytes(), bases, count, out)
    except (CorruptMessageError, IndexError, ValueError):
        return -1
    return count


def _hash_records(
    data: bytes, bases: tuple[int, int, int], count: int, out: tuple[IntegerArray, IntegerArray, WordArray]
) -> None:
    base_offset, base_timestamp, append_time = bases
    at = 0
    for row in range(count):
        length, at = read_varint(data, at)
        end = at + length
        if length < 0 or end > len(data):
            raise MalformedSectionError(f"record {row} ends behind its batch")
        timestamp_delta, at = read_varlong(data, at + 1)
        offset_delta, at = read_varint(data, at)
        key, at = _field(data, at, end)
        value, at = _field(data, at, end)
        timestamp = append_time if append_time >= 0 else base_timestamp + timestamp_delta
        out[0][row], out[1][row] = base_offset + offset_delta, timestamp
        out[2][row] = record_hash(base_offset + offset_delta, timestamp, key, value)
        at = end
    if at != len(data):
        raise MalformedSectionError(f"{len(data) - at} bytes behind the last record")


def _field(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = read_varint(data, at)
    if length < 0:
        return None, at
    if at + length > end:
        raise MalformedSectionError("a field ends behind its record")
    return data[at : at + length], at + length


def record_hash(offset: int, timestamp: int, key: bytes | None, value: bytes | None) -> int:
    """The hash of one record, see the module; 0 to 2^64 - 1."""
    word = (crc32c(key) if key is not None else 0) | (crc32c(value) if value is not None else 0) << 32
    x = (offset * FACTOR_OFFSET) ^ (timestamp * FACTOR_TIMESTAMP) ^ (word * FACTOR_WORD)
    x ^= (1 if key is None else len(key) + 2) * FACTOR_KEY_LENGTH
    x = (x ^ (1 if value is None else len(value) + 2) * FACTOR_VALUE_LENGTH) & _MASK
    x = ((x ^ (x >> 30)) * MIX_FIRST) & _MASK
    x = ((x ^ (x >> 27)) * MIX_SECOND) & _MASK
    return x ^ (x >> 31)


def hash_columns(
    places: tuple[IntegerArray, IntegerArray],
    key: tuple[ByteArray, IntegerArray, ByteArray],
    value: tuple[ByteArray, IntegerArray, ByteArray],
    hashes: WordArray,
) -> None:
    """Hash the rows of a table into ``hashes``.

    ``places``: offsets and timestamps in ms. ``key`` and ``value``: the bytes of all rows, where each row's begin (one
    more than rows, int64), and whether each row is there (uint8, 0 for a null).
    """
    for row in range(len(hashes)):
        fields = [
            data[starts[row] : starts[row + 1]].tobytes() if there[row] else None
            for data, starts, there in (key, value)
        ]
        hashes[row] = record_hash(int(places[0][row]), int(places[1][row]), fields[0], fields[1])
