"""The time index (``.timeindex``): the largest timestamp seen so far -> the last offset of the batch that has it.

Entry, 12 bytes big-endian: ``timestamp 8 | relative offset 4``: every record at or before the offset in this segment
has a timestamp <= the entry's. Timestamps strictly grow, because only a new maximum makes an entry. The last entry of a
closed segment has the segment's largest timestamp. An entry's timestamp is at least 0 and at most 2^63 - 1.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from tidelog.log.index.abstract_index import AbstractIndex, floor_slot
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.record.record_batch import NO_TIMESTAMP

_KEY = Struct(">q")


class TimestampOffset(NamedTuple):
    """A timestamp in milliseconds, and the last offset of the batch that holds a record with it."""

    timestamp: int
    offset: int


class TimeIndex(AbstractIndex):
    """Index from timestamp to offset."""

    ENTRY = Struct(">qi")
    RESERVED_SLOTS = 1

    __slots__ = ()

    @property
    def last_entry(self) -> TimestampOffset:
        """The last entry; (-1, base offset) when there is none."""
        entries, read = self.slots()
        return self._entry_of(read(entries - 1, 1)) if entries else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def entry(self, slot: int) -> TimestampOffset:
        """Read the entry at ``slot``. Raises IndexError, KafkaStorageError."""
        timestamp, relative = self._entry_at(slot)
        return TimestampOffset(timestamp, self.base_offset + relative)

    def _entry_of(self, data: bytes) -> TimestampOffset:
        timestamp, relative = self.ENTRY.unpack(data)
        return TimestampOffset(timestamp, self.base_offset + relative)

    def lookup(self, timestamp: int) -> TimestampOffset:
        """Find the last entry with a timestamp <= ``timestamp``; (-1, base offset) when there is none. Any thread.

        Raises KafkaStorageError.
        """
        entries, read = self.slots()
        slot = floor_slot(read, _KEY, 0, 12, entries, timestamp)
        return self._entry_of(read(slot, 1)) if slot >= 0 else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def maybe_append(self, timestamp: int, offset: int, *, on_roll: bool = False) -> None:
        """Add an entry when ``timestamp`` is a new maximum. ``on_roll`` may use the reserved last slot.

        Raises KafkaStorageError when full, or when the write fails.
        """
        last = self._last
        if timestamp <= (last[0] if last is not None else self.last_entry.timestamp):
            return
        if self.is_full and not on_roll:
            raise KafkaStorageError(f"{self.path} is full with {self.entries} entries")
        self._append_entry(self.entries, timestamp, offset - self.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries whose offset is at or above ``offset``."""
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) >> 1
            if self.entry(middle).offset < offset:
                low = middle + 1
            else:
                high = middle
        self._truncate_to_entries(low)
