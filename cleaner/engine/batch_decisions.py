"""Compiled decisions about whole batches: aborted transactions, markers, last batches of producers.

A transactional batch is aborted if an aborted transaction of its producer spans it. A marker may be removed once no
batch of its transaction is left: it gets a delete horizon then, and is removed when that has passed (KIP-534). To know
what is left, an open-addressing table has the producers with a batch since their last marker; it is kept from chunk to
chunk. Batches that cannot be read count too, because they stay. A batch with the last sequence of an active producer,
or with the last offset of the round, is kept even if all its records are removed. So is a marker with a producer's last
epoch.

Tables are arrays of 64-bit integers. C types are in ``batch_decisions.pxd``.
"""

from __future__ import annotations

from typing import Any

from tidelog.cleaner.engine.batch_table import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    COLUMNS,
    CONTROL_ABORT,
    CONTROL_EMPTIED,
    CONTROL_MASK,
    CONTROL_OTHER,
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
from tidelog.protocol.compiled import words

try:
    import cython
except ImportError:
    from tidelog.protocol.compiled import uncompiled as cython

IS_COMPILED = cython.compiled
"""Whether this module runs as machine code."""

_POISON = int(BatchState.POISON)
_FREE = -1
_SPREAD = 0x9E3779B97F4A7C15

Integers = memoryview
"""An array of 64-bit integers; in C an address."""


def decide_batches(
    table: Any,
    rows: tuple[int, int],
    types: Any,
    transactions: Any,
    last_batches: Any,
    fences: Any,
    producers: Any,
    now: int,
    end_offset: int,
    markers: Any,
) -> tuple[int, int]:
    """Fill DECISION of ``rows``; return the number of ``markers``, and of producers added to their table.

    ``types`` has the control type of each row that is a control batch. ``transactions`` has sorted (producer id, first
    offset, last offset) of aborted transactions. ``last_batches`` has sorted (last offset, producer id), ``fences``
    sorted (producer id, epoch) of producers that only a marker names. The table ``producers`` has rows of (producer id,
    1 while its transaction is open). ``now`` is in ms, ``end_offset`` the end of the round's section. ``markers`` gets
    the index in ``transactions`` of each aborted one whose marker is kept because batches of it are left.
    """
    first, end = rows
    work = BatchDecider(now, end_offset, len(transactions), len(last_batches), len(fences), len(producers))
    batches = words.hold_writable(table)
    kinds = words.hold(types)
    aborted = words.hold(transactions)
    last = words.hold(last_batches)
    fenced = words.hold(fences)
    known = words.hold_writable(producers)
    found = words.hold_writable(markers)
    with cython.nogil:
        work.take(batches.integers, kinds.integers, aborted.integers, last.integers, fenced.integers, known.integers)
        work.run(first, end, found.integers)
    words.release(found)
    words.release(known)
    words.release(fenced)
    words.release(last)
    words.release(aborted)
    words.release(kinds)
    words.release(batches)
    return work.found, work.added


def move_producers(old: Any, new: Any) -> int:
    """Put the producers of ``old`` that have an open transaction into the empty ``new``; return how many."""
    old_slots, new_slots = len(old), len(new)
    origin = words.hold(old)
    target = words.hold_writable(new)
    with cython.nogil:
        moved = _move(origin.integers, old_slots, target.integers, new_slots)
    words.release(target)
    words.release(origin)
    return moved


def _slot(producers: Integers, slots: int, producer_id: int) -> int:
    """Find the slot of a producer, or the free slot for it. The table is at most half full."""
    spread = producer_id & words.MASK_64
    slot = ((spread * _SPREAD) & words.MASK_64) >> 20
    slot &= slots - 1
    while producers[2 * slot] != _FREE and producers[2 * slot] != producer_id:
        slot = (slot + 1) & (slots - 1)
    return slot


def _move(old: Integers, old_slots: int, new: Integers, new_slots: int) -> int:
    """See :func:`move_producers`."""
    moved = 0
    for index in range(old_slots):
        if old[2 * index] != _FREE and old[2 * index + 1]:
            slot = _slot(new, new_slots, old[2 * index])
            new[2 * slot], new[2 * slot + 1] = old[2 * index], 1
            moved += 1
    return moved


