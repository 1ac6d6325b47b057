"""The first offset at or after a time, from files alone, equal to the answer of ListOffsets.

Timestamps are as producers sent them, in any order: the answer is the first *offset* whose timestamp is large enough.
A closed segment whose time index ends below the time is skipped. Within a closed segment the time index says from
which offset on to search, and batch headers say which batch to decode. The time index of the active segment may have
stale entries (of removed records), which only batch headers could disprove: so there all headers are searched, from the
range's first offset on.
"""

from __future__ import annotations

from tidelog.log.segment.batch_scan import BatchHeader
from tidelog.pipeline.errors import CorruptBatchError, PipelineError
from tidelog.pipeline.files.batch_walk import headers
from tidelog.pipeline.files.read_count import ReadCount
from tidelog.pipeline.files.segment_files import SegmentFile, list_segments
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.files.sparse_index import has_final_times, offset_index, position_at_or_before, time_index
from tidelog.pipeline.plan.selection import PartitionDirectory
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.record.batches import iter_batches

#: How often an offset is looked up at most: again if the cleaner or retention removed files meanwhile.
ATTEMPTS = 5


def first_offset_at_or_after(
    directory: PartitionDirectory, timestamp: int, start: int, end: int, count: ReadCount | None = None
) -> int | None:
    """Find the first offset in [``start``, ``end``) of a record at or after ``timestamp`` (ms); None when there is
    none. The marker of a transaction counts, too, as in Kafka's answer.

    Raises PipelineError, CorruptBatchError.
    """
    for _ in range(ATTEMPTS):
        try:
            segments = list_segments(directory.path)
            for number, segment in enumerate(segments):
                has_next = number + 1 < len(segments)
                if segment.base_offset >= end or (has_next and segments[number + 1].base_offset <= start):
                    continue
                is_final = has_final_times(segments, number, count)
                if is_final and (largest_timestamp(segment, count) or timestamp) < timestamp:
                    continue
                early = _early_offset(segment, timestamp, count) if is_final else segment.base_offset
                found = _find(segment, timestamp, (max(start, early), end), count, reads_ahead=not is_final)
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


def _early_offset(segment: SegmentFile, timestamp: int, count: ReadCount | None) -> int:
    """Find an offset of a closed segment below which no record is at or after ``timestamp``, by the time index."""
    index = time_index(segment, count)
    try:
        slot = index.floor(timestamp - 1)
        return segment.base_offset + (index.entry(slot).value if slot >= 0 else 0)
    finally:
        index.close()


def _find(
    segment: SegmentFile, timestamp: int, bounds: tuple[int, int], count: ReadCount | None, *, reads_ahead: bool
) -> int | None:
    """Find the offset in one segment. ``reads_ahead``: all bytes up to its end are fetched ahead from an object store,
    since all its headers are searched."""
    with OpenSegment(segment.path, count) as file:
        position = _position(segment, file, bounds[0], count)
        if reads_ahead:
            file.expect(position, file.size)
        for header in headers(file, position, file.size):
            if header.magic == 2 and header.base_offset >= bounds[1]:
                return None
            if header.max_timestamp >= timestamp and header.last_offset >= bounds[0]:
                found = _find_in_batch(file, header, timestamp, bounds)
                if found is not None:
                    return found
    return None


def _position(segment: SegmentFile, file: OpenSegment, offset: int, count: ReadCount | None) -> int:
    index = offset_index(segment, count)
    try:
        return position_at_or_before(file, index, segment.base_offset, offset)
    finally:
        index.close()


def _find_in_batch(file: OpenSegment, header: BatchHeader, timestamp: int, bounds: tuple[int, int]) -> int | None:
    try:
        for batch in iter_batches(file.read_at(header.position, header.size)):
            batch.ensure_valid()
            for record in batch.records():
                if record.timestamp >= timestamp and bounds[0] <= record.offset < bounds[1]:
                    return record.offset
    except KafkaError as error:
        raise CorruptBatchError(file.path, header.position, header.base_offset, str(error)) from error
    return None
