"""The plan of one segment: which bytes hold a range of its offsets, cut at batches into slices of a wanted size.

A position from the offset index is used only when a batch that fits the entry begins there: the index of an active
segment may have stale entries. For the same reason its time index says only how far it is worth looking: the batch
headers up to there say which records are too early. A slice begins at a batch at or before its first record and ends at
one after its last, or at the end of the file. So slices of adjacent offset ranges may share bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.log.segment.batch_scan import BatchHeader
from tidelog.pipeline.errors import CorruptBatchError
from tidelog.pipeline.files.batch_walk import headers
from tidelog.pipeline.files.segment_files import SegmentFile
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.files.sparse_index import SparseIndex, batch_at, offset_index, position_at_or_before, time_index
from tidelog.pipeline.plan.rows import OffsetRange, ReadRequest, SegmentSlice
from tidelog.protocol.record.record_batch import MAGIC_V2

#: How many entries are tried, because an entry may be stale, before a search goes on without the index.
_END_CANDIDATES = 3


class SegmentPlan:
    """Plans one segment; open inside ``with``. One thread.

    Raises FileNotFoundError when the segment is gone, PipelineError when it cannot be opened.
    """

    def __init__(
        self,
        segment: SegmentFile,
        wanted: OffsetRange,
        request: ReadRequest,
        *,
        following: int | None,
        has_final_times: bool,
    ) -> None:
        """``following`` is the next segment's base offset; None for the active segment. ``has_final_times``: the result
        of ``sparse_index.has_final_times``, which matters only if the filter has a first time."""
        self._segment = segment
        self._has_final_times = has_final_times
        self._wanted = wanted
        self._request = request
        #: The next segment's base offset, or the start of a hole before that segment; None for the active segment.
        self.following = following
        self._file = OpenSegment(segment.path, request.count)
        self._index: SparseIndex = offset_index(segment, request.count)

    def __enter__(self) -> SegmentPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self._index.close()
        self._file.close()

    def slices(self, start: int, end: int) -> Iterator[SegmentSlice]:
        """Yield slices of the records from ``start`` to below ``end``; without the first ones if these are too early.

        Raises PipelineError.
        """
        start = self._first_in_time(start, end)
        if start >= end:
            return
        position, last = self._position_of(start), self._end_position(end)
        while position < last and start < end:
            cut = self._next_cut(position, last)
            following = end if cut is None else cut.base_offset
            upper = last if cut is None else cut.position
            if following > start:  # otherwise the cut lies before the first wanted record
                is_exact = following < end if cut is not None else end == self.following
                yield self._slice((position, upper), (start, min(following, end)), is_exact)
            position, start = upper, max(start, following)

    def end_of_batches(self, wanted: int) -> int | None:
        """Find the offset after the last batch by headers; the search stops at the first batch that ends at ``wanted``
        or above. None when the file does not end where a batch does."""
        position, end = 0, self._segment.base_offset
        for slot in range(self._index.entries - 1, max(-1, self._index.entries - 1 - _END_CANDIDATES), -1):
            if self._batch_at(slot) is not None:
                position = self._index.entry(slot).value
                break
        try:
            for header in headers(self._file, position, self._file.size):
                position, end = header.position + header.size, header.last_offset + 1
                if end >= wanted:
                    return end
        except CorruptBatchError:
            return None  # the reader of these bytes reports where
        return end if position == self._file.size else None

    def _slice(self, positions: tuple[int, int], offsets: tuple[int, int], is_exact: bool) -> SegmentSlice:
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
            inode=self._file.inode,
            ctime_ns=0 if self.following is None else self._file.ctime_ns,
            is_exact=is_exact,
        )

    def _first_in_time(self, start: int, end: int) -> int:
        """Find the first offset from ``start`` on whose record may be late enough for the time filter; ``end`` when no
        record below it is."""
        min_time = self._request.row_filter.min_time
        if min_time <= 0:  # times before 1970 (magic 0 has -1) are not in time indices
            return start
        times = time_index(self._segment, self._request.count)
        try:
            slot = times.floor(min_time - 1)
            if slot < 0:
                return start
            if self._has_final_times and slot == times.entries - 1:
                return end
            later = max(start, self._segment.base_offset + times.entry(slot).value + 1)
        finally:
            times.close()
        return later if self._has_final_times else self._pass_early(start, min(later, end), min_time)

    def _pass_early(self, start: int, end: int, min_time: int) -> int:
        """Pass the batches from ``start`` on whose headers show them to be earlier than ``min_time``; return the offset
        after them, at most ``end``."""
        position, passed = self._position_of(start), start
        with OpenSegment(self._segment.path, self._request.count) as file:
            file.expect(position, self._end_position(end))
            try:
                for header in headers(file, position, file.size):
                    if passed >= end or header.max_timestamp >= min_time:
                        break
                    passed = max(passed, header.last_offset + 1)
            except CorruptBatchError:
                pass  # the reader of these bytes reports where
        return min(passed, end)

    def _batch_at(self, slot: int) -> BatchHeader | None:
        return batch_at(self._file, self._index, slot, self._segment.base_offset)

    def _position_of(self, offset: int) -> int:
        """Find the byte of an indexed batch at or before the one that holds ``offset``."""
        return position_at_or_before(self._file, self._index, self._segment.base_offset, offset)

    def _end_position(self, end: int) -> int:
        """Find the byte of an indexed batch that begins at or above ``end``; the file's end when no tried entry points
        to one.
        """
        slot = self._index.floor(end - self._segment.base_offset) + 1
        for candidate in range(slot, min(slot + _END_CANDIDATES, self._index.entries)):
            header = self._batch_at(candidate)
            if header is not None and header.magic == MAGIC_V2 and header.base_offset >= end:
                return header.position
        return self._file.size

    def _next_cut(self, position: int, last: int) -> BatchHeader | None:
        """Find the header of the batch at which the slice from ``position`` should end; None when it goes to
        ``last``.
        """
        target = position + self._request.bytes_per_task
        if target >= last:
            return None
        slot = self._index.floor(target, by_value=True)
        for candidate in range(max(slot, 0), self._index.entries):
            if self._index.entry(candidate).value >= last:
                return None
            if self._index.entry(candidate).value > position:
                header = self._batch_at(candidate)
                if header is not None and header.magic == MAGIC_V2:
                    return header
        return self._next_cut_after_index(position, target, last)

    def _next_cut_after_index(self, position: int, target: int, last: int) -> BatchHeader | None:
        """Find the cut by walking over headers: after the last index entry, or in a copy without its index.

        A header whose offsets do not fit those of its neighbours is damaged: then there is no cut."""
        start = position
        if self._index.entries and self._batch_at(self._index.entries - 1) is not None:
            start = max(start, self._index.entry(self._index.entries - 1).value)
        found: BatchHeader | None = None
        before = -1
        try:
            for header in headers(self._file, start, last):
                if header.base_offset <= before or header.base_offset >= self._wanted.end:
                    return None  # damaged, or after the wanted offsets
                if header.position > position and header.magic == MAGIC_V2:
                    if found is not None and header.position > target:
                        break
                    found = header
                before = header.last_offset
        except CorruptBatchError:
            return None  # the reader of these bytes reports where
        return found
