"""The plan of a query: offset ranges become byte ranges of segments that begin and end at batches.

    range of offsets -> narrowed by the key index, when the query asks for one key
                     -> cut into parts of at most maxRecordsPerPartition offsets
                     -> the segments that hold it, without those too early for a time filter; offsets that are missing
                        between them are holes (``plan.holes``)
                     -> start and end byte by the offset index, cut every ``bytes_per_task`` bytes
                     -> if all ranges together have fewer tasks than minPartitions, cut further by offsets

A slice names the bytes to read and the offsets of their records. If the file is another one when the task runs
(the cleaner swapped it), the byte positions mean nothing and the task plans the offsets again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from tidelog.log.files.checkpoints import read_partition_metadata
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.pipeline.errors import DataLossError, PipelineError
from tidelog.pipeline.files.segment_files import SegmentFile, list_segments
from tidelog.pipeline.files.sparse_index import has_final_times
from tidelog.pipeline.files.storage import files_at, for_each, is_directory
from tidelog.pipeline.options.row_filter import RowFilter
from tidelog.pipeline.plan.holes import Hole, Holes
from tidelog.pipeline.plan.key_lookup import find_key
from tidelog.pipeline.plan.rows import LostRange, OffsetRange, ReadRequest, SegmentSlice
from tidelog.pipeline.plan.segments import SegmentPlan
from tidelog.pipeline.plan.selection import recreated_error
from tidelog.protocol.errors import KafkaStorageError

logger = logging.getLogger(__name__)

__all__ = [
    "OffsetRange", "ReadRequest", "RowFilter", "SegmentSlice", "group", "plan", "plan_range",
]  # fmt: skip

#: How often a range is planned at most: it is planned again if the cleaner or retention took files away meanwhile.
ATTEMPTS = 5
#: Limit of the spans of one key: to seek to more costs as much as to read the records between them.
MAX_KEY_SPANS = 1000


def plan(request: ReadRequest) -> list[SegmentSlice]:
    """Plan the slices of a query, in the order of its ranges and by offset. Raises PipelineError, DataLossError."""
    ranges = [part for wanted in request.ranges for part in _cut_to_limit(_narrow(wanted, request), request)]
    planned = for_each(ranges, lambda wanted: wanted.directory.path, lambda wanted: plan_range(wanted, request))
    slices = [piece for pieces in planned for piece in pieces]
    if request.min_partitions is None or len(group(slices, request)) >= request.min_partitions:
        return slices
    return _cut_by_offsets(slices, ranges, request)


def group(slices: Sequence[SegmentSlice], request: ReadRequest) -> list[tuple[SegmentSlice, ...]]:
    """Group slices by task: neighbours of one partition share a task up to the request's limits of bytes and offsets.
    With ``min_partitions`` each slice is a task."""
    tasks: list[list[SegmentSlice]] = []
    max_offsets = request.max_records_per_partition or 1 << 62
    for piece in slices:
        task = tasks[-1] if tasks else []
        belongs = bool(task) and (task[0].topic, task[0].partition) == (piece.topic, piece.partition)
        size = sum(other.size_bytes for other in task) + piece.size_bytes
        offsets = sum(other.end_offset - other.start_offset for other in task) + piece.end_offset - piece.start_offset
        if belongs and size <= request.bytes_per_task and offsets <= max_offsets and request.min_partitions is None:
            task.append(piece)
        else:
            tasks.append([piece])
    return [tuple(task) for task in tasks]


def plan_range(wanted: OffsetRange, request: ReadRequest) -> list[SegmentSlice]:
    """Plan the slices of one partition's range. Raises PipelineError, DataLossError, TopicRecreatedError."""
    if wanted.start >= wanted.end:
        return []
    for _ in range(ATTEMPTS):
        attempt = replace(request, lost=[])
        try:
            _ensure_same_topic(wanted)
            slices = _plan_files(wanted, attempt)
        except FileNotFoundError:
            if not is_directory(wanted.directory.path):
                break
        else:
            request.lost.extend(attempt.lost)
            return slices
    raise PipelineError(
        f"{wanted.directory.path} was deleted, or its segments were deleted faster than they could be listed"
    )


def _ensure_same_topic(wanted: OffsetRange) -> None:
    directory = wanted.directory
    try:
        topic_id = read_partition_metadata(files_at(directory.path), directory.path)
    except KafkaStorageError as error:
        raise PipelineError(f"{directory.path}: {error}") from error
    if directory.topic_id is not None and topic_id is not None and topic_id != directory.topic_id:
        raise recreated_error(directory.topic, directory.topic_id, topic_id)


def _plan_files(wanted: OffsetRange, request: ReadRequest) -> list[SegmentSlice]:
    segments = list_segments(wanted.directory.path)
    _report_missing_start(wanted, segments, request)
    slices: list[SegmentSlice] = []
    holes = _holes(wanted, request)
    for number, segment in enumerate(segments):
        following = segments[number + 1] if number + 1 < len(segments) else None
        if segment.base_offset >= wanted.end or (following is not None and following.base_offset <= wanted.start):
            continue
        upper = None if following is None else following.base_offset
        is_final = request.row_filter.min_time > 0 and has_final_times(segments, number, request.count)
        with SegmentPlan(segment, wanted, request, following=upper, has_final_times=is_final) as segment_plan:
            if following is not None and request.looks_for_holes:
                segment_plan.following = upper = _judge_hole_after(segment_plan, (segment, following), wanted, holes)
            lower = max(wanted.start, segment.base_offset)
            slices += segment_plan.slices(lower, wanted.end if upper is None else min(wanted.end, upper))
    return slices


