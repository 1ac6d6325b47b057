"""The check of a segment's offset and time index against its batches, during the audit's single walk over them.

    offset index   each entry has the byte at which a batch begins, and the batch's last offset; both ascend
    time index     each entry's offset lies in a batch whose largest timestamp is the entry's; timestamps ascend;
                   a closed segment's last entry is the segment's largest timestamp

Zeros after the entries, in a log that was not closed, are not a fault. An entry without a batch at the end of the walk
is a fault. Arrays are int64; one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidelog.pipeline.engine import reference as at
from tidelog.pipeline.engine.reference import IntegerArray
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


@dataclass(slots=True)
class IndexCheck:
    """The entries of one segment's indices, and for each whether a batch so far agrees with it (1) or not (-1)."""

    offset_path: str
    time_path: str
    offsets: IntegerArray
    positions: IntegerArray
    timestamps: IntegerArray
    time_offsets: IntegerArray
    faults: list[IndexFault] = field(default_factory=list)
    fault_count: int = 0
    missing: tuple[str, ...] = ()
    _answered: IntegerArray = field(default_factory=lambda: np.zeros(0, np.int64))
    _time_answered: IntegerArray = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def open(cls, segment: SegmentFile) -> IndexCheck:
        """Read both indices; ``missing`` has the paths of those that do not exist."""
        offset_path, time_path = segment.sibling(".index"), segment.sibling(".timeindex")
        entries, has_offsets = _read(offset_path, _OFFSET_ENTRY)
        relative = entries["relative"].astype(np.int64)
        count = _count_entries(entries["position"] == 0)
        times, has_times = _read(time_path, _TIME_ENTRY)
        time_relative, stamps = times["relative"].astype(np.int64), times["timestamp"].astype(np.int64)
        time_count = _count_entries((time_relative == 0) & (stamps == 0))
        check = cls(
            offset_path,
            time_path,
            segment.base_offset + relative[:count],
            entries["position"].astype(np.int64)[:count],
            stamps[:time_count],
            segment.base_offset + time_relative[:time_count],
            missing=tuple(path for path, there in ((offset_path, has_offsets), (time_path, has_times)) if not there),
        )
        check._answered, check._time_answered = np.zeros(count, np.int64), np.zeros(time_count, np.int64)
        check._check_order()
        return check

    @property
    def entries(self) -> int:
        """Number of entries in both indices."""
        return len(self.offsets) + len(self.timestamps)

    def batches_after(self, position: int) -> Iterator[tuple[int, int]]:
        """Yield byte position and last offset of the indexed batches after byte ``position``, in order."""
        later = int(np.searchsorted(self.positions, position, side="right"))
        yield from zip(self.positions[later:].tolist(), self.offsets[later:].tolist(), strict=True)

    def see(self, positions: IntegerArray, rows: IntegerArray) -> None:
        """Compare the entries with batches: ``rows`` of ``walk_batches``, and ``positions`` of the batches in the
        file."""
        if not len(rows):
            return
        last, base, largest = rows[:, at.LAST_OFFSET], rows[:, at.BASE_OFFSET], rows[:, at.MAX_TIMESTAMP]
        first, end = np.searchsorted(self.positions, (positions[0], positions[-1]), side="left")
        end += int(end < len(self.positions) and self.positions[end] == positions[-1])
        if end > first:
            batch = np.searchsorted(positions, self.positions[first:end])
            agrees = (positions[batch] == self.positions[first:end]) & (last[batch] == self.offsets[first:end])
            self._answered[first:end] = np.where(agrees, 1, -1)
        first = int(np.searchsorted(self.time_offsets, base[0], side="left"))
        end = int(np.searchsorted(self.time_offsets, last[-1], side="right"))
        if end > first:
            wanted = self.time_offsets[first:end]
            batch = np.searchsorted(last, wanted)
            agrees = (base[batch] <= wanted) & (largest[batch] == self.timestamps[first:end])
            self._time_answered[first:end] = np.where(agrees, 1, -1)

    def finish(self, largest_timestamp: int, *, is_closed: bool, is_whole: bool) -> None:
        """Finish the check after the walk. With damage (``is_whole`` false) an entry without its batch is not a
        fault."""
        if is_whole:
            for slot in np.flatnonzero(self._answered != 1).tolist():
                offset, position = int(self.offsets[slot]), int(self.positions[slot])
                self._add_fault(self.offset_path, slot, f"no batch with last offset {offset} begins at byte {position}")
            for slot in np.flatnonzero(self._time_answered != 1).tolist():
                timestamp, offset = int(self.timestamps[slot]), int(self.time_offsets[slot])
                self._add_fault(self.time_path, slot, f"no batch of timestamp {timestamp} holds offset {offset}")
        last = int(self.timestamps[-1]) if len(self.timestamps) else -1
        if is_closed and is_whole and not self.missing and last != largest_timestamp:
            self._add_fault(self.time_path, -1, f"ends with timestamp {last}, the largest is {largest_timestamp}")

    def _check_order(self) -> None:
        for slot in (np.flatnonzero((np.diff(self.offsets) <= 0) | (np.diff(self.positions) <= 0)) + 1).tolist():
            self._add_fault(
                self.offset_path, slot, f"offset {self.offsets[slot]} does not follow {self.offsets[slot - 1]}"
            )
        for slot in (np.flatnonzero((np.diff(self.timestamps) <= 0) | (np.diff(self.time_offsets) < 0)) + 1).tolist():
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


def _count_entries(empty: np.ndarray[Any, np.dtype[np.bool_]]) -> int:
    """Count the entries before the zeros at the end. A segment's first batch gets no entry, so no entry has position
    0."""
    return int(empty.argmax()) if empty.any() else len(empty)
