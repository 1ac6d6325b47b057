"""Stretches of a log in which all records are superseded: the copy pass drops them without reading them again.

The index pass notes the bytes and record ordinals (``tidelog.cleaner.engine.batch_table``) of each of its steps as a
stretch. After it, the superseded bits (``tidelog.cleaner.round.spill``) show the stretches in which every record has a
later one with its key; with few keys that is nearly all of a log. A stretch is not noted, or not dropped, if a batch in
it may have to be kept for another reason: a control batch, a transaction, the last sequence of an active producer,
the last offset of the round, damage. So the result is the same as if the engine's ``decide`` and ``filter`` had got
these batches.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np

from tidelog.cleaner.engine import batch_table as at
from tidelog.cleaner.engine.arrays import ByteArray, IntegerArray
from tidelog.cleaner.engine.batch_table import BatchState, SupersededBits

#: Largest number of stretches that are noted, with 56 bytes each. They cover 100 GB in steps of 1 MB; more bytes are
#: read twice.
MAX_STRETCHES = 100_000
_READABLE = (int(BatchState.PLAIN), int(BatchState.EXPANDED))
_TRANSACTION = at.CONTROL_MASK | at.TRANSACTIONAL_MASK


class Stretch(NamedTuple):
    """Bytes ``start`` to ``end`` of a segment, with the ordinals of their records (up to below ``ordinal_end``), their
    first and last offset and their number of batches.
    """

    start: int
    end: int
    ordinal: int
    ordinal_end: int
    first_offset: int
    last_offset: int
    batches: int


class Stretches:
    """The stretches of a round, by base offset of the segment. One thread."""

    def __init__(self) -> None:
        self._noted: dict[int, array[int]] = {}
        self._left = MAX_STRETCHES  # number of stretches that may still be noted

    def note(self, segment: int, position: int, rows: IntegerArray) -> None:
        """Note the rows of a step of the index pass after ``decide`` and ``parse``, if all their records may be
        dropped. The step's buffer begins at byte ``position`` of the file."""
        if not self._left or not len(rows):
            return
        last = rows[-1]
        readable = np.isin(rows[:, at.STATE], _READABLE).all()
        if not readable or rows[:, at.DECISION].any() or (rows[:, at.ATTRIBUTES] & _TRANSACTION).any():
            return
        self._left -= 1
        stretch = Stretch(
            start=position + int(rows[0, at.POSITION]),
            end=position + int(last[at.POSITION] + last[at.SIZE]),
            ordinal=int(rows[0, at.ORDINAL]),
            ordinal_end=int(last[at.ORDINAL] + last[at.COUNT]),
            first_offset=int(rows[0, at.BASE_OFFSET]),
            last_offset=int(last[at.BASE_OFFSET] + last[at.LAST_OFFSET_DELTA]),
            batches=len(rows),
        )
        self._noted.setdefault(segment, array("q")).extend(stretch)

    def find_superseded(self, segment: int, superseded: SupersededBits, last_offsets: IntegerArray) -> list[Stretch]:
        """Return the noted stretches of a segment, in order, of which no record is kept.

        ``last_offsets`` (int64, sorted, shape (n,)) are the last offsets of batches that producers need.
        """
        noted = np.frombuffer(self._noted.get(segment, array("q")), np.int64).reshape(-1, len(Stretch._fields))
        found = (Stretch(*row) for row in noted.tolist())
        bits, first = superseded
        return [
            stretch
            for stretch in found
            if _are_all_set(bits, stretch.ordinal - first, stretch.ordinal_end - first)
            and _has_none_within(last_offsets, stretch.first_offset, stretch.last_offset)
        ]


def _are_all_set(bits: ByteArray, first: int, end: int) -> bool:
    """Return whether the bits ``first`` to ``end`` - 1 are all set.

    The bytes at both ends are compared first, because they most often show a bit that is not set.
    """
    if end <= first:
        return True
    head, tail = first >> 3, (end - 1) >> 3
    below_end, from_first = 0xFF >> (7 - ((end - 1) & 7)), 0xFF << (first & 7) & 0xFF
    if head == tail:
        return int(bits[head]) & below_end & from_first == below_end & from_first
    edges = int(bits[tail]) & below_end == below_end and int(bits[head]) & from_first == from_first
    return edges and bool((bits[head + 1 : tail] == 0xFF).all())


def _has_none_within(offsets: IntegerArray, first: int, last: int) -> bool:
    return int(np.searchsorted(offsets, first)) == int(np.searchsorted(offsets, last, "right"))
