"""Compiled decisions about whole batches: aborted transactions, markers, last batches of producers.

A transactional batch is aborted when an aborted transaction of its producer spans it. A marker may go once no batch
of its transaction is left: then it gets a delete horizon, and goes when that has passed (KIP-534). "Is left" is
tracked as the set of producers with a batch seen since their last marker: an open-addressing table of producer ids,
kept from chunk to chunk. A batch that carries the last sequence of an active producer, or the last offset of the
round, stays even empty.
"""

from __future__ import annotations

import numpy as np

from tidelog.cleaner.engine.batch_table import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    BODY,
    BODY_SIZE,
    CONTROL_MASK,
    COUNT,
    DECISION,
    DELETE_HORIZON_MASK,
    DISCARD,
    LAST_OFFSET_DELTA,
    MARKER_OF_EMPTY_TRANSACTION,
    NOT_INDEXED,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RETAIN_EMPTY,
    STATE,
    TRANSACTIONAL_MASK,
    BatchState,
)
from tidelog.cleaner.engine.kernels import _record
from tidelog.log.records.intrinsics import ByteArray, Integer, IntegerArray, kernel, load_be_u16

_POISON = int(BatchState.POISON)
_ABORT, _COMMIT, _OTHER, _EMPTIED = 0, 1, 2, 3
FREE = -1


@kernel
def _slot(producers: IntegerArray, producer_id: Integer) -> Integer:
    """Where a producer is in the table, or the free slot where it belongs. The table is at most half full."""
    mask = len(producers) - 1
    slot = np.int64((np.uint64(producer_id) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)) & mask
    while producers[slot, 0] not in (FREE, producer_id):
        slot = (slot + 1) & mask
    return slot


@kernel
def move_producers(old: IntegerArray, new: IntegerArray) -> Integer:
    """Put the producers of ``old`` that have an open transaction into the larger, empty ``new``; returns how many."""
    moved = 0
    for index in range(len(old)):
        if old[index, 0] != FREE and old[index, 1]:
            slot = _slot(new, old[index, 0])
            new[slot, 0], new[slot, 1] = old[index, 0], 1
            moved += 1
    return moved


@kernel
def _aborted(transactions: IntegerArray, producer_id: Integer, offset: Integer) -> Integer:
    """The last transaction of this producer that begins at or below ``offset``, -1 when none.

    ``transactions``: (producer id, first offset, last offset), sorted.
    """
    low, high = 0, len(transactions)
    while low < high:
        middle = (low + high) >> 1
        before = transactions[middle, 0] < producer_id
        if before or (transactions[middle, 0] == producer_id and transactions[middle, 1] <= offset):
            low = middle + 1
        else:
            high = middle
    return low - 1 if low > 0 and transactions[low - 1, 0] == producer_id else -1


@kernel
def _find_pair(pairs: IntegerArray, first: Integer, second: Integer) -> bool:
    """Whether the sorted ``pairs`` hold (first, second)."""
    low, high = 0, len(pairs)
    while low < high:
        middle = (low + high) >> 1
        if pairs[middle, 0] < first or (pairs[middle, 0] == first and pairs[middle, 1] < second):
            low = middle + 1
        else:
            high = middle
    return low < len(pairs) and pairs[low, 0] == first and pairs[low, 1] == second


@kernel
def _control_type(buffer: ByteArray, table: IntegerArray, row: Integer) -> Integer:
    if table[row, COUNT] == 0:
        return _EMPTIED
    body = table[row, BODY]
    end, key, key_size, _, _, _ = _record(buffer, body, body + table[row, BODY_SIZE])
    if end < 0 or key_size < 4:
        return _OTHER
    kind = np.int64(load_be_u16(buffer, key + 2))
    return kind if kind <= _COMMIT else _OTHER


