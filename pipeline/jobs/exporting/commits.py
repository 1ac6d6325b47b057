"""The parts of an export: the planned files are written and committed part by part.

    planned files -> a part -> workers write it into staging -> one commit -> the next part

A part ends with a commit, and after a kill the next run continues after the last commit. So a part has at most
``commit_files`` files, and as much of the log as takes ``commit_minutes`` at the speed of the part before it. The first
part assumes ``FIRST_SPEED`` per worker, a tenth of the usual speed. For a table, each part is a run of its own, with an
id for its staging directory and its version.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from tidelog.pipeline.export.file import FilePlan, FileResult, write_file
from tidelog.pipeline.export.manifest import DATA, Manifest, StagingRun, id_text
from tidelog.pipeline.job_errors import BadRequestError, JobError
from tidelog.pipeline.jobs.exporting.plan import PartitionPlan, next_version, plan_files, plan_partition, share_out
from tidelog.pipeline.jobs.exporting.request import ExportRequest, ExportResult, Look
from tidelog.pipeline.jobs.exporting.values import choose_value_columns
from tidelog.pipeline.jobs.progress import Progress
from tidelog.pipeline.jobs.runner import Task, context_of, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Speed of a worker that is assumed at first, in bytes of the log per second.
FIRST_SPEED = 4e6

PlannedFiles = tuple[PartitionPlan, list[FilePlan]]
"""A partition's plan and the files of its range, in order."""


class ExportTarget(Protocol):
    """A table that is the target of an export. ``may_grow``: a small last file gets more rows."""

    @property
    def may_grow(self) -> bool:
        """Return whether a file of the table may be replaced by a longer one."""

    def widen(self, request: ExportRequest) -> None:
        """Add missing columns for the request's values to the table. Raises PipelineError, OSError."""

    def begin_run(self, run: str) -> StagingRun:
        """Create the staging directory of one part. Raises PipelineError, KafkaError, OSError."""

    def commit(self, before: Manifest, after: Manifest, plans: list[PartitionPlan], staged: StagingRun) -> None:
        """Add the staged files and set the table's state to ``after``, or do neither. Raises ConflictError, other
        PipelineErrors, KafkaError, OSError."""


@dataclass(slots=True)
class CommitPace:
    """Limit of a part's size, from the speed of the part before. ``workers``: files that are written at the same
    time."""

    files: int
    seconds: float
    workers: int = 1
    clock: Callable[[], float] = time.monotonic
    _began: float = 0.0
    _bytes_per_second: float = 0.0

    def __post_init__(self) -> None:
        self._bytes_per_second = FIRST_SPEED * self.workers

    def begin(self) -> None:
        """Note that a part begins."""
        self._began = self.clock()

    def end_part(self, log_bytes: int) -> None:
        """Measure the speed of the part, which is committed now and had ``log_bytes`` of the log."""
        self._bytes_per_second = log_bytes / max(self.clock() - self._began, 1e-3)

    def has_room(self, files: int, log_bytes: int) -> bool:
        """Return whether a part may have this many files and bytes of the log. Bytes are limited only beyond one file
        per worker."""
        if files <= self.workers:
            return files <= self.files
        return files <= self.files and log_bytes <= self._bytes_per_second * self.seconds


def export_into(
    spark: SparkSession | None,
    request: ExportRequest,
    target: ExportTarget,
    before: Manifest,
    progress: Progress | None = None,
) -> ExportResult:
    """Export new records into a table with the state ``before``. Raises the errors of ``export``."""
    request, before = choose_value_columns(request, _with_mode(before, request))
    looked = Look.take(request.source)
    if request.values and request.columns is None:
        return looked.postponed_result(before)  # no value to infer columns from: a later run decides them
    target.widen(request)
    plans = [plan_partition(partition, before, request, may_grow=target.may_grow) for partition in looked.partitions]
    waiting = _plan_files([plan for plan in plans if plan.changes_state], request, _workers(spark))
    if not waiting:
        return looked.unchanged_result(before)
    progress = progress or Progress("export", quiet=True)
    pace = CommitPace(request.commit_files, request.commit_minutes * 60, _workers(spark))
    total, done = _log_bytes(waiting), 0
    after, written = before, list[PartitionPlan]()
    while waiting:
        part, waiting = _next_part(waiting, pace, after)
        pace.begin()
        after = _commit_part(spark, target, part, after, progress)
        written += [plan for plan, _ in part]
        pace.end_part(_log_bytes(part))
        done += _log_bytes(part)
        progress.job = f"export, {100 * done // max(total, 1)} % committed"
    return looked.result(before, after, (result for plan in written for result in plan.results))