def _holes(wanted: OffsetRange, request: ReadRequest) -> Holes:
    directory = wanted.directory
    return Holes(
        TopicPartition(directory.topic, directory.partition),
        directory.path,
        fail_on_data_loss=request.fail_on_data_loss,
        lost=request.lost,
        count=request.count,
    )


def _judge_hole_after(
    segment_plan: SegmentPlan, files: tuple[SegmentFile, SegmentFile], wanted: OffsetRange, holes: Holes
) -> int:
    """Judge the hole between two files. Return the hole's start, or the second file's base offset if no hole is
    found in the range. Raises PipelineError, DataLossError."""
    following = files[1].base_offset
    end = segment_plan.end_of_batches(min(following, wanted.end))
    if end is None or end >= following:
        return following
    start, first = max(end, wanted.start), min(following, wanted.end)
    if start >= first:
        return following
    holes.judge(Hole(start, first, *files))
    return end


def _report_missing_start(wanted: OffsetRange, segments: Sequence[SegmentFile], request: ReadRequest) -> None:
    """Record the wanted offsets before the first segment as lost. Raises DataLossError where that is an error."""
    end_of_hole = min(segments[0].base_offset, wanted.end) if segments else wanted.end
    if end_of_hole <= wanted.start:
        return
    lost = LostRange(wanted.directory.topic, wanted.directory.partition, wanted.start, end_of_hole)
    what = f"{lost.topic}-{lost.partition}: records from {lost.start} to {lost.end - 1} are gone"
    if request.fail_on_data_loss:
        why = f"the log begins at {segments[0].base_offset}" if segments else "the log has no segments"
        raise DataLossError(f"{what}, {why} (failOnDataLoss=false would go on with the existing records)")
    logger.warning("data loss: %s", what)
    request.lost.append(lost)


def _narrow(wanted: OffsetRange, request: ReadRequest) -> list[OffsetRange]:
    """Narrow a range to offsets that may have the key: those of the key index, and those it does not cover yet."""
    key = request.row_filter.key
    if key is None or wanted.start >= wanted.end:
        return [wanted]
    found = find_key(wanted.directory, key, wanted.start, wanted.end, request.count)
    if found is None:
        return [wanted]
    parts = [replace(wanted, start=low, end=high) for low, high in _spans(found.offsets)]
    rest = replace(wanted, start=max(wanted.start, found.indexed_to))
    return [*parts, rest] if rest.start < rest.end else parts


def _spans(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Return at most MAX_KEY_SPANS spans (first offset, offset after the last) that hold all of ``offsets``, which
    ascend. If these are many, spans hold other offsets, too."""
    gap = 0
    while True:
        spans: list[tuple[int, int]] = []
        for offset in offsets:
            if spans and offset - spans[-1][1] <= gap:
                spans[-1] = (spans[-1][0], offset + 1)
            else:
                spans.append((offset, offset + 1))
        if len(spans) <= MAX_KEY_SPANS:
            return spans
        gap = 2 * gap + 1


def _cut_to_limit(ranges: Sequence[OffsetRange], request: ReadRequest) -> list[OffsetRange]:
    """Cut ranges into parts of at most ``max_records_per_partition`` offsets."""
    limit = request.max_records_per_partition
    if limit is None:
        return list(ranges)
    return [part for wanted in ranges for part in _divide(wanted, -(-(wanted.end - wanted.start) // limit))]


def _divide(wanted: OffsetRange, parts: int) -> list[OffsetRange]:
    """Divide the range into ``parts`` of nearly equal numbers of offsets, at most one for each offset."""
    size = wanted.end - wanted.start
    parts = max(1, min(parts, size))
    bounds = [wanted.start + size * number // parts for number in range(parts + 1)]
    return [replace(wanted, start=low, end=high) for low, high in pairwise(bounds)]


def _cut_by_offsets(
    slices: Sequence[SegmentSlice], ranges: Sequence[OffsetRange], request: ReadRequest
) -> list[SegmentSlice]:
    """Cut slices until there are about ``min_partitions``, each in proportion to its offsets."""
    assert request.min_partitions is not None
    total = sum(piece.end_offset - piece.start_offset for piece in slices)
    by_partition = {(wanted.directory.topic, wanted.directory.partition): wanted for wanted in ranges}
    pieces: list[SegmentSlice] = []
    for piece in slices:
        offsets = piece.end_offset - piece.start_offset
        parts = -(-offsets * request.min_partitions // max(total, 1))
        wanted = by_partition[piece.topic, piece.partition]
        for part in _divide(replace(wanted, start=piece.start_offset, end=piece.end_offset), parts):
            pieces += plan_range(part, replace(request, bytes_per_task=1 << 62))
    return pieces
