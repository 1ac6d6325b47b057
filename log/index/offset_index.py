"""The offset index (``.index``): offset -> byte position, one entry per ``index.interval.bytes`` of records.

Entry, 8 bytes big-endian: ``relative offset 4 | position 4``. The offset is the *last* of the batch that begins at
``position``, relative to the segment's base offset. Both strictly grow. Apache Kafka's entry may have the last offset
of a whole append, of several batches. The first batch of a segment has no entry, so no entry written here has relative
offset 0. A first entry that has relative offset 0 is accepted, as in Kafka.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from tidelog.log.index.abstract_index import AbstractIndex, floor_slot
from tidelog.protocol.errors import KafkaStorageError

_KEY = Struct(">i")
MAX_RELATIVE_OFFSET = 2**31 - 1


class OffsetPosition(NamedTuple):
    """A log offset and the byte at which its batch begins."""

    offset: int
    position: int


class OffsetIndex(AbstractIndex):
    """Index from offset to byte position."""

    ENTRY = Struct(">ii")

    __slots__ = ()

    @property
    def last_offset(self) -> int:
        """The offset of the last entry; the base offset when there is none."""
        last = self._last
        if last is not None:
            return self.base_offset + last[0]
        entries = self.entries
        return self.entry(entries - 1).offset if entries else self.base_offset

    def entry(self, slot: int) -> OffsetPosition:
        """Read the entry at ``slot``. Raises IndexError, KafkaStorageError."""
        relative, position = self._entry_at(slot)
        return OffsetPosition(self.base_offset + relative, position)

    def _entry_of(self, data: bytes) -> OffsetPosition:
        relative, position = self.ENTRY.unpack(data)
        return OffsetPosition(self.base_offset + relative, position)

    def lookup(self, offset: int) -> OffsetPosition:
        """Find the last entry at or below ``offset``; (base offset, 0) when there is none. Any thread.

        Raises KafkaStorageError.
        """
        entries, read = self.slots()
        slot = floor_slot(read, _KEY, 0, 8, entries, offset - self.base_offset)
        return self._entry_of(read(slot, 1)) if slot >= 0 else OffsetPosition(self.base_offset, 0)

    def floor_position(self, position: int) -> int:
        """Find the last position in the index that is <= ``position``; 0 when there is none. A batch begins there."""
        entries, read = self.slots()
        slot = floor_slot(read, _KEY, 4, 8, entries, position)
        return self._entry_of(read(slot, 1)).position if slot >= 0 else 0

    def upper_bound_offset(self, position: int) -> int | None:
        """Find the offset of the first entry whose batch begins at or after byte ``position``; None when there is
        none.
        """
        entries, read = self.slots()
        slot = floor_slot(read, _KEY, 4, 8, entries, position - 1) + 1
        return self._entry_of(read(slot, 1)).offset if slot < entries else None

    def append(self, offset: int, position: int) -> None:
        """Add an entry. Raises KafkaStorageError when full or out of order, or when the write fails."""
        relative, last = offset - self.base_offset, self._last
        entries = self.entries if last is None else self._entries
        if entries >= self.max_entries:
            raise KafkaStorageError(f"{self.path} is full with {entries} entries")
        is_next = relative > last[0] if last is not None else not entries or offset > self.last_offset
        if not is_next or not 0 <= relative <= MAX_RELATIVE_OFFSET:
            raise KafkaStorageError(f"offset {offset} does not follow {self.last_offset} in {self.path}")
        self._append_entry(entries, relative, position)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at and above ``offset``."""
        entries, read = self.slots()
        if entries:
            slot = floor_slot(read, _KEY, 0, 8, entries, offset - 1 - self.base_offset)
            self._truncate_to_entries(slot + 1)
