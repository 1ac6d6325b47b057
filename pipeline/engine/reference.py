"""The plain Python routines that walk over batches and hash records: the reference of the compiled ones in tests, and
their replacement where nothing is compiled.

    walk_batches   a chunk of a segment -> one row of integers per batch (columns below), and whether its CRC holds
    hash_section   the records of one batch -> offset, timestamp and 64-bit hash of each
    hash_rows      the same for the uncompressed batches of consecutive rows
    hash_columns   offset, timestamp, key and value columns of a table -> the same hash

A record's hash depends on its offset, its timestamp in milliseconds, its key and its value::

    fold(a, b) = the low half of the 128-bit product a * b, xor the high half
    field      = two chains of fold over 16 bytes a step, from a seed and the length; a null is the bare seed
    x          = offset * A ^ timestamp * B ^ field(key) ^ field(value)              mod 2^64
    hash       = mix(x)                                                              mix is SplitMix64's

The sum of hashes mod 2^64 over a set of records does not depend on their order. An audit reports this sum for
each ten minutes of a log. All 64 bits of a hash depend on every byte: two different records have the same hash only by
chance, 1 in 2^64. It does not protect against records that are made to collide. Headers are not part of it. Any thread;
stateless.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np

from tidelog.protocol.errors import CorruptMessageError
from tidelog.protocol.record.crc import crc32c
from tidelog.protocol.record.record_batch import HEADER, LOG_OVERHEAD, MAGIC_V2, RECORD_BATCH_OVERHEAD
from tidelog.protocol.types import read_varint, read_varlong

IntegerArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
WordArray = np.ndarray[Any, np.dtype[np.uint64]]
ByteArray = np.ndarray[Any, np.dtype[np.uint8]]

#: Columns of a batch row.
POSITION, SIZE, BASE_OFFSET, LAST_OFFSET, BASE_TIMESTAMP, MAX_TIMESTAMP, ATTRIBUTES = range(7)
PRODUCER_ID, PRODUCER_EPOCH, SEQUENCE, RECORD_COUNT, IS_VALID = range(7, 12)
COLUMNS = 12

#: Why a walk stopped: the chunk ends, within a batch or not; the table is full; the bytes at the position are not a
#: batch of magic 2.
NEED_BYTES, TABLE_FULL, NOT_MAGIC_2 = range(3)

#: Version of the hash's definition. Reports name it, because checksums of different versions cannot be compared.
CHECKSUM_VERSION = 2

_MASK = (1 << 64) - 1
FACTOR_OFFSET = 0x9E3779B97F4A7C15
FACTOR_TIMESTAMP = 0xC2B2AE3D27D4EB4F
FACTOR_LENGTH = 0xA0761D6478BD642F
FACTOR_CHAIN = 0xD6E8FEB86659FD93
#: Constants xored into the words of a field: of its first chain, its second, a half step, its last 16 bytes.
SECRETS = (0x2D358DCCAA6C78A5, 0x8BB84B93962EACC9, 0x4B33A62ED433D4A3, 0x4D5A2DA51DE1AA47)
SEED_KEY = 0xE7037ED1A0B428DB
SEED_VALUE = 0x8EBC6AF09C88C6E3
MIX_FIRST = 0xBF58476D1CE4E5B9
MIX_SECOND = 0x94D049BB133111EB
_CRC_AT, _CRC_FROM = 17, 21
_WORD = Struct("<Q")


class MalformedSectionError(CorruptMessageError):
    """The records of a batch are malformed."""


def walk_batches(chunk: ByteArray, start: int, size: int, table: IntegerArray) -> tuple[int, int, int]:
    """Fill rows for the batches from byte ``start`` of ``chunk[:size]``: (why it stopped, rows, where the next one
    begins).

    ``table`` is int64 of shape (rows, COLUMNS). A batch with a wrong checksum gets a row with IS_VALID 0.
    """
    view = chunk.data[:size]
    at, rows = start, 0
    while rows < len(table):
        if at + RECORD_BATCH_OVERHEAD > size:
            # The rest may hold a complete short message of an old format; the caller handles those.
            is_old = at + RECORD_BATCH_OVERHEAD > size >= at + 17 and view[at + 16] != MAGIC_V2
            return (NOT_MAGIC_2 if is_old else NEED_BYTES), rows, at
        (base, length, _, magic, crc, attributes, delta, base_timestamp, max_timestamp, producer, epoch, sequence,
         count) = HEADER.unpack_from(view, at)  # fmt: skip
        if magic != MAGIC_V2 or length < RECORD_BATCH_OVERHEAD - LOG_OVERHEAD or delta < 0 or base < 0 or count < 0:
            return NOT_MAGIC_2, rows, at
        whole = LOG_OVERHEAD + length
        if at + whole > size:
            return NEED_BYTES, rows, at
        is_valid = crc32c(view[at + _CRC_FROM : at + whole]) == crc
        table[rows] = (at, whole, base, _wrap(base + delta), base_timestamp, max_timestamp, attributes,
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
        if length < 1 or end > len(data):
            raise MalformedSectionError(f"record {row} is empty or ends after its batch")
        record = data[at:end]  # nothing beyond it is read
        timestamp_delta, at = read_varlong(record, 1)
        offset_delta, at = read_varint(record, at)
        key, at = _field(record, at)
        value, at = _field(record, at)
        timestamp = append_time if append_time >= 0 else _wrap(base_timestamp + timestamp_delta)
        out[0][row], out[1][row] = _wrap(base_offset + offset_delta), timestamp
        out[2][row] = record_hash(base_offset + offset_delta, timestamp, key, value)
        at = end
    if at != len(data):
        raise MalformedSectionError(f"{len(data) - at} bytes after the last record")


def _wrap(number: int) -> int:
    """Wrap the sum of two signed 64-bit numbers as Kafka's clients do."""
    return (number + (1 << 63) & _MASK) - (1 << 63)


