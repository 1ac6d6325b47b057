"""Transactions and producers, as arrays, by which one pass of a round decides whether whole batches stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidelog.cleaner.engine.arrays import IntegerArray


class TransactionRows:
    """Transactions and producers by which one pass of a cleaning round decides whether whole batches stay.

    A round has an index pass and a copy pass. ``aborted`` has sorted (producer id, first offset, last offset).
    ``last_batches`` has sorted (last offset, producer id) of the batches with an active producer's last sequence.
    ``fences`` has sorted (producer id, epoch) of producers that are known by a marker only. ``open_producers`` (the
    compiled engine: ``producers``) are those with an open transaction where the pass is. ``now_ms`` is the time;
    ``end_offset`` is the first uncleanable offset, at which both passes end. One thread at a time.
    """

    def __init__(
        self,
        aborted: Sequence[tuple[int, int, int]],
        last_batches: Sequence[tuple[int, int]] | IntegerArray,
        fences: Sequence[tuple[int, int]] | IntegerArray,
        *,
        now_ms: int,
        end_offset: int,
    ) -> None:
        self.aborted = _sort_rows(aborted, 3)
        self.last_batches = _sort_rows(last_batches, 2)
        self.last_offsets = np.ascontiguousarray(self.last_batches[:, 0])
        self.fences = _sort_rows(fences, 2)
        self.now_ms = now_ms
        self.end_offset = end_offset
        self.open_producers: set[int] = set()  # used by the reference
        self.producers = np.full((64, 2), -1, np.int64)  # used by the compiled engine
        self.producers_used = 0

    def snapshot(self) -> tuple[set[int], IntegerArray, int]:
        """Return a copy of the state, which is restored if a group of segments has to be read again."""
        return set(self.open_producers), self.producers.copy(), self.producers_used

    def restore(self, snapshot: tuple[set[int], IntegerArray, int]) -> None:
        self.open_producers, self.producers, self.producers_used = set(snapshot[0]), snapshot[1].copy(), snapshot[2]


def _sort_rows(rows: Sequence[tuple[int, ...]] | IntegerArray, columns: int) -> IntegerArray:
    """Sort rows by their columns, the first one first. Python's sort of a million tuples would hold the interpreter
    lock all the time, and appends on the event loop would wait."""
    table = np.asarray(rows, np.int64).reshape(-1, columns)
    return np.ascontiguousarray(table[np.lexsort(table.T[::-1])])
