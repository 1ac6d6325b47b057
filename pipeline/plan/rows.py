"""Values of a read plan: its request, and the slices of segments that tasks read.

All can be pickled, and the module is cheap to import.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.pipeline.files.read_count import ReadCount
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
    """Offsets of a partition from ``start`` to below ``end`` that no file has, although no cleaner removed them."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """One row of a plan: bytes ``start_position`` to ``end_position`` of a segment file.

    A task reads the records from ``start_offset`` (inclusive) to ``end_offset`` (exclusive) in them. ``inode`` is the
    file's at planning, 0 when unknown. ``ctime_ns`` is its ``st_ctime_ns``, 0 for the active segment, which only
    grows. ``is_exact``: every batch of these bytes should begin below ``end_offset``; one that does not is damaged.
    """

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
    ctime_ns: int = 0
    is_exact: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes that a task reads for this slice."""
        return self.end_position - self.start_position


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one partition from ``start`` (inclusive) to ``end`` (exclusive), within the log's bounds."""

    directory: PartitionDirectory
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A query resolved to offsets.

    Planning adds the bytes that it reads to ``count``. It adds ranges that are missing to ``lost``, unless
    ``fail_on_data_loss`` makes them an error. With ``looks_for_holes`` it also finds missing ranges between segments.
    """

    ranges: tuple[OffsetRange, ...]
    bytes_per_task: int = DEFAULT_BYTES_PER_TASK
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    row_filter: RowFilter = field(default_factory=RowFilter)
    count: ReadCount = field(default_factory=ReadCount)
    looks_for_holes: bool = True
    lost: list[LostRange] = field(default_factory=list)
