"""The ``.index`` and ``.timeindex`` of a segment, read by another process than the broker that writes them.

Such a reader meets two things that the broker does not. The file of an active segment's index may have zeros after its
entries: the first zeros end the index. After a truncation, stale entries, those of removed records, may stand between
the valid ones and the zeros: the broker keeps in memory how many entries count, and its files do not say it. Newer
entries before the stale ones may be greater, so the order of entries proves nothing either. What proves an entry:

    offset index   a batch that fits the entry begins at its position
    time index     the roll of its segment, which cuts the file to its entries; before that, only batch headers: an
                   entry's timestamp is the greatest of all batches up to its offset

Look-ups are binary searches over reads of 4 KiB: a plan reads a few pages of an index, not all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from tidelog.log.segment.batch_scan import BatchHeader
from tidelog.pipeline.errors import CorruptBatchError
from tidelog.pipeline.files.batch_walk import header_at
from tidelog.pipeline.files.read_count import ReadCount
from tidelog.pipeline.files.segment_files import SegmentFile
from tidelog.pipeline.files.sources import OpenSegment

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
        """Count the entries before the zeros.

        An offset index has no entry of two zeros. A time index has one if time 0 at the base offset is its first entry;
        an index with that entry alone counts as empty.
        """
        low, high = 0, slots
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle) == (0, 0):
                high = middle
            else:
                low = middle + 1
        return low

    def floor(self, target: int, *, by_value: bool = False) -> int:
        """Find the last slot whose key (or value) is <= ``target``; -1 when there is none.

        Keys and values ascend, unless there are stale entries: then the result is some slot whose key (or value) is <=
        ``target``, or -1.
        """
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
    """Open the offset index: relative last offset of a batch -> byte position of that batch.

    An entry of Apache Kafka may be for an append of several batches: its last offset -> position of its first batch.
    """
    return SparseIndex(file.sibling(".index"), _OFFSET_ENTRY, count)


def time_index(file: SegmentFile, count: ReadCount | None = None) -> SparseIndex:
    """Open the time index: largest timestamp so far in ms -> relative offset up to which no record is later."""
    return SparseIndex(file.sibling(".timeindex"), _TIME_ENTRY, count)


def has_final_times(segments: Sequence[SegmentFile], number: int, count: ReadCount | None = None) -> bool:
    """Return whether the time index of ``segments[number]`` is final: a roll added its last entry and cut the file.

    A roll creates the next segment first. Until the next segment has a batch, the roll may be under way, or was never
    finished. Raises FileNotFoundError, PipelineError.
    """
    if number + 2 != len(segments):
        return number + 2 < len(segments)
    with OpenSegment(segments[-1].path, count) as following:
        return following.size > 0


def batch_at(file: OpenSegment, index: SparseIndex, slot: int, base_offset: int) -> BatchHeader | None:
    """Read the header of the batch that an entry of an offset index points to; None when no batch that fits the entry
    begins there."""
    entry = index.entry(slot)
    if entry.value < 0:
        return None
    try:
        header = header_at(file, entry.value)
    except CorruptBatchError:
        return None
    return header if header is not None and base_offset <= header.base_offset <= base_offset + entry.key else None


def position_at_or_before(file: OpenSegment, index: SparseIndex, base_offset: int, offset: int) -> int:
    """Find the byte of an indexed batch that begins at or before ``offset``; 0 when none does."""
    for slot in range(index.floor(offset - base_offset), -1, -1):
        header = batch_at(file, index, slot, base_offset)
        if header is not None and header.base_offset <= offset:
            return header.position
    return 0


def indexed_batches(file: SegmentFile, position: int, count: ReadCount | None = None) -> Iterator[tuple[int, int]]:
    """Yield byte position and last offset of each entry of the offset index after byte ``position``, in order.

    Entries may be stale: the caller checks what begins there.
    """
    index = offset_index(file, count)
    try:
        for slot in range(index.floor(position, by_value=True) + 1, index.entries):
            entry = index.entry(slot)
            if entry.value > position:
                yield entry.value, file.base_offset + entry.key
    finally:
        index.close()
