"""The export job: committed records of topics to a table of Parquet files, run after run, each exactly once.

    manifest (offset vector, topic ids) -> new offsets of the log -> files of about ``file_bytes`` of the log each
    -> workers write them into staging -> a commit every so many files: the next version of the manifest, or nothing

The first run begins at the log start. A later one goes on where the newest version ends; a small last file grows, so
that small files do not add up: one rename gives its name to a file that begins with the same bytes. No two files of a
table hold one row, at any moment. Gaps of compaction and aborted transactions are
normal: a range of offsets may have fewer rows, or none. Refused, until the request allows it:

- a topic that was deleted and created again (its id is another one): ``restart_recreated`` begins with the new one, the
  rows of the old one stay;
- records that retention took before they were exported, or that are missing in the middle of the log (a segment that
  was removed; ``tidelog.pipeline.plan.holes``): ``fail_on_data_loss=False`` goes on and notes the gap;
- a log that ends before what was exported.

Two exports into one table may run at the same time: one commits, the other one is told so (ConflictError). Killed at
any point and run again, the table has the same rows as if nothing had happened.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tidelog.pipeline.errors import DataLossError, TopicRecreatedError
from tidelog.pipeline.export.file import FilePlan, FileResult, file_name, group_slices, write_file
from tidelog.pipeline.export.manifest import (
    DATA,
    ExportTable,
    Manifest,
    PartitionState,
    StagingRun,
    TableFile,
    TopicState,
    id_text,
)
from tidelog.pipeline.job_errors import JobError
from tidelog.pipeline.jobs.progress import Progress
from tidelog.pipeline.jobs.runner import Task, run_tasks
from tidelog.pipeline.jobs.source import LogSource
from tidelog.pipeline.plan.log_watch import Partition
from tidelog.pipeline.plan.plan import OffsetRange, ReadRequest, plan_range
from tidelog.pipeline.plan.selection import PartitionDirectory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_FILE_BYTES = 256 * 1024 * 1024
#: 16 GB of the log: what a run that is killed has to do again at most.
DEFAULT_COMMIT_FILES = 64


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Request of an export: ``table`` is a directory.

    ``file_bytes``: bytes of the log per file. ``headers``: whether the table has the column. ``keep_damaged``: damaged
    batches go to the dead-letter table; without it they end the job. ``commit_files``: files per commit.
    """

    source: LogSource
    table: str
    file_bytes: int = DEFAULT_FILE_BYTES
    headers: bool = True
    restart_recreated: bool = False
    fail_on_data_loss: bool = True
    keep_damaged: bool = True
    commit_files: int = DEFAULT_COMMIT_FILES


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Result of an export. ``committed`` false: there was nothing new. ``manifest`` is the table's newest version.

    ``looked_ms``: when the run asked where the logs end; ``exhausted``: the (topic, partition)s that are in the table
    up to there, which those are not that have an open transaction.
    """

    manifest: Manifest
    committed: bool
    looked_ms: int
    exhausted: frozenset[tuple[str, int]]
    files: int = 0
    rows: int = 0
    size: int = 0
    dead_letters: int = 0

    def complete_through(self) -> dict[str, dict[int, tuple[int, int]]]:
        """Topic -> partition -> (largest record time in ms, offset): every committed record below is in the table."""
        return {
            name: {p: (s.complete_timestamp, s.end) for p, s in topic.partitions.items()}
            for name, topic in self.manifest.topics.items()
        }

    def incomplete(self, before_ms: int) -> list[str]:
        """The partitions of the table that may still get a record with a time before ``before_ms``: none once the day
        is complete that ends then.

        A partition is complete when this run read it to its end at that time or later, or when the table has a record
        of that time or later. With LogAppendTime no earlier record can follow; with CreateTime producers choose their
        times, so leave them as long as they may be late.
        """
        return [
            f"{name}-{partition}"
            for name, partitions in sorted(self.complete_through().items())
            for partition, (timestamp, _) in sorted(partitions.items())
            if timestamp < before_ms and not (self.looked_ms >= before_ms and (name, partition) in self.exhausted)
        ]


@dataclass(slots=True)
class PartitionPlan:
    """The additions of a run to one partition: offsets ``start`` to ``end``. ``grows`` is a small file that gets the
    first rows; ``may_grow`` says whether this table's files grow."""

    partition: Partition
    before: PartitionState | None
    start: int
    end: int
    lost: tuple[tuple[int, int], ...] = ()
    grows: TableFile | None = None
    may_grow: bool = True
    results: list[FileResult] = field(default_factory=list)

    @property
    def is_new(self) -> bool:
        """Return whether the state changes."""
        return self.before is None or self.end > self.before.end or self.lost != self.before.lost

    def state(self) -> PartitionState:
        """The partition's state when the results are in the table."""
        known = -1 if self.before is None else self.before.complete_timestamp
        largest = max((result.largest_timestamp for result in self.results), default=-1)
        begin = self.start if self.before is None else self.before.start
        found = [(lost.start, lost.end) for result in self.results for lost in result.lost]
        return PartitionState(begin, self.end, max(known, largest), (*self.lost, *found))


