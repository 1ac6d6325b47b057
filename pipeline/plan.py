"""From offset ranges to tasks: byte ranges of segments that begin and end at batches.

    range of offsets -> the segments that hold it -> start and end byte by the offset index
                     -> cut at index positions, every ``bytes_per_task`` bytes

A slice says both: bytes (where to read) and offsets (what belongs to it). Should the file be another one when the task
runs (the cleaner swapped it), the bytes mean nothing any more and the task plans its offsets again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from log.batch_scan import BatchHeader
from pipeline.batch_walk import header_at
from pipeline.options import DEFAULT_BYTES_PER_TASK
from pipeline.segment_files import OpenSegment, ReadCount, SegmentFile, list_segments
from pipeline.selection import PartitionDirectory
from pipeline.sparse_index import SparseIndex, offset_index


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """Records of ``producer_id`` from ``first_offset`` to below ``last_offset`` (its marker) were never committed."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """One plan row: bytes ``start_position`` to ``end_position`` of a segment, of which the records from
    ``start_offset`` (inclusive) to ``end_offset`` (exclusive) are meant. ``inode`` is the file's when it was planned, 0
    when unknown; ``aborted`` are the transactions a read_committed reader must leave out."""

    topic: str
    topic_id: bytes | None
    partition: int
    path: str
    base_offset: int
    start_position: int
    end_position: int
    start_offset: int
    end_offset: int
    inode: int = 0
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes a task reads for it."""
        return self.end_position - self.start_position


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one partition from ``start`` (inclusive) to ``end`` (exclusive), within the log's bounds."""

    directory: PartitionDirectory
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What a query reads, resolved to offsets."""

    ranges: tuple[OffsetRange, ...]
    bytes_per_task: int = DEFAULT_BYTES_PER_TASK
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    read_committed: bool = False
    count: ReadCount = field(default_factory=ReadCount)


def plan(request: ReadRequest) -> list[SegmentSlice]:
    """The slices of a query, in order of topic, partition and offset. Raises PipelineError."""
    slices: list[SegmentSlice] = []
    for wanted in request.ranges:
        slices += plan_range(wanted, request)
    return slices


def plan_range(wanted: OffsetRange, request: ReadRequest) -> list[SegmentSlice]:
    """The slices of one partition's range."""
    if wanted.start >= wanted.end:
        return []
    segments = list_segments(wanted.directory.path)
    slices: list[SegmentSlice] = []
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else None
        if segment.base_offset < wanted.end and (following is None or following > wanted.start):
            upper = wanted.end if following is None else min(wanted.end, following)
            slices += _SegmentPlan(segment, wanted, request).slices(max(wanted.start, segment.base_offset), upper)
    return slices


class _SegmentPlan:
    def __init__(self, segment: SegmentFile, wanted: OffsetRange, request: ReadRequest) -> None:
        self._segment = segment
        self._wanted = wanted
        self._request = request

    def slices(self, start: int, end: int) -> Iterator[SegmentSlice]:
        """The slices of the segment's records from ``start`` to below ``end``."""
        count = self._request.count
        index = offset_index(self._segment, count)
        try:
            with OpenSegment(self._segment.path, count) as file:
                yield from self._cut(file, index, start, end)
        finally:
            index.close()

    def _cut(self, file: OpenSegment, index: SparseIndex, start: int, end: int) -> Iterator[SegmentSlice]:
        position = self._position_of(file, index, start)
        last = self._end_position(file, index, end)
        while position < last:
            cut = self._next_cut(file, index, position, last)
            following = end if cut is None else cut.base_offset
            upper = last if cut is None else cut.position
            if following > start:  # else the cut lies in front of the first record that is wanted
                yield self._slice(file, (position, upper), (start, following))
            position, start = upper, max(start, following)

    def _slice(self, file: OpenSegment, positions: Sequence[int], offsets: Sequence[int]) -> SegmentSlice:
        directory = self._wanted.directory
        return SegmentSlice(
            topic=directory.topic,
            topic_id=directory.topic_id,
            partition=directory.partition,
            path=self._segment.path,
            base_offset=self._segment.base_offset,
            start_position=positions[0],
            end_position=positions[1],
            start_offset=offsets[0],
            end_offset=offsets[1],
            inode=file.inode,
        )

    def _position_of(self, file: OpenSegment, index: SparseIndex, offset: int) -> int:
        """The byte of an indexed batch at or before the one that holds ``offset``."""
        for slot in range(index.floor(offset - self._segment.base_offset), -1, -1):
            position = index.entry(slot).value
            if _stands_at(file, position, self._segment.base_offset, index.entry(slot).key) is not None:
                return position
        return 0

    def _end_position(self, file: OpenSegment, index: SparseIndex, end: int) -> int:
        """The byte of the first indexed batch that lies wholly at or above ``end``; the file's end when none does."""
        slot = index.floor(end - self._segment.base_offset) + 1
        for candidate in range(slot, min(slot + 2, index.entries)):
            entry = index.entry(candidate)
            header = _stands_at(file, entry.value, self._segment.base_offset, entry.key)
            if header is not None and header.magic == 2 and header.base_offset >= end:
                return entry.value
        return file.size

    def _next_cut(self, file: OpenSegment, index: SparseIndex, position: int, last: int) -> BatchHeader | None:
        """The header of the batch at which the slice from ``position`` should end; None when it goes to ``last``."""
        target = position + self._request.bytes_per_task
        if target >= last:
            return None
        slot = index.floor(target, by_value=True)
        for candidate in range(max(slot, 0), index.entries):
            entry = index.entry(candidate)
            if entry.value >= last:
                return None
            if entry.value > position:
                header = _stands_at(file, entry.value, self._segment.base_offset, entry.key)
                if header is not None and header.magic == 2:
                    return header
        return None


def _stands_at(file: OpenSegment, position: int, base_offset: int, relative: int) -> BatchHeader | None:
    """The header at an index entry's position, when a batch that fits the entry does begin there."""
    from pipeline.errors import CorruptBatchError

    try:
        header = header_at(file, position)
    except CorruptBatchError:
        return None
    if header is None or not base_offset <= header.base_offset <= base_offset + relative:
        return None
    return header
