"""The first offset at or after a time, from files alone, equal to the answer of ListOffsets.

Timestamps are as producers sent them, in any order: the answer is the first *offset* whose timestamp is large enough.
A closed segment whose time index ends below the time is skipped. Within a segment the time index says from which offset
on to search, and batch headers say which batch to decode.
"""

from __future__ import annotations

from contextlib import closing

from tidelog.log.segment.batch_scan import BatchHeader
from tidelog.pipeline.errors import CorruptBatchError, PipelineError
from tidelog.pipeline.files.batch_walk import header_at, headers
from tidelog.pipeline.files.segment_files import OpenSegment, ReadCount, SegmentFile, list_segments
from tidelog.pipeline.files.sparse_index import IndexEntry, SparseIndex, offset_index, time_index
from tidelog.pipeline.plan.selection import PartitionDirectory
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.record.record_batch import iter_batches

#: How often a look-up is repeated because the cleaner or retention removed its files.
ATTEMPTS = 5


def first_offset_at_or_after(
    directory: PartitionDirectory, timestamp: int, start: int, end: int, count: ReadCount | None = None
) -> int | None:
    """Find the first offset in [``start``, ``end``) of a record at or after ``timestamp`` (ms); None when there is
    none.

    Raises PipelineError, CorruptBatchError.
    """
    for _ in range(ATTEMPTS):
        try:
            segments = list_segments(directory.path)
            for number, segment in enumerate(segments):
                is_closed = number + 1 < len(segments)
                if segment.base_offset >= end or (is_closed and segments[number + 1].base_offset <= start):
                    continue
                if is_closed and (largest_timestamp(segment, count) or timestamp) < timestamp:
                    continue
                found = _find(segment, timestamp, (start, end), count, is_closed=is_closed)
                if found is not None:
                    return found
        except FileNotFoundError:
            continue
        return None
    raise PipelineError(f"{directory.path}: its segments were deleted faster than they could be read")


def largest_timestamp(segment: SegmentFile, count: ReadCount | None = None) -> int | None:
    """Read the largest timestamp of a closed segment in ms from its time index; None if that has no entries."""
    index = time_index(segment, count)
    try:
        return index.entry(index.entries - 1).key if index.entries else None
    finally:
        index.close()


def _find(
    segment: SegmentFile, timestamp: int, bounds: tuple[int, int], count: ReadCount | None, *, is_closed: bool
) -> int | None:
    with (
        OpenSegment(segment.path, count) as file,
        closing(time_index(segment, count)) as times,
        closing(offset_index(segment, count)) as offsets,
    ):
        slot = find_earlier(segment, file, (times, offsets), timestamp, is_closed=is_closed)
        earlier = times.entry(slot).value if slot >= 0 else 0
        position = find_indexed_batch(segment, file, offsets, max(earlier, bounds[0] - segment.base_offset, 0))
        for header in headers(file, position, file.size):
            if header.magic == 2 and header.base_offset >= bounds[1]:
                return None
            if header.max_timestamp >= timestamp and header.last_offset >= bounds[0]:
                found = _find_in_batch(file, header, timestamp, bounds)
                if found is not None:
                    return found
    return None


def find_earlier(
    segment: SegmentFile,
    file: OpenSegment,
    indices: tuple[SparseIndex, SparseIndex],
    timestamp: int,
    *,
    is_closed: bool,
) -> int:
    """Find the last slot of the time index (``indices`` are that and the offset index) up to whose offset all records
    are earlier than ``timestamp``; -1 when there is none.

    After a truncation the index of an active segment has entries of records that are gone: an entry of such a segment
    is used only if the batch at its offset has its timestamp.
    """
    times, offsets = indices
    slot = times.floor(timestamp - 1)
    while slot >= 0 and not is_closed:
        entry = times.entry(slot)
        if entry.key < timestamp and _is_current(segment, file, offsets, entry):
            break
        slot -= 1
    return slot


def _is_current(segment: SegmentFile, file: OpenSegment, offsets: SparseIndex, entry: IndexEntry) -> bool:
    """Return whether the batch at the offset of a time index entry has the entry's timestamp."""
    offset = segment.base_offset + entry.value
    try:
        for header in headers(file, find_indexed_batch(segment, file, offsets, entry.value), file.size):
            if header.last_offset >= offset:
                return header.base_offset <= offset and header.max_timestamp == entry.key
    except CorruptBatchError:
        pass  # the reader of these bytes reports where
    return False


def find_indexed_batch(segment: SegmentFile, file: OpenSegment, offsets: SparseIndex, relative: int) -> int:
    """Find the byte of an indexed batch at or before a relative offset, or the first byte. A stale entry of the offset
    index is not used."""
    for slot in range(offsets.floor(relative), -1, -1):
        entry = offsets.entry(slot)
        try:
            header = header_at(file, entry.value)
        except CorruptBatchError:
            continue
        if header is not None and segment.base_offset <= header.base_offset <= segment.base_offset + entry.key:
            return entry.value
    return 0


def _find_in_batch(file: OpenSegment, header: BatchHeader, timestamp: int, bounds: tuple[int, int]) -> int | None:
    try:
        for batch in iter_batches(file.read_at(header.position, header.size)):
            batch.ensure_valid()
            if batch.is_control:
                return None
            for record in batch.records():
                if record.timestamp >= timestamp and bounds[0] <= record.offset < bounds[1]:
                    return record.offset
    except KafkaError as error:
        raise CorruptBatchError(file.path, header.position, header.base_offset, str(error)) from error
    return None
