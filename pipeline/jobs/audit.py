"""The audit job: checks that logs on disk are complete and valid, and that an exported table has the log's records.

    driver     lists segments, the cleaner's progress and last stable offsets -> a task per segment
    workers    tidelog.pipeline.audit.segment: checksums, gaps, duplicates, indices, records per ten minutes
    driver     joins segments: offsets and producers' sequences across segment borders; sums

    with a table: a task per range of offsets (tidelog.pipeline.jobs.reports.audit_compare) runs
    tidelog.pipeline.audit.table, or tidelog.pipeline.audit.latest for a table of latest values; one task looks for
    rows outside of all ranges (tidelog.pipeline.jobs.reports.foreign_rows)

Nothing is changed and no lock is taken; a broker may serve meanwhile. An incomplete write at the active segment's end
is not a finding. Two audits of the same log have the same findings and counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tidelog.log.files.checkpoints import LEADER_EPOCH_FILE
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.pipeline.audit import buckets as audit_buckets
from tidelog.pipeline.audit.buckets import Buckets
from tidelog.pipeline.audit.files import FileFinding, check_small_files, known_ends
from tidelog.pipeline.audit.latest import compare_plan
from tidelog.pipeline.audit.producers import ProducerSpan, join
from tidelog.pipeline.audit.segment import Finding, Gap, SegmentAudit, SegmentPlan, audit_segment
from tidelog.pipeline.audit.table import Comparison
from tidelog.pipeline.audit.unrecorded import UnrecordedRows
from tidelog.pipeline.errors import CorruptBatchError, PipelineError
from tidelog.pipeline.export.manifest import Manifest, id_text
from tidelog.pipeline.files.segment_files import SegmentFile, list_segments
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.files.sparse_index import has_final_times
from tidelog.pipeline.job_errors import JobError
from tidelog.pipeline.jobs.progress import Progress
from tidelog.pipeline.jobs.reports.audit_compare import AuditedTable, compare_plans, open_table
from tidelog.pipeline.jobs.reports.foreign_rows import scan
from tidelog.pipeline.jobs.runner import Task, run_tasks
from tidelog.pipeline.jobs.source import LogSource
from tidelog.pipeline.plan.holes import checkpointed_below
from tidelog.pipeline.plan.log_watch import Partition
from tidelog.pipeline.plan.offsets import log_bounds
from tidelog.pipeline.plan.selection import PartitionDirectory
from tidelog.pipeline.plan.transactions.aborted import aborted_transactions
from tidelog.protocol.errors import KafkaStorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.pipeline.jobs.iceberg import IcebergTarget

#: How often a partition is audited when its segments change during the audit.
ATTEMPTS = 5
#: The counts of a segment's audit that are summed over segments.
SUMMED = (
    "bytes_read", "batches", "records", "control_batches", "aborted_records", "open_records", "corrupt_batches",
    "unreadable_bytes", "compacted_offsets", "lost_offsets", "damaged_offsets", "duplicate_batches", "index_entries",
    "index_faults",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """An audit's request. ``table``: an exported table to compare with; with ``iceberg`` its name in a catalog.
    ``records``: whether committed records are counted and hashed per ten minutes."""

    source: LogSource
    table: str | None = None
    records: bool = True
    iceberg: IcebergTarget | None = None


@dataclass(slots=True)
class PartitionAudit:
    """Audit result of one partition: its segments, and the faults between segments.

    ``buckets``: records per ten minutes. ``comparisons``: with an exported table. ``duplicates_between``: how often a
    producer's first batch in a segment repeats a batch of an earlier segment.
    """

    topic: str
    partition: int
    topic_id: str
    start: int
    end: int
    segments: list[SegmentAudit]
    findings: list[Finding] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    buckets: Buckets = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)
    duplicates_between: int = 0

    @property
    def name(self) -> str:
        """``topic-partition``."""
        return f"{self.topic}-{self.partition}"

    def total(self, name: str) -> int:
        """Return the total of a count in SUMMED over the segments, and over the gaps between them."""
        total: int = sum(getattr(segment, name) for segment in self.segments)
        if name in ("compacted_offsets", "lost_offsets", "damaged_offsets"):
            kind = name.removesuffix("_offsets")
            total += sum(gap.end - gap.start for gap in self.gaps if gap.kind == kind)
        return total + (self.duplicates_between if name == "duplicate_batches" else 0)

    @property
    def is_wrong(self) -> bool:
        """True when there is any fault; compaction and aborted transactions are not faults."""
        return (
            any(segment.finding_count for segment in self.segments)
            or bool(self.findings)
            or self.total("lost_offsets") > 0
            or any(not self.accepts(comparison) for comparison in self.comparisons)
        )

    def accepts(self, comparison: Comparison) -> bool:
        """Return whether table and log agree; rows that only the table has are not a fault if the log was compacted."""
        extra = comparison.extra and not self.total("compacted_offsets")
        return not (comparison.missing or comparison.different or comparison.twice or comparison.unreadable or extra)


@dataclass(slots=True)
class AuditResult:
    """The result of an audit. ``seconds``: how long it took.

    ``foreign``: files in the table's folders that its manifest does not list. ``unrecorded``: rows of the
    table that no export recorded. ``unread``: pairs of a table or file that could not be searched for such rows, and
    the reason.
    """

    partitions: list[PartitionAudit]
    table: str | None
    records: bool
    created_ms: int
    seconds: float
    foreign: tuple[str, ...] = ()
    unrecorded: tuple[UnrecordedRows, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()

    @property
    def is_wrong(self) -> bool:
        """Return whether a partition has a fault, or the table has foreign files or rows, or parts that could not be
        read."""
        return bool(self.foreign or self.unrecorded or self.unread) or any(
            partition.is_wrong for partition in self.partitions
        )

    def total(self, name: str) -> int:
        """Return the total of a count in SUMMED over all partitions."""
        return sum(partition.total(name) for partition in self.partitions)


def audit(spark: SparkSession | None, request: AuditRequest, progress: Progress | None = None) -> AuditResult:
    """Check every batch of the logs, and with ``request.table`` every row of an exported table.

    ``spark`` None does the work in this process, one segment after the other. Nothing is written or locked, and a
    broker may serve meanwhile. Faults are in the result (``AuditResult.is_wrong``) and never raise;
    ``audit_report.write_report`` makes pages and pictures of it. Raises PipelineError when a log cannot be read at all,
    or the table cannot be opened or has another topic of the name (TopicRecreatedError). Raises OSError when files of
    the table or of a log's directory cannot be read.
    """
    began, created = time.monotonic(), time.time_ns() // 1_000_000
    table = None if request.table is None else open_table(request.table, request.iceberg)
    progress = progress or Progress("audit", quiet=True)
    partitions, audits = _audit_logs(spark, request, progress)
    result = AuditResult(audits, request.table, request.records, created, 0.0)
    if table is not None:
        compared = list(zip(partitions, audits, strict=True))
        _compare(spark, request.source, compared, table, progress)
        _scan(spark, table, result, progress)
    result.seconds = time.monotonic() - began
    return result


def _audit_logs(
    spark: SparkSession | None, request: AuditRequest, progress: Progress
) -> tuple[list[Partition], list[PartitionAudit]]:
    """Audit every partition as of one moment: it is audited again if the broker replaced or removed segments meanwhile.

    Raises JobError when that happens ATTEMPTS times.
    """
    partitions = _bound_partitions(request.source)
    done: dict[tuple[str, int], PartitionAudit] = {}
    for _ in range(ATTEMPTS):
        waiting = [partition for partition in partitions if _key_of(partition) not in done]
        plans = [plan for partition in waiting for plan in segment_plans(partition, records=request.records)]
        tasks = [Task(f"segment {plan.segment.path}", plan.size, plan) for plan in plans]
        found = run_tasks(spark, tasks, audit_segment, progress)
        moved = {(plan.topic, plan.partition) for plan, audited in zip(plans, found, strict=True) if audited is None}
        segments = [audited for audited in found if audited is not None]
        done |= {_key_of(p): _join(p, segments) for p in waiting if _key_of(p) not in moved}
        if not moved:
            return partitions, [done[_key_of(partition)] for partition in partitions]
        again = {_key_of(partition): partition for partition in _bound_partitions(request.source)}
        partitions = [again.get(_key_of(partition), partition) for partition in partitions]
    names = ", ".join(f"{topic}-{number}" for topic, number in sorted(moved))
    raise JobError(f"{names}: segments were deleted faster than they could be audited; run the audit again")


def _key_of(partition: Partition) -> tuple[str, int]:
    return partition.directory.topic, partition.directory.partition


def _bound_partitions(source: LogSource) -> list[Partition]:
    """Find the partitions and their bounds; if damage hides open transactions, no transaction counts as open."""
    try:
        return source.partitions(accepts_damage=True)
    except CorruptBatchError:
        return replace(source, read_committed=False).partitions(accepts_damage=True)


# ---- the log


def segment_plans(partition: Partition, *, records: bool) -> list[SegmentPlan]:
    """Plan the audit of each segment of a partition. If a file is swapped or deleted meanwhile, the segments are listed
    again.

    Raises PipelineError, also when that happens ATTEMPTS times.
    """
    for _ in range(ATTEMPTS):
        try:
            return _plan_segments(partition, list_segments(partition.directory.path), records=records)
        except FileNotFoundError:
            continue
    raise PipelineError(
        f"{partition.directory.path} was deleted, or its segments were deleted faster than they could be listed"
    )


def _plan_segments(partition: Partition, segments: Sequence[SegmentFile], *, records: bool) -> list[SegmentPlan]:
    """Plan the audit of these segments of a partition. Raises FileNotFoundError when one is gone, PipelineError."""
    directory = partition.directory
    clean_below = _clean_below(directory.path, TopicPartition(directory.topic, directory.partition))
    indexed = _indexed_transactions(directory.path)
    plans = []
    for number, segment in enumerate(segments):
        with OpenSegment(segment.path) as file:
            size, inode, ctime_ns = file.size, file.inode, file.ctime_ns
        is_closed = number + 1 < len(segments)
        following = segments[number + 1].base_offset if is_closed else 2**63 - 1
        mine = tuple(entry for entry in indexed if entry[2] >= segment.base_offset and entry[1] < following)
        plans.append(
            SegmentPlan(
                directory.topic,
                directory.partition,
                segment,
                size,
                is_closed=is_closed,
                has_final_indices=is_closed and has_final_times(segments, number),
                inode=inode,
                ctime_ns=ctime_ns if is_closed else 0,
                clean_below=clean_below,
                stable_below=partition.bounds.last_stable,
                indexed=mine,
                records=records,
            )
        )
    return plans


def _clean_below(directory: str, partition: TopicPartition) -> int:
    """Return the offset up to which the cleaner has worked; 0 when it has not, or the checkpoint cannot be read."""
    try:
        return checkpointed_below(partition, directory)
    except KafkaStorageError:
        return 0


def _indexed_transactions(directory: str) -> list[tuple[int, int, int]]:
    """Read (producer id, first, last offset) of the aborted transactions from the index files; none when one is
    damaged, which its segment's audit reports. Raises FileNotFoundError.
    """
    try:
        found = aborted_transactions(directory, 0, 2**63 - 1)
    except PipelineError:
        return []
    return [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in found]


def _join(partition: Partition, segments: Iterable[SegmentAudit]) -> PartitionAudit:
    """Combine a partition's segments in order, and find the faults between segments."""
    directory, bounds = partition.directory, partition.bounds
    mine = [s for s in segments if (s.topic, s.partition) == (directory.topic, directory.partition)]
    mine.sort(key=lambda segment: segment.base_offset)
    found = PartitionAudit(
        directory.topic, directory.partition, id_text(directory.topic_id), bounds.start, bounds.end, mine
    )
    clean_below = _explain_gaps(mine, directory)
    expected, is_damaged = -1, False
    producers: dict[int, ProducerSpan] = {}
    for segment in mine:
        first = segment.base_offset
        if 0 <= expected < first:
            kind = "damaged" if is_damaged else "compacted" if first <= clean_below else "lost"
            found.gaps.append(Gap(expected, first, kind))
        elif first < expected:
            message = f"begins at offset {first}, the segment before ends at {expected - 1}"
            found.findings.append(Finding("order", segment.path, -1, first, message))
        expected, is_damaged = max(segment.next_offset, expected), segment.ends_damaged
        found.duplicates_between += _join_producers(producers, segment, found)
        audit_buckets.merge(found.buckets, segment.buckets)
    _check_files(partition, found)
    return found


