"""The values of a plan: the request, and the rows of its answer. All can be pickled; imports are light."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.pipeline.files.segment_files import ReadCount
from tidelog.pipeline.options.options import DEFAULT_BYTES_PER_TASK
from tidelog.pipeline.options.row_filter import RowFilter
from tidelog.pipeline.plan.selection import PartitionDirectory


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """Records of ``producer_id`` from ``first_offset`` to below ``last_offset`` (its marker) were never committed."""

    producer_id: int
    first_offset: int
    last_offset: int


class LostRange(NamedTuple):
    """Offsets of a partition from ``start`` to below ``end`` that are in no file, and that no cleaner took out."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """One plan row: bytes ``start_position`` to ``end_position`` of a segment, of which the records from
    ``start_offset`` (inclusive) to ``end_offset`` (exclusive) are meant. ``inode`` is the file's when it was planned, 0
    when unknown, ``changed_ns`` its time of change (``st_ctime_ns``), 0 for the active segment, which only grows.
    ``is_exact`` says that every batch between the positions begins below ``end_offset``: one that claims not to is
    damaged."""

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
    changed_ns: int = 0
    is_exact: bool = False

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
    """A query resolved to offsets. ``count`` takes the bytes that planning reads, ``lost`` the ranges that
    planning finds missing when that is no error; without ``looks_for_holes`` it looks for none between segments."""

    ranges: tuple[OffsetRange, ...]
    bytes_per_task: int = DEFAULT_BYTES_PER_TASK
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    row_filter: RowFilter = field(default_factory=RowFilter)
    count: ReadCount = field(default_factory=ReadCount)
    looks_for_holes: bool = True
    lost: list[LostRange] = field(default_factory=list)