@kernel
def _kept_by_state(table: IntegerArray, row: Integer, last_batches: IntegerArray, fences: IntegerArray) -> bool:
    """Whether the batch carries an active producer's last sequence, or (a marker) its last epoch."""
    producer_id = table[row, PRODUCER_ID]
    if producer_id < 0:
        return False
    if _find_pair(last_batches, table[row, BASE_OFFSET] + table[row, LAST_OFFSET_DELTA], producer_id):
        return True
    control = table[row, ATTRIBUTES] & CONTROL_MASK != 0
    return control and _find_pair(fences, producer_id, table[row, PRODUCER_EPOCH])


@kernel
def _decide_marker(
    kind: Integer, table: IntegerArray, row: Integer, transactions: IntegerArray, producers: IntegerArray
) -> tuple[Integer, Integer]:
    """(MARKER_OF_EMPTY_TRANSACTION or 0, the aborted transaction whose marker stays or -1)."""
    producer_id = table[row, PRODUCER_ID]
    if kind == _OTHER:
        return 0, -1
    slot = _slot(producers, producer_id)
    if kind == _EMPTIED or producers[slot, 0] != producer_id or producers[slot, 1] == 0:
        return MARKER_OF_EMPTY_TRANSACTION, -1
    producers[slot, 1] = 0
    last_offset = table[row, BASE_OFFSET] + table[row, LAST_OFFSET_DELTA]
    entry = _aborted(transactions, producer_id, last_offset)
    return 0, entry if kind == _ABORT and entry >= 0 and transactions[entry, 2] == last_offset else -1


@kernel
def _open_transaction(producers: IntegerArray, producer_id: Integer) -> Integer:
    """Note that the producer has a batch since its last marker; returns 1 for one that is new to the table."""
    slot = _slot(producers, producer_id)
    is_new = producers[slot, 0] == FREE
    producers[slot, 0], producers[slot, 1] = producer_id, 1
    return np.int64(is_new)


@kernel
def decide_batches(
    buffer: ByteArray,
    table: IntegerArray,
    rows: tuple[Integer, Integer],
    transactions: IntegerArray,
    retained: tuple[IntegerArray, IntegerArray],
    producers: IntegerArray,
    clock: tuple[Integer, Integer],
    markers: IntegerArray,
) -> tuple[Integer, Integer]:
    """Fill DECISION of ``rows``.

    ``retained``: sorted (last offset, producer id) of last batches, and sorted (producer id, epoch) of producers that
    are known by a marker only. ``clock``: now in ms and the offset where the round ends. ``markers`` receives the
    index in ``transactions`` of every aborted one whose marker stays for the sake of its batches. Returns (markers,
    producers new to the table).
    """
    found, added = 0, 0
    for row in range(rows[0], rows[1]):
        if table[row, STATE] == _POISON:
            continue
        decision, producer_id, attributes = 0, table[row, PRODUCER_ID], table[row, ATTRIBUTES]
        last_offset = table[row, BASE_OFFSET] + table[row, LAST_OFFSET_DELTA]
        if attributes & CONTROL_MASK:
            marker, entry = _decide_marker(_control_type(buffer, table, row), table, row, transactions, producers)
            decision = NOT_INDEXED | marker
            if marker and attributes & DELETE_HORIZON_MASK and table[row, BASE_TIMESTAMP] <= clock[0]:
                decision |= DISCARD
            if entry >= 0:
                markers[found] = entry
                found += 1
        elif attributes & TRANSACTIONAL_MASK:
            added += _open_transaction(producers, producer_id)
            entry = _aborted(transactions, producer_id, last_offset)
            is_aborted = entry >= 0 and table[row, BASE_OFFSET] <= transactions[entry, 2]
            decision = DISCARD | NOT_INDEXED if is_aborted else 0
        if _kept_by_state(table, row, retained[0], retained[1]) or last_offset + 1 == clock[1]:
            decision |= RETAIN_EMPTY
        table[row, DECISION] = decision
    return found, added
