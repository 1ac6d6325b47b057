"""The check of a segment's offset and time index against its batches, during the audit's single walk over them.

    offset index   each entry has the byte at which a batch begins, and the last offset of that batch or of one after it
                   and before the next entry's; both ascend
    time index     each entry's offset lies in a batch whose largest timestamp is the entry's; timestamps ascend;
                   a closed segment's last entry is the segment's largest timestamp

Apache Kafka writes an entry for an append, which is several batches if a follower fetched them at once: the last offset
of all, and the position of the first.

Zeros after the entries, in a log that was not closed, are not a fault. Only the first entry of a time index may have
zeros alone: that of a first record of time 0. An entry without a batch at the end of the walk is a fault, unless the
segment is damaged. In an active segment the entries after the last right one, or from one on that does not ascend, may
be those of removed records: a truncation leaves them in the files, and they are no fault. Arrays are int64; one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidelog.pipeline.engine import reference as at
from tidelog.pipeline.engine.reference import BoolArray, IntegerArray
from tidelog.pipeline.files.segment_files import SegmentFile
from tidelog.pipeline.files.sources import OpenSegment

_OFFSET_ENTRY = np.dtype([("relative", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("relative", ">i4")])
_MAX_FAULTS = 20


@dataclass(slots=True)
class IndexFault:
    """An index entry that does not match the batches: file, slot (-1: the file as a whole), and the reason."""

    path: str
    slot: int
    message: str


class _SlotsByValue:
    """The slots of an index by the values of one column: entries that are wrong or stale need not ascend."""

    def __init__(self, column: IntegerArray) -> None:
        self._slots = np.argsort(column, kind="stable")
        self._values = column[self._slots]

    def between(self, first: np.int64, last: np.int64) -> IntegerArray:
        """Find the slots with values from ``first`` to ``last``."""
        start, end = (
            np.searchsorted(self._values, first, side="left"),
            np.searchsorted(self._values, last, side="right"),
        )
        return self._slots[int(start) : int(end)]

    def above(self, value: int) -> IntegerArray:
        """Find the slots with values above ``value``, by value."""
        return self._slots[int(np.searchsorted(self._values, value, side="right")) :]


_NO_SLOTS = _SlotsByValue(np.zeros(0, np.int64))


@dataclass(slots=True)
class IndexCheck:
    """The entries of one segment's indices, and which of them agree with the batches so far: of the offset index, those
    at whose position a batch begins, and those at whose offset one of their batches ends."""

    offset_path: str
    time_path: str
    offsets: IntegerArray
    positions: IntegerArray
    timestamps: IntegerArray
    time_offsets: IntegerArray
    faults: list[IndexFault] = field(default_factory=list)
    fault_count: int = 0
    missing: tuple[str, ...] = ()
    _limits: IntegerArray = field(default_factory=lambda: np.zeros(0, np.int64))
    _by_position: _SlotsByValue = _NO_SLOTS
    _by_offset: _SlotsByValue = _NO_SLOTS
    _by_time_offset: _SlotsByValue = _NO_SLOTS
    _begun: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))
    _ended: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))
    _time_answered: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))
    _is_doubtful: bool = False
    """Whether the time index has only zeros: no entry, or that of a first record of time 0."""

    @classmethod
    def open(cls, segment: SegmentFile) -> IndexCheck:
        """Read both indices; ``missing`` has the paths of those that do not exist."""
        offset_path, time_path = segment.sibling(".index"), segment.sibling(".timeindex")
        entries, has_offsets = _read(offset_path, _OFFSET_ENTRY)
        relative = entries["relative"].astype(np.int64)
        count = _count_entries(entries["position"] == 0)
        times, has_times = _read(time_path, _TIME_ENTRY)
        time_relative, stamps = times["relative"].astype(np.int64), times["timestamp"].astype(np.int64)
        empty = (time_relative == 0) & (stamps == 0)
        time_count = 1 + _count_entries(empty[1:]) if len(empty) else 0
        check = cls(
            offset_path,
            time_path,
            segment.base_offset + relative[:count],
            entries["position"].astype(np.int64)[:count],
            stamps[:time_count],
            segment.base_offset + time_relative[:time_count],
            missing=tuple(path for path, there in ((offset_path, has_offsets), (time_path, has_times)) if not there),
        )
        check._begun, check._ended = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        check._time_answered = np.zeros(time_count, np.bool_)
        check._limits = _limits_of(check.positions)
        check._by_position, check._by_offset = _SlotsByValue(check.positions), _SlotsByValue(check.offsets)
        check._by_time_offset = _SlotsByValue(check.time_offsets)
        check._is_doubtful = time_count == 1 and bool(empty[0])
        return check

    @property
    def entries(self) -> int:
        """Number of entries in both indices."""
        return len(self.offsets) + len(self.timestamps) - self._is_doubtful

    def batches_after(self, position: int) -> Iterator[tuple[int, int]]:
        """Yield byte position and last offset of the indexed batches after byte ``position``, by position. Those of an
        active segment may be stale."""
        later = self._by_position.above(position)
        yield from zip(self.positions[later].tolist(), self.offsets[later].tolist(), strict=True)

    def see(self, positions: IntegerArray, rows: IntegerArray) -> None:
        """Compare the entries with batches: ``rows`` of ``walk_batches``, and ``positions`` of the batches in the
        file."""
        if not len(rows):
            return
        last, base, largest = rows[:, at.LAST_OFFSET], rows[:, at.BASE_OFFSET], rows[:, at.MAX_TIMESTAMP]
        here = self._by_position.between(positions[0], positions[-1])
        batch = _find(positions, self.positions[here])
        self._begun[here] = positions[batch] == self.positions[here]
        here = self._by_offset.between(last[0], last[-1])
        batch = _find(last, self.offsets[here])
        within = (self.positions[here] <= positions[batch]) & (positions[batch] < self._limits[here])
        self._ended[here] = within & (last[batch] == self.offsets[here])
        here = self._by_time_offset.between(base[0], last[-1])
        wanted = self.time_offsets[here]
        batch = _find(last, wanted)
        self._time_answered[here] = (base[batch] <= wanted) & (largest[batch] == self.timestamps[here])

    def finish(self, largest_timestamp: int, *, is_final: bool, is_whole: bool) -> None:
        """Finish the check after the walk. ``is_final``: a roll has cut the indices to their entries. With damage
        (``is_whole`` false) an entry without its batch is not a fault."""
        if self._is_doubtful:
            self._is_doubtful = False
            self._keep_times(int(self._time_answered[0]))
        if not is_final:
            self._keep_offsets(_count_live(self._begun & self._ended, self._offset_falls()))
            self._keep_times(_count_live(self._time_answered, self._time_falls()))
        self._check_order()
        if is_whole:
            for slot in np.flatnonzero(~(self._begun & self._ended)).tolist():
                self._add_fault(self.offset_path, slot, self._fault_of(slot))
            for slot in np.flatnonzero(~self._time_answered).tolist():
                timestamp, offset = int(self.timestamps[slot]), int(self.time_offsets[slot])
                self._add_fault(self.time_path, slot, f"no batch of timestamp {timestamp} holds offset {offset}")
        last = int(self.timestamps[-1]) if len(self.timestamps) else -1
        if is_final and is_whole and not self.missing and last != largest_timestamp:
            self._add_fault(self.time_path, -1, f"ends with timestamp {last}, the largest is {largest_timestamp}")

    def _keep_offsets(self, count: int) -> None:
        """Drop the entries of the offset index after the first ``count``."""
        self.offsets, self.positions = self.offsets[:count], self.positions[:count]
        self._begun, self._ended = self._begun[:count], self._ended[:count]

    def _keep_times(self, count: int) -> None:
        """Drop the entries of the time index after the first ``count``."""
        self.timestamps, self.time_offsets = self.timestamps[:count], self.time_offsets[:count]
        self._time_answered = self._time_answered[:count]

    def _offset_falls(self) -> IntegerArray:
        """Find the slots of the offset index that do not ascend."""
        return np.flatnonzero((np.diff(self.offsets) <= 0) | (np.diff(self.positions) <= 0)) + 1

    def _time_falls(self) -> IntegerArray:
        """Find the slots of the time index that do not ascend."""
        return np.flatnonzero((np.diff(self.timestamps) <= 0) | (np.diff(self.time_offsets) < 0)) + 1

    def _fault_of(self, slot: int) -> str:
        offset, position = int(self.offsets[slot]), int(self.positions[slot])
        if not self._begun[slot]:
            return f"no batch begins at byte {position}"
        return f"no batch from byte {position} up to the next entry's has the last offset {offset}"

    def _check_order(self) -> None:
        for slot in self._offset_falls().tolist():
            self._add_fault(
                self.offset_path, slot, f"offset {self.offsets[slot]} does not follow {self.offsets[slot - 1]}"
            )
        for slot in self._time_falls().tolist():
            before, after = int(self.timestamps[slot - 1]), int(self.timestamps[slot])
            self._add_fault(self.time_path, slot, f"timestamp {after} does not follow {before}")

    def _add_fault(self, path: str, slot: int, message: str) -> None:
        self.fault_count += 1
        if len(self.faults) < _MAX_FAULTS:
            self.faults.append(IndexFault(path, slot, message))


def _read(path: str, entry: np.dtype[Any]) -> tuple[np.ndarray[Any, Any], bool]:
    """Read the whole entries of a file; the second value is false when the file is missing."""
    try:
        with OpenSegment(path) as file:
            data = file.read_at(0, file.size)
    except FileNotFoundError:
        return np.zeros(0, entry), False
    return np.frombuffer(data, entry, len(data) // entry.itemsize), True


def _limits_of(positions: IntegerArray) -> IntegerArray:
    """Return for each entry the byte before which the last batch of its append begins: the next entry's position if
    that is larger, otherwise no limit."""
    limits = np.full(len(positions), np.iinfo(np.int64).max)
    limits[:-1] = np.where(positions[1:] > positions[:-1], positions[1:], limits[:-1])
    return limits


def _find(column: IntegerArray, wanted: IntegerArray) -> IntegerArray:
    """Find the first batch whose value is at least the wanted one, or the last batch."""
    return np.minimum(np.searchsorted(column, wanted), len(column) - 1)


def _count_live(right: BoolArray, falls: IntegerArray) -> int:
    """Count the entries up to the last right one before the first that does not ascend."""
    found = np.flatnonzero(right[: int(falls[0])] if len(falls) else right)
    return int(found[-1]) + 1 if len(found) else 0


def _count_entries(empty: BoolArray) -> int:
    """Count the entries before the zeros at the end. In an offset index no entry has position 0: a segment's first
    batch gets no entry."""
    return int(empty.argmax()) if empty.any() else len(empty)