def _plan_files(plans: list[PartitionPlan], request: ExportRequest, workers: int) -> list[PlannedFiles]:
    """Plan the files of each partition, and plan them again if ``share_out`` gives them another size.

    A partition that has a single file of at most this other size is not planned again.
    """
    drafts = [replace(plan) for plan in plans]
    planned = [(plan, plan_files(plan, request, "")) for plan in drafts]
    shared = share_out(request, _log_bytes(planned), workers)
    if shared is request:
        return planned
    return [
        draft
        if len(draft[1]) < 2 and _log_bytes([draft]) <= shared.file_bytes
        else (plan, plan_files(plan, shared, ""))
        for plan, draft in zip(plans, planned, strict=True)
    ]


def _with_mode(before: Manifest, request: ExportRequest) -> Manifest:
    """Return the state with the request's mode. Raises BadRequestError if the table has another mode."""
    if before.version and before.mode != request.mode:
        raise BadRequestError(f"--mode {request.mode}: the table has --mode {before.mode}, expected the same")
    return replace(before, mode=request.mode)


def _workers(spark: SparkSession | None) -> int:
    return 1 if spark is None else max(1, context_of(spark).defaultParallelism)


def _log_bytes(planned: list[PlannedFiles]) -> int:
    return sum(file.log_bytes for _, files in planned for file in files)


def _commit_part(
    spark: SparkSession | None, target: ExportTarget, part: list[PlannedFiles], before: Manifest, progress: Progress
) -> Manifest:
    staged = target.begin_run(uuid.uuid4().hex)
    try:
        _write(spark, part, staged, progress)
        plans = [plan for plan, _ in part]
        after = next_version(before, plans, staged.run)
        target.commit(before, after, plans, staged)
    finally:
        staged.close()
    return after


def _next_part(
    waiting: list[PlannedFiles], pace: CommitPace, manifest: Manifest
) -> tuple[list[PlannedFiles], list[PlannedFiles]]:
    """Split off the next part; returns it and the rest.

    Parts take partition after partition. So only the first waiting partition may have files that were committed before:
    its plan then continues from ``manifest``.
    """
    part: list[PlannedFiles] = []
    is_full = False
    while waiting and not is_full:
        (plan, files), waiting = waiting[0], waiting[1:]
        some, rest = _split(files, pace, part)
        is_full = bool(rest)
        if not part:
            plan = _continue_plan(plan, manifest)
        if rest and some:
            end = some[-1].end
            lost = tuple(one for one in plan.lost if one[0] < end)
            part.append((replace(plan, end=end, lost=lost), some))
            plan = replace(plan, start=end, earlier_file=None, results=[])
        elif not rest:
            part.append((plan, some))
        if rest:
            waiting = [(plan, rest), *waiting]
    return part, waiting


def _split(files: list[FilePlan], pace: CommitPace, part: list[PlannedFiles]) -> tuple[list[FilePlan], list[FilePlan]]:
    """Split the files into those that still fit into a part, and the others."""
    count, size = sum(len(some) for _, some in part), _log_bytes(part)
    for number, file in enumerate(files):
        size += file.log_bytes
        if not pace.has_room(count + number + 1, size):
            return files[:number], files[number:]
    return files, []


def _continue_plan(plan: PartitionPlan, manifest: Manifest) -> PartitionPlan:
    """Continue the plan from the state that an earlier commit of this run gave its partition."""
    directory = plan.partition.directory
    topic = manifest.topics.get(directory.topic)
    if topic is None or topic.topic_id != id_text(directory.topic_id):
        return plan
    state = topic.partitions.get(directory.partition)
    known = () if state is None else state.lost
    return replace(plan, before=state, lost=tuple(dict.fromkeys((*known, *plan.lost))))


def _write(spark: SparkSession | None, part: list[PlannedFiles], staged: StagingRun, progress: Progress) -> None:
    tasks, owners = [], []
    for plan, files in part:
        for file_plan in files:
            placed = replace(file_plan, staging=staged.path, store=staged.store, suffix=staged.suffix)
            tasks.append(Task(placed.name, placed.log_bytes, placed))
            owners.append(plan)
    for task, plan, result in zip(tasks, owners, run_tasks(spark, tasks, write_file, progress), strict=True):
        _check_staged(task.plan, result)
        plan.results.append(result)


def _check_staged(plan: FilePlan, result: FileResult) -> None:
    """Raise JobError if the staged files do not have the sizes that the successful attempt reports, because another
    attempt wrote them after records were deleted. Objects are not checked: each attempt has names of its own."""
    if plan.store.attempt_suffix():
        return
    for file in result.files:
        if plan.earlier_file is not None and file.size == plan.earlier_file[1].size:
            continue  # no row was added
        size = plan.store.size_of(os.path.join(plan.staging, DATA, file.name))
        if size != file.size:
            raise JobError(f"{file.name} has {size} bytes, its task wrote {file.size}: another attempt of the task was "
                           "under way; run the export again")  # fmt: skip