def _check_files(partition: Partition, found: PartitionAudit) -> None:
    """Check the small files, and whether checkpoints show that segments are missing at the log's start or end."""
    directory = partition.directory
    topic_partition = TopicPartition(directory.topic, directory.partition)
    ends, faults = known_ends(directory.path, topic_partition)
    bases = [segment.base_offset for segment in found.segments]
    end = partition.bounds.end
    if ends.end > end:  # a live broker may have appended records and written the checkpoint since
        end = log_bounds(directory, accepts_damage=True).end
    faults += check_small_files(directory.path, bases, max(end, ends.end))
    if bases and 0 <= ends.start < bases[0]:
        found.gaps.insert(0, Gap(ends.start, bases[0], "lost"))
        path = os.path.join(directory.path, LEADER_EPOCH_FILE)
        faults.append(FileFinding(path, f"the log began at offset {ends.start}, its first segment at {bases[0]}"))
    if ends.end > end:
        found.gaps.append(Gap(end, ends.end, "lost"))
        faults.append(
            FileFinding(ends.end_file, f"{topic_partition} reached offset {ends.end}, its segments end at {end}")
        )
    found.findings += [Finding("file", fault.path, -1, -1, fault.message) for fault in faults]


def _explain_gaps(segments: list[SegmentAudit], directory: PartitionDirectory) -> int:
    """Find the offset that a cleaner has reached: by its checkpoint, read again, and by batches that only it writes.

    Lost gaps in segments that begin below this offset become compacted."""
    below = _clean_below(directory.path, TopicPartition(directory.topic, directory.partition))
    below = max([below, *(segment.marked_below for segment in segments)])
    for segment in segments:
        if segment.base_offset < below:
            segment.explain_gaps()
    return below