def hash_rows(
    chunk: ByteArray, table: IntegerArray, first: int, last: int, out: tuple[IntegerArray, IntegerArray, WordArray]
) -> tuple[int, int]:
    """Hash the records of the uncompressed batches of rows ``first`` to below ``last``. Returns the row at which it
    stopped, and the number of records hashed.

    Stops before a batch that is compressed or malformed, or for which ``out`` has no room: a batch is hashed whole or
    not at all.
    """
    records = 0
    for number in range(first, last):
        row = table[number].tolist()
        count, end = row[RECORD_COUNT], row[POSITION] + row[SIZE]
        if row[ATTRIBUTES] & 7 or records + count > len(out[0]) or end > len(chunk):
            return number, records
        rest = (out[0][records:], out[1][records:], out[2][records:])
        if hash_section(chunk[row[POSITION] + RECORD_BATCH_OVERHEAD : end], bases_of(row), count, rest) < 0:
            return number, records
        records += count
    return last, records


def bases_of(row: list[int]) -> tuple[int, int, int]:
    """Return base offset, base timestamp, and the log append time or -1, of a batch row."""
    append_time = row[MAX_TIMESTAMP] if row[ATTRIBUTES] & 8 else -1
    return row[BASE_OFFSET], row[BASE_TIMESTAMP], append_time


def _field(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = read_varint(data, at)
    if length < 0:
        return None, at
    if at + length > len(data):
        raise MalformedSectionError("a field ends after its record")
    return data[at : at + length], at + length


def record_hash(offset: int, timestamp: int, key: bytes | None, value: bytes | None) -> int:
    """Hash one record by the module's formula; 0 to 2^64 - 1."""
    x = (offset * FACTOR_OFFSET) ^ (timestamp * FACTOR_TIMESTAMP)
    x = (x ^ field_hash(key, SEED_KEY) ^ field_hash(value, SEED_VALUE)) & _MASK
    x = ((x ^ (x >> 30)) * MIX_FIRST) & _MASK
    x = ((x ^ (x >> 27)) * MIX_SECOND) & _MASK
    return x ^ (x >> 31)


def field_hash(data: bytes | None, seed: int) -> int:
    """Compute the hash of a key or a value, 0 to 2^64 - 1.

    Each step takes 32 bytes, 16 in either chain. If more than 16 bytes are left, the first chain takes 16 of them in
    one more step. If any are left, the second chain takes the field's last 16 bytes, some of which may have been taken
    before. For a field below 16 bytes these are its first and its last 8; below 8, the field itself and 0.
    """
    if data is None:
        return seed
    first = seed ^ ((len(data) + 1) * FACTOR_LENGTH & _MASK)
    second = first ^ FACTOR_CHAIN
    words = [word for (word,) in _WORD.iter_unpack(data[: len(data) & -8])]
    at, rest = len(data) // 32 * 4, len(data) % 32
    for step in range(0, at, 4):
        first = _fold(words[step] ^ SECRETS[0], words[step + 1] ^ first)
        second = _fold(words[step + 2] ^ SECRETS[1], words[step + 3] ^ second)
    if rest > 16:
        first = _fold(words[at] ^ SECRETS[2], words[at + 1] ^ first)
    if rest:
        low, high = _last_words(data)
        second = _fold(low ^ SECRETS[3], high ^ second)
    return (first + second * FACTOR_CHAIN) & _MASK


def _last_words(data: bytes) -> tuple[int, int]:
    if len(data) < 8:
        return int.from_bytes(data, "little"), 0
    low = data[-16:-8] if len(data) >= 16 else data[:8]
    return int.from_bytes(low, "little"), int.from_bytes(data[-8:], "little")


def _fold(one: int, other: int) -> int:
    product = one * other
    return (product & _MASK) ^ (product >> 64)


def hash_columns(
    offsets_and_times: tuple[IntegerArray, IntegerArray],
    key: tuple[ByteArray, IntegerArray, ByteArray],
    value: tuple[ByteArray, IntegerArray, ByteArray],
    hashes: WordArray,
) -> None:
    """Hash the rows of a table into ``hashes``.

    ``offsets_and_times``: the times in ms. ``key`` and ``value``: the bytes of all rows, the positions where each row's
    bytes begin and (one more) where the last end (int64), and validity (uint8, 0 for a null).
    """
    for row in range(len(hashes)):
        fields = [
            data[starts[row] : starts[row + 1]].tobytes() if is_valid[row] else None
            for data, starts, is_valid in (key, value)
        ]
        hashes[row] = record_hash(int(offsets_and_times[0][row]), int(offsets_and_times[1][row]), fields[0], fields[1])
