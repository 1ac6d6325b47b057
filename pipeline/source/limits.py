"""Limits of one trigger in rows, bytes and waiting time, from the options and Spark's read limit.

    ReadAllAvailable     all records up to the logs' ends (trigger once; no option set)
    ReadMaxRows(n)       n offsets; at least one of each partition with new records
    ReadMaxBytes(n)      n bytes of segments, cut at index entries (index.interval.bytes); at least one slice of each
                         partition with new records
    ReadMinRows(n)       nothing until n offsets wait, or maxTriggerDelay (15 min) has passed since a trigger last read

Spark passes one limit to a source, while Spark's Kafka source has a maximum and a minimum at once. So for any limit but
ReadAllAvailable all options apply, and the number from Spark replaces the option of its kind. Offsets are counted, not
rows: control batches, aborted and compacted records count too, as in Spark's Kafka source. Under AvailableNow a minimum
might never be reached and is ignored.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from tidelog.pipeline.errors import OptionError, PipelineError
from tidelog.pipeline.files.segment_files import list_segments
from tidelog.pipeline.options.options import SourceOptions
from tidelog.pipeline.plan.offsets import retry_on_deletion
from tidelog.pipeline.plan.plan import OffsetRange, ReadRequest, plan_range
from tidelog.pipeline.plan.selection import PartitionDirectory
from tidelog.pipeline.source.offsets import shares

DEFAULT_TRIGGER_DELAY_MS = 15 * 60 * 1000
_WHOLE_SEGMENT = 1 << 62


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """Limits of one trigger; None means unlimited."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = DEFAULT_TRIGGER_DELAY_MS

    @classmethod
    def of(cls, options: SourceOptions) -> TriggerLimits:
        """Return the limits that the options set. Raises OptionError when the minimum is above the maximum."""
        largest, smallest = options.max_offsets_per_trigger, options.min_offsets_per_trigger
        if largest is not None and smallest is not None and smallest > largest:
            raise OptionError(f"minOffsetsPerTrigger={smallest} is above maxOffsetsPerTrigger={largest}")
        delay_ms = options.max_trigger_delay_ms
        return cls(
            max_offsets=largest,
            max_bytes=options.max_bytes_per_trigger,
            min_offsets=smallest,
            max_delay_ms=DEFAULT_TRIGGER_DELAY_MS if delay_ms is None else delay_ms,
        )

    def default(self) -> ReadLimit:
        """Build the limit for Spark, which passes the same one back unless its trigger reads everything."""
        if self.max_offsets is not None:
            return ReadMaxRows(self.max_offsets)
        if self.max_bytes is not None:
            return ReadMaxBytes(self.max_bytes)
        if self.min_offsets is not None:
            return ReadMinRows(self.min_offsets)
        return ReadAllAvailable()

    def combine(self, limit: ReadLimit) -> TriggerLimits:
        """Combine these limits with the one that Spark passes. Raises PipelineError for another kind of limit, such as
        a number of files."""
        if isinstance(limit, ReadAllAvailable):
            return TriggerLimits()
        if isinstance(limit, ReadMaxRows):
            return replace(self, max_offsets=limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            return replace(self, max_bytes=limit.max_bytes)
        if isinstance(limit, ReadMinRows):
            return replace(self, min_offsets=limit.min_rows)
        raise PipelineError(f"read limit {type(limit).__name__}: expected rows or bytes")


class Patience:
    """Delays reading until enough offsets wait or enough time has passed. One thread."""

    def __init__(self) -> None:
        self._last_trigger_s: float | None = None

    def is_enough(self, limits: TriggerLimits, waiting: int) -> bool:
        """Return whether to read now; the first trigger always reads."""
        now, last = time.monotonic(), self._last_trigger_s
        is_short = limits.min_offsets is not None and waiting < limits.min_offsets
        if is_short and last is not None and (now - last) * 1000 < limits.max_delay_ms:
            return False
        self._last_trigger_s = now
        return True


Ranges = Mapping[PartitionDirectory, tuple[int, int]]


def limited_ends(ranges: Ranges, limits: TriggerLimits) -> dict[PartitionDirectory, int]:
    """Compute the end of each partition's (start, end) under the limits; ends never lie before starts. Raises
    PipelineError.
    """
    ends = {directory: max(start, end) for directory, (start, end) in ranges.items()}
    if limits.max_offsets is not None:
        waiting = {directory: ends[directory] - start for directory, (start, _) in ranges.items()}
        taken = shares(waiting, limits.max_offsets)
        ends = {directory: start + taken[directory] for directory, (start, _) in ranges.items()}
    if limits.max_bytes is not None:
        spans = {directory: (start, ends[directory]) for directory, (start, _) in ranges.items()}
        ends = _limited_by_bytes(spans, limits.max_bytes)
    return ends


def _limited_by_bytes(ranges: Ranges, limit: int) -> dict[PartitionDirectory, int]:
    waiting = {d: sum(size for size, _ in _steps(d, span, _WHOLE_SEGMENT)) for d, span in ranges.items()}
    taken = shares(waiting, limit)
    ends = {}
    for directory, span in ranges.items():
        share = taken[directory]
        ends[directory] = span[1] if share == waiting[directory] else _end_within(directory, span, share)
    return ends


def _end_within(directory: PartitionDirectory, span: tuple[int, int], share: int) -> int:
    """Find the end offset of the first ``share`` bytes of the span; at least one step."""
    reached, used = span[0], 0
    while reached < span[1]:
        size, end = next(iter(_steps(directory, (reached, span[1]), max(1, share - used))), (0, span[1]))
        if used and used + size > share:
            break
        reached, used = end, used + size
        if used >= share:
            break
    return reached


def _steps(directory: PartitionDirectory, span: tuple[int, int], bytes_per_step: int) -> list[tuple[int, int]]:
    """Return size in bytes and end offset of each slice of ``span``, cut at index entries.

    Only slices of the first segment with records of the span are returned, with ``_WHOLE_SEGMENT`` those of all
    segments.
    """
    is_empty = span[0] >= span[1]
    segments = [] if is_empty else retry_on_deletion(directory, lambda: list_segments(directory.path))
    steps: list[tuple[int, int]] = []
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else span[1]
        start, end = max(span[0], segment.base_offset), min(span[1], following)
        if start >= end:
            continue
        wanted = OffsetRange(directory, start, end)
        pieces = plan_range(wanted, ReadRequest((wanted,), bytes_per_task=bytes_per_step, looks_for_holes=False))
        steps += [(piece.size_bytes, piece.end_offset) for piece in pieces]
        if steps and bytes_per_step != _WHOLE_SEGMENT:
            break
    return steps