def _has_pair(pairs: Integers, count: int, first: int, second: int) -> bool:
    """Return whether the sorted ``pairs`` hold (first, second)."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if pairs[2 * middle] < first or (pairs[2 * middle] == first and pairs[2 * middle + 1] < second):
            low = middle + 1
        else:
            high = middle
    return low < count and pairs[2 * low] == first and pairs[2 * low + 1] == second


class BatchDecider:
    """One call of :func:`decide_batches`: its tables with their sizes, and the results."""

    def __init__(
        self, now: int, end_offset: int, aborted_count: int, last_count: int, fenced_count: int, slots: int
    ) -> None:
        self.now, self.end_offset = now, end_offset
        self.aborted_count, self.last_count, self.fenced_count = aborted_count, last_count, fenced_count
        self.slots = slots
        self.found = self.added = 0

    def take(
        self,
        table: Integers,
        types: Integers,
        aborted: Integers,
        last_batches: Integers,
        fences: Integers,
        producers: Integers,
    ) -> None:
        """Keep the addresses of the tables, which must stay alive during the call."""
        self.table = table
        self.types = types
        self.aborted = aborted
        self.last_batches = last_batches
        self.fences = fences
        self.producers = producers

    def run(self, first: int, end: int, markers: Integers) -> None:
        """Decide about the batches ``first`` to ``end``."""
        for number in range(first, end):
            row = number * COLUMNS
            if self.table[row + STATE] == _POISON:
                self._note_poison(row)
                continue
            decision = 0
            last_offset = self.table[row + BASE_OFFSET] + self.table[row + LAST_OFFSET_DELTA]
            if self.table[row + ATTRIBUTES] & CONTROL_MASK:
                decision = NOT_INDEXED | self._decide_marker(row, self.types[number - first], last_offset, markers)
            elif self.table[row + ATTRIBUTES] & TRANSACTIONAL_MASK:
                self._open_transaction(self.table[row + PRODUCER_ID])
                decision = self._decide_data(row, last_offset)
            if last_offset + 1 == self.end_offset or self._is_kept_by_state(row, last_offset):
                decision |= RETAIN_EMPTY
            self.table[row + DECISION] = decision

    def _find_aborted(self, producer_id: int, offset: int) -> int:
        """Find the producer's last aborted transaction that begins at or below ``offset``; -1 if there is none."""
        low, high = 0, self.aborted_count
        while low < high:
            middle = (low + high) >> 1
            owner = self.aborted[3 * middle]
            if owner < producer_id or (owner == producer_id and self.aborted[3 * middle + 1] <= offset):
                low = middle + 1
            else:
                high = middle
        return low - 1 if low > 0 and self.aborted[3 * (low - 1)] == producer_id else -1

    def _is_kept_by_state(self, row: int, last_offset: int) -> bool:
        """Return whether the batch has an active producer's last sequence or, as a marker, its last epoch."""
        producer_id = self.table[row + PRODUCER_ID]
        if producer_id < 0:
            return False
        if _has_pair(self.last_batches, self.last_count, last_offset, producer_id):
            return True
        if not self.table[row + ATTRIBUTES] & CONTROL_MASK:
            return False
        return _has_pair(self.fences, self.fenced_count, producer_id, self.table[row + PRODUCER_EPOCH])

    def _decide_marker(self, row: int, kind: int, last_offset: int, markers: Integers) -> int:
        """Return DECISION bits of a control batch: whether its transaction has no batch left, and whether it is
        discarded."""
        if kind == CONTROL_OTHER:
            return 0
        producer_id = self.table[row + PRODUCER_ID]
        slot = _slot(self.producers, self.slots, producer_id)
        is_open = self.producers[2 * slot] == producer_id and self.producers[2 * slot + 1] > 0
        if kind == CONTROL_EMPTIED or not is_open:
            has_horizon = (self.table[row + ATTRIBUTES] & DELETE_HORIZON_MASK) != 0
            goes = has_horizon and self.table[row + BASE_TIMESTAMP] <= self.now
            return MARKER_OF_EMPTY_TRANSACTION | (DISCARD if goes else 0)
        self.producers[2 * slot + 1] = 0
        entry = self._find_aborted(producer_id, last_offset)
        if kind == CONTROL_ABORT and entry >= 0 and self.aborted[3 * entry + 2] == last_offset:
            markers[self.found] = entry
            self.found += 1
        return 0

    def _open_transaction(self, producer_id: int) -> None:
        """Note that the producer has a batch after its last marker."""
        slot = _slot(self.producers, self.slots, producer_id)
        if self.producers[2 * slot] == _FREE:
            self.added += 1
        self.producers[2 * slot], self.producers[2 * slot + 1] = producer_id, 1

    def _note_poison(self, row: int) -> None:
        """Note the transaction of a batch that stays as it is, so that its marker stays too."""
        is_data = self.table[row + ATTRIBUTES] & (TRANSACTIONAL_MASK | CONTROL_MASK) == TRANSACTIONAL_MASK
        if is_data and self.table[row + PRODUCER_ID] >= 0:
            self._open_transaction(self.table[row + PRODUCER_ID])

    def _decide_data(self, row: int, last_offset: int) -> int:
        """Return DECISION bits of a transactional batch: whether it was aborted."""
        entry = self._find_aborted(self.table[row + PRODUCER_ID], last_offset)
        is_aborted = entry >= 0 and self.table[row + BASE_OFFSET] <= self.aborted[3 * entry + 2]
        return DISCARD | NOT_INDEXED if is_aborted else 0
