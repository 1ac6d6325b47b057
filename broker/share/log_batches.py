"""Headers of the batches in a slice of a log: their offsets, positions, and producer ids of transactions.

A share fetch must know which offsets it returns, and their positions in the slice. Only headers are read, through a
window of ``WINDOW_BYTES``, and only as far as there is something to acquire. A message of an old message set (magic 0
or 1) is taken to begin at the offset after the batch before it: a compressed message stores only its last offset.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidelog.log.index.transaction_index import AbortedTxn
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.transferable import TransferableRecords

WINDOW_BYTES = 16 * 1024
MAX_BATCHES = 1_000
"""Largest number of batches of one partition that are read for one request, in 1 µs each. The next request
goes on from there."""

_OLD_HEADER = struct.Struct(">qiIb")  # offset, length, CRC or leader epoch, magic
_HEADER = struct.Struct(">qiibIhiqqq")  # up to the producer id of magic 2
_LOG_OVERHEAD = 12  # bytes of the offset and the length, which the length does not count
_MAGIC_V2 = 2
_TRANSACTIONAL, _CONTROL = 0x10, 0x20


class LogBatch(NamedTuple):
    """One batch, at byte ``position`` of the slice. ``producer_id`` is -1 outside transactions."""

    base_offset: int
    last_offset: int
    position: int
    size: int
    producer_id: int = -1
    is_control: bool = False


def read_batches(records: TransferableRecords | bytes, from_offset: int, max_records: int) -> list[LogBatch]:
    """Read the complete batches of a slice from ``from_offset`` on, until they cover ``max_records`` offsets, and at
    most MAX_BATCHES. Raises KafkaStorageError.
    """
    found: list[LogBatch] = []
    for batch in _walk(records, from_offset):
        if batch.last_offset >= from_offset:
            found.append(batch)
        if batch.last_offset - from_offset + 1 >= max_records or len(found) == MAX_BATCHES:
            break
    return found


def _walk(records: TransferableRecords | bytes, next_offset: int) -> Iterator[LogBatch]:
    """Yield the complete batches of a slice. If the first one is an old message, it begins at ``next_offset``."""
    position, end = 0, len(records)
    window, begin = b"", 0
    while position + _OLD_HEADER.size <= end:
        if position + _HEADER.size > begin + len(window):
            window, begin = _read(records, position), position
        batch = _parse(window, position - begin, position, next_offset)
        if batch is None or position + batch.size > end:
            return
        yield batch
        position, next_offset = position + batch.size, batch.last_offset + 1


def _read(records: TransferableRecords | bytes, position: int) -> bytes:
    """Read a window of the slice from ``position`` on; all of the rest if the slice is in memory."""
    if not isinstance(records, TransferableRecords):
        return bytes(records[position:])
    size = min(WINDOW_BYTES, records.size - position)
    try:
        return os.pread(records.file.fileno(), size, records.position + position)
    except OSError as error:
        raise KafkaStorageError(str(error)) from error


def _parse(window: bytes, at: int, position: int, next_offset: int) -> LogBatch | None:
    """Parse the header at byte ``at`` of the window, which is byte ``position`` of the slice. Returns None if it is cut
    off or its length is damaged."""
    if len(window) - at < _OLD_HEADER.size:
        return None
    offset, length, _, magic = _OLD_HEADER.unpack_from(window, at)
    size = _LOG_OVERHEAD + length
    if size < _OLD_HEADER.size:
        return None  # a damaged length, which would make the walk endless
    if magic < _MAGIC_V2:
        return LogBatch(min(next_offset, offset), offset, position, size)
    if len(window) - at < _HEADER.size:
        return None
    _, _, _, _, _, attributes, last_delta, _, _, producer_id = _HEADER.unpack_from(window, at)
    if not attributes & _TRANSACTIONAL:
        producer_id = -1
    return LogBatch(offset, offset + last_delta, position, size, producer_id, bool(attributes & _CONTROL))


def aborted_batches(batches: Iterable[LogBatch], transactions: Iterable[AbortedTxn]) -> Iterator[LogBatch]:
    """Yield the batches that belong to aborted transactions, without the markers."""
    waiting = sorted(transactions, key=lambda transaction: transaction.first_offset, reverse=True)
    aborted: set[int] = set()
    for batch in batches:
        while waiting and waiting[-1].first_offset <= batch.last_offset:
            aborted.add(waiting.pop().producer_id)
        if batch.is_control:
            aborted.discard(batch.producer_id)
        elif batch.producer_id in aborted:
            yield batch


def cut(
    records: TransferableRecords | bytes, batches: Iterable[LogBatch], first: int, last: int
) -> TransferableRecords | bytes:
    """Return the part of a slice with the batches that have offsets from ``first`` to ``last``. The part replaces the
    slice: the caller releases only the part.
    """
    touched = [batch for batch in batches if batch.last_offset >= first and batch.base_offset <= last]
    begin, end = touched[0].position, touched[-1].position + touched[-1].size
    if not isinstance(records, TransferableRecords):
        return records[begin:end]
    return TransferableRecords(records.file, records.position + begin, end - begin)
