"""The ``.index`` and ``.timeindex`` of a segment, read by another process than the broker that writes them.

Such a reader meets two things that the broker does not. The file of an active segment's index may have zeros after its
entries: the first of them ends the index. After a truncation, entries of records that are gone may still stand there:
so an entry is used only when a batch that fits it begins at its position. Look-ups are binary searches over reads of
4 KiB: a plan reads a few pages of an index, not all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from tidelog.pipeline.files.segment_files import OpenSegment, ReadCount, SegmentFile

_PAGE_BYTES = 4096
_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")


class IndexEntry(NamedTuple):
    """An entry of an offset index (relative offset, byte position) or a time index (timestamp in ms, relative
    offset)."""

    key: int
    value: int


class SparseIndex:
    """One open index file; its user closes it. A missing file is an index without entries. One thread."""

    def __init__(self, path: str, entry: Struct, count: ReadCount | None = None) -> None:
        self._entry = entry
        self._pages: dict[int, bytes] = {}
        try:
            self._file: OpenSegment | None = OpenSegment(path, count)
        except FileNotFoundError:
            self._file = None
        slots = self._file.size // entry.size if self._file else 0
        self.entries = self._count_entries(slots)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def entry(self, slot: int) -> IndexEntry:
        """Read the entry at ``slot``, which must be below the number of slots in the file."""
        size = self._entry.size
        return IndexEntry(*self._entry.unpack(self._bytes(slot * size, size)))

    def _bytes(self, position: int, size: int) -> bytes:
        first, last = position // _PAGE_BYTES, (position + size - 1) // _PAGE_BYTES
        data = b"".join(self._page(page) for page in range(first, last + 1))
        at = position - first * _PAGE_BYTES
        return data[at : at + size].ljust(size, b"\0")

    def _page(self, page: int) -> bytes:
        data = self._pages.get(page)
        if data is None:
            assert self._file is not None
            data = self._pages[page] = self._file.read_at(page * _PAGE_BYTES, _PAGE_BYTES)
        return data

    def _count_entries(self, slots: int) -> int:
        """Count the entries before the zeros: neither index has an entry of two zeros."""
        low, high = 0, slots
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle) == (0, 0):
                high = middle
            else:
                low = middle + 1
        return low

    def floor(self, target: int, *, by_value: bool = False) -> int:
        """Find the last slot whose key (or value) is <= ``target``; -1 when there is none. Keys and values ascend."""
        low, high = -1, self.entries - 1
        while low < high:
            middle = (low + high + 1) // 2
            entry = self.entry(middle)
            if (entry.value if by_value else entry.key) <= target:
                low = middle
            else:
                high = middle - 1
        return low


def offset_index(file: SegmentFile, count: ReadCount | None = None) -> SparseIndex:
    """Open the offset index: relative offset of a batch's last record -> byte position of the batch."""
    return SparseIndex(file.sibling(".index"), _OFFSET_ENTRY, count)


def time_index(file: SegmentFile, count: ReadCount | None = None) -> SparseIndex:
    """Open the time index: largest timestamp so far in ms -> relative offset up to which no record is later."""
    return SparseIndex(file.sibling(".timeindex"), _TIME_ENTRY, count)


def indexed_batches(file: SegmentFile, position: int, count: ReadCount | None = None) -> Iterator[tuple[int, int]]:
    """Yield byte position and last offset of each batch after byte ``position`` that the offset index names, in
    order.
    """
    index = offset_index(file, count)
    try:
        for slot in range(index.floor(position, by_value=True) + 1, index.entries):
            entry = index.entry(slot)
            if entry.value > position:
                yield entry.value, file.base_offset + entry.key
    finally:
        index.close()