def _join_producers(producers: dict[int, ProducerSpan], segment: SegmentAudit, found: PartitionAudit) -> int:
    count = 0
    for producer_id, span in segment.producers.items():
        before = producers.get(producer_id)
        if before is not None and join(before, span):
            count += 1
            message = f"sequence {span.first_sequence} of producer {producer_id} is also in an earlier segment"
            found.findings.append(Finding("duplicate", segment.path, -1, segment.first_offset, message))
        producers[producer_id] = span
    return count


# ---- the table


def _compare(
    spark: SparkSession | None,
    source: LogSource,
    audits: list[tuple[Partition, PartitionAudit]],
    table: AuditedTable,
    progress: Progress,
) -> None:
    tasks, owners = [], []
    for partition, found in audits:
        if found.partition not in _list_exported(table.manifest, found.topic):
            message = f"{found.name} is not in the table {table.name}"
            found.findings.append(Finding("table", partition.directory.path, -1, -1, message))
        for plan in compare_plans(partition, table, source):
            tasks.append(Task(f"{found.name} offsets {plan.start} to {plan.end}", plan.size, plan))
            owners.append(found)
    progress.job = "compare"
    for found, comparison in zip(owners, run_tasks(spark, tasks, compare_plan, progress), strict=True):
        found.comparisons.append(comparison)


def _scan(spark: SparkSession | None, table: AuditedTable, result: AuditResult, progress: Progress) -> None:
    """Search the table for rows that no export recorded. A file that a comparison could not read either is not reported
    again."""
    progress.job = "foreign rows"
    (found,) = run_tasks(spark, [Task(f"all rows of {table.name}", table.scan.size, table.scan)], scan, progress)
    reported = [comparison.unreadable for audited in result.partitions for comparison in audited.comparisons]
    result.foreign = table.foreign
    result.unrecorded = tuple(found.unrecorded)
    result.unread = tuple(one for one in found.unread if not any(f"from {one[0]}: " in text for text in reported))


def _list_exported(manifest: Manifest, topic: str) -> Collection[int]:
    return manifest.topics[topic].partitions if topic in manifest.topics else ()
