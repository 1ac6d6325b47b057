"""Duplicates of idempotent producers: a batch whose sequence its producer has written before, in the same epoch.

    span      the first and the last (epoch, sequence) of a producer in a part of the log, in log order
    follow    compares batches with the spans so far, finds the duplicates, and extends the spans
    join      compares the spans of a producer in two segments: whether the later begins with a sequence of the earlier

Sequences go from 0 to 2^31 - 1 and begin again at 0. A sequence that jumps ahead is not a fault here: a cleaner
may have removed the batches between. Their offsets are then missing, which is a hole (``tidelog.pipeline.plan.holes``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tidelog.pipeline.engine import reference as at
from tidelog.pipeline.engine.reference import IntegerArray

_SEQUENCES = 1 << 31
_HALF = 1 << 30


class ProducerSpan(NamedTuple):
    """First and last batch of a producer in a part of the log: epochs, first sequence of the first, last of the
    last."""

    first_epoch: int
    first_sequence: int
    last_epoch: int
    last_sequence: int


def follow(rows: IntegerArray, spans: dict[int, ProducerSpan]) -> list[int]:
    """Find the numbers of the rows that are duplicates, and update ``spans`` (by producer id).

    ``rows``: int64 (batches, COLUMNS) of valid data batches with a producer id, in log order.
    """
    order = np.argsort(rows[:, at.PRODUCER_ID], kind="stable")
    ordered = rows[order]
    ids, epochs = ordered[:, at.PRODUCER_ID], ordered[:, at.PRODUCER_EPOCH]
    first = ordered[:, at.SEQUENCE]
    last = (first + ordered[:, at.LAST_OFFSET] - ordered[:, at.BASE_OFFSET]) % _SEQUENCES
    starts = np.concatenate(([True], ids[1:] != ids[:-1]))
    before_epoch, before_last = np.roll(epochs, 1), np.roll(last, 1)
    for row in np.flatnonzero(starts).tolist():
        known = spans.get(int(ids[row]))
        before_epoch[row] = -1 if known is None else known.last_epoch
        before_last[row] = -1 if known is None else known.last_sequence
    wrong = (epochs == before_epoch) & _is_behind(first, before_last)
    ends = np.append(starts[1:], True)
    for begin, end in zip(np.flatnonzero(starts).tolist(), np.flatnonzero(ends).tolist(), strict=True):
        known = spans.get(int(ids[begin]))
        head = known[:2] if known is not None else (int(epochs[begin]), int(first[begin]))
        spans[int(ids[begin])] = ProducerSpan(*head, int(epochs[end]), int(last[end]))
    return sorted(order[wrong].tolist())


def join(before: ProducerSpan, after: ProducerSpan) -> bool:
    """Return whether the later span of a producer begins with a sequence that the earlier span already has."""
    first, last = np.array([after.first_sequence]), np.array([before.last_sequence])
    return after.first_epoch == before.last_epoch and bool(_is_behind(first, last)[0])


def _is_behind(first: IntegerArray, last: IntegerArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return whether a batch that begins with ``first`` repeats one that ends with ``last`` (-1: no batch)."""
    ahead = (first - (last + 1)) % _SEQUENCES
    is_behind: np.ndarray[tuple[int], np.dtype[np.bool_]] = (last >= 0) & (ahead >= _HALF)
    return is_behind