Planned = tuple[PartitionPlan, list[FilePlan]]
"""A plan and the files of its range, in order."""


def export(spark: SparkSession | None, request: ExportRequest, progress: Progress | None = None) -> ExportResult:
    """Bring a table of Parquet files up to date: every committed record that it does not have yet, each once.

    ``spark`` None does the work in this process, a file after the other. There is a commit after every ``commit_files``
    files: a run that is killed at any point, or loses against another one (ConflictError), leaves the table as of its
    last commit, and the next run goes on there. ``ExportResult.incomplete`` says whether a day is
    complete. Raises ConflictError, TopicRecreatedError, DataLossError, other PipelineErrors.
    """
    table = ExportTable(request.table)
    before = table.open()
    looked = Look.at(request.source)
    plans = [plan_partition(partition, before, request) for partition in looked.partitions]
    plans = [plan for plan in plans if plan.is_new]
    if not plans:
        return looked.unchanged(before)
    after, done = before, list[PartitionPlan]()
    waiting = [(plan, plan_files(plan, request, "")) for plan in plans]
    progress = progress or Progress("export", quiet=True)
    commits = -(-sum(len(files) for _, files in waiting) // request.commit_files)
    number = 0
    while waiting:
        number += 1
        part, waiting = _next_commit(waiting, request.commit_files, after)
        progress.job = "export" if commits < 2 else f"export, commit {number} of {commits}"
        staged = table.begin_run(uuid.uuid4().hex)
        try:
            _write(spark, part, staged, progress)
            done += [plan for plan, _ in part]
            after = next_version(after, [plan for plan, _ in part], staged.run)
            table.commit(after, staged)
        finally:
            staged.close()
    return looked.result(after, done)


@dataclass(frozen=True, slots=True)
class Look:
    """Ends of the logs of an export's source, and the time of asking, in ms."""

    partitions: list[Partition]
    when_ms: int

    @classmethod
    def at(cls, source: LogSource) -> Look:
        """Look now. Raises PipelineError."""
        now = time.time_ns() // 1_000_000
        return cls(source.partitions(), now)

    def unchanged(self, manifest: Manifest) -> ExportResult:
        """The result of a run that found nothing new."""
        return ExportResult(manifest, committed=False, looked_ms=self.when_ms, exhausted=self._exhausted())

    def result(self, after: Manifest, plans: list[PartitionPlan]) -> ExportResult:
        """The result of a run that committed ``after``."""
        results = [result for plan in plans for result in plan.results]
        files = [result.file for result in results if result.file is not None]
        letters = sum(result.dead_letters.rows for result in results if result.dead_letters is not None)
        return ExportResult(
            after,
            committed=True,
            looked_ms=self.when_ms,
            exhausted=self._exhausted(),
            files=len(files),
            rows=sum(file.rows for file in files),
            size=sum(file.size for file in files),
            dead_letters=letters,
        )

    def _exhausted(self) -> frozenset[tuple[str, int]]:
        return frozenset((p.directory.topic, p.directory.partition) for p in self.partitions if p.end == p.bounds.end)


def _next_commit(waiting: list[Planned], most: int, manifest: Manifest) -> tuple[list[Planned], list[Planned]]:
    """Split off the next commit of at most so many files; the rest waits. Partition after partition, so that at most
    the first of those that wait was begun, up to where ``manifest`` has it."""
    part: list[Planned] = []
    while waiting and most > 0:
        (plan, files), waiting = waiting[0], waiting[1:]
        some, rest = files[:most], files[most:]
        most -= len(some)
        if not part:
            plan = _continued(plan, manifest)
        if rest:
            end = some[-1].end
            lost = tuple(one for one in plan.lost if one[0] < end)
            part.append((replace(plan, end=end, lost=lost), some))
            waiting = [(replace(plan, start=end, grows=None, results=[]), rest), *waiting]
        else:
            part.append((plan, some))
    return part, waiting


def _continued(plan: PartitionPlan, manifest: Manifest) -> PartitionPlan:
    """The plan with the state that an earlier commit of this run gave its partition."""
    directory = plan.partition.directory
    topic = manifest.topics.get(directory.topic)
    if topic is None or topic.topic_id != id_text(directory.topic_id):
        return plan
    state = topic.partitions.get(directory.partition)
    known = () if state is None else state.lost
    return replace(plan, before=state, lost=tuple(dict.fromkeys((*known, *plan.lost))))


def _write(spark: SparkSession | None, part: list[Planned], staged: StagingRun, progress: Progress) -> None:
    tasks, owners = [], []
    for plan, files in part:
        for file_plan in files:
            tasks.append(Task(file_plan.name, file_plan.log_bytes, replace(file_plan, staging=staged.path)))
            owners.append(plan)
    for plan, result in zip(owners, run_tasks(spark, tasks, write_file, progress), strict=True):
        plan.results.append(result)


# ---- new offsets


def plan_partition(
    partition: Partition, before: Manifest, request: ExportRequest, *, may_grow: bool = True
) -> PartitionPlan:
    """Plan the additions to one partition. Raises TopicRecreatedError, DataLossError, JobError."""
    directory, bounds = partition.directory, partition.bounds
    name, number = directory.topic, directory.partition
    topic = before.topics.get(name)
    if topic is not None and topic.topic_id != id_text(directory.topic_id):
        if not request.restart_recreated:
            raise TopicRecreatedError(
                f"topic {name} was deleted and created again: the table holds id {topic.topic_id}, the log has "
                f"{id_text(directory.topic_id)}; --restart-recreated exports the new one beside the old rows"
            )
        topic = None
    state = None if topic is None else topic.partitions.get(number)
    if state is None:
        return PartitionPlan(partition, None, bounds.start, partition.end, may_grow=may_grow)
    if state.end > bounds.end:
        raise JobError(
            f"{name}-{number} ends at offset {bounds.end}, the table has it up to {state.end}: the log was cut; "
            "expected the log that was exported before"
        )
    lost = state.lost
    if state.end < bounds.start:
        if request.fail_on_data_loss:
            raise DataLossError(
                f"{name}-{number} begins at offset {bounds.start}, the table ends at {state.end}: the records between "
                "are gone; --accept-data-loss goes on and notes the gap"
            )
        lost = (*lost, (state.end, bounds.start))
    start, end = max(state.end, bounds.start), max(partition.end, state.end, bounds.start)
    last = _growing(before, directory, start, request.file_bytes) if may_grow and end > start else None
    return PartitionPlan(partition, state, start, end, lost, last, may_grow)


def _growing(before: Manifest, directory: PartitionDirectory, start: int, file_bytes: int) -> TableFile | None:
    """The partition's last file, where it is small, ends at ``start`` and has a name that says no end."""
    identity = (directory.topic, id_text(directory.topic_id), directory.partition)
    mine = (file for file in before.files if (file.topic, file.topic_id, file.partition) == identity)
    last = max(mine, key=lambda file: file.end, default=None)
    if last is None or last.end != start or last.log_bytes * 2 > file_bytes:
        return None
    name = file_name(directory.topic, directory.topic_id, directory.partition, (last.start,))
    return last if last.name == name else None


def plan_files(plan: PartitionPlan, request: ExportRequest, staging: str) -> list[FilePlan]:
    """The files of a partition's new range: they cover it without a gap."""
    read = ReadRequest(
        (),
        request.file_bytes,
        fail_on_data_loss=request.fail_on_data_loss,
    )
    wanted = OffsetRange(plan.partition.directory, plan.start, plan.end)
    groups = group_slices(plan_range(wanted, read), request.file_bytes)
    plan.lost = (*plan.lost, *((lost.start, lost.end) for lost in read.lost))
    starts = [plan.start, *(group[0].start_offset for group in groups[1:]), plan.end]
    files = [
        FilePlan(
            group,
            staging,
            starts[number],
            starts[number + 1],
            ends_in_name=not plan.may_grow,
            headers=request.headers,
            read_committed=request.source.read_committed,
            keep_damaged=request.keep_damaged,
            fail_on_data_loss=request.fail_on_data_loss,
        )
        for number, group in enumerate(groups)
    ]
    if plan.grows is not None and files:
        path = ExportTable(request.table).directory(DATA, plan.grows.name)
        files[0] = replace(files[0], grows=(path, plan.grows))
    return files


def next_version(before: Manifest, plans: list[PartitionPlan], run: str) -> Manifest:
    """The version in which the plans' results are in the table."""
    topics: dict[str, TopicState] = dict(before.topics)
    for plan in plans:
        directory = plan.partition.directory
        topic_id = id_text(directory.topic_id)
        known: Mapping[int, PartitionState] = {}
        if directory.topic in topics and topics[directory.topic].topic_id == topic_id:
            known = topics[directory.topic].partitions
        topics[directory.topic] = TopicState(topic_id, {**known, directory.partition: plan.state()})
    results = [result for plan in plans for result in plan.results]
    new = [result.file for result in results if result.file is not None]
    names = {file.name for file in new}
    letters = [result.dead_letters for result in results if result.dead_letters is not None]
    return replace(
        before,
        version=before.version + 1,
        run=run,
        created_ms=time.time_ns() // 1_000_000,
        topics=topics,
        files=(*(file for file in before.files if file.name not in names), *new),
        dead_letters=(*before.dead_letters, *letters),
    )
