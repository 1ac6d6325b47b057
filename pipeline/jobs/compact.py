"""The compact job: keeps each key's newest record in closed segments of a stopped broker's logs, many logs at once.

Each log is one task and one round of the broker's own cleaner (``tidelog.cleaner.round.cleaner``), so the new segments
are those that the broker would have written. The driver then saves up to which offset each log is clean, in the
broker's checkpoint. If the job is killed before that and run again, it cleans finished logs once more, with the same
result.

Only topics whose ``cleanup.policy`` contains ``compact`` are changed; it is an error to name another topic.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.cleaner.log_to_clean import first_dirty_offset, measure_log
from tidelog.log.config import LogConfig
from tidelog.log.files.checkpoints import CLEANER_OFFSET_FILE, read_offset_checkpoint, write_offset_checkpoint
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import OsFileSystem
from tidelog.pipeline.job_errors import BadRequestError
from tidelog.pipeline.jobs.offline_logs import Configuration, LogPlan, OfflineLogs, close_log, open_log
from tidelog.pipeline.jobs.progress import Progress
from tidelog.pipeline.jobs.runner import Task, run_tasks
from tidelog.pipeline.jobs.source import LogSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MAP_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CompactRequest:
    """Request of a compaction: logs and their topic configurations.

    ``dry_run`` computes the results and changes nothing. ``map_bytes``: memory for the keys of one log. ``now_ms``: the
    current time for the age of tombstones; None: the clock's.
    """

    source: LogSource
    configuration: Configuration = field(default_factory=Configuration)
    dry_run: bool = False
    map_bytes: int = DEFAULT_MAP_BYTES
    now_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CompactWork:
    """One worker's task: a log, its offset in the cleaner's checkpoint (None without), and the request's settings."""

    log: LogPlan
    checkpoint: int | None
    now_ms: int
    map_bytes: int
    dry_run: bool


@dataclass(frozen=True, slots=True)
class CompactResult:
    """Result for one log; ``clean_below`` is the offset up to which the log is clean after the round.

    ``bytes_before`` and all later counts are 0 if there was nothing to clean. A dry run has the values of a round that
    would be run now.
    """

    name: str
    path: str
    clean_below: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    unreadable_batches: int


def compact(
    spark: SparkSession | None, request: CompactRequest, progress: Progress | None = None
) -> list[CompactResult]:
    """Run one round of the broker's cleaner over the closed segments of each compacted log, many logs at the same time.

    ``spark`` None does the work in this process. The broker must be stopped, and cannot start meanwhile. A run that was
    killed can be started again; a log with nothing to clean gets no new segments. The results are in the order of the
    logs. Raises JobError when a broker runs on the logs, a task fails, or a dry run would have to recover logs; other
    PipelineErrors, KafkaError, ConfigError.
    """
    now_ms = request.now_ms if request.now_ms is not None else time.time_ns() // 1_000_000
    file_system = OsFileSystem()
    with OfflineLogs(request.source.directories(), request.configuration) as logs:
        checkpoints = {
            path: read_offset_checkpoint(file_system, os.path.join(path, CLEANER_OFFSET_FILE))
            for path in logs.data_directories
        }
        plans = _select_compacted(logs.plan_logs(), request.source)
        if not plans:
            return []
        if request.dry_run:
            logs.require_clean()
        else:
            logs.begin_changes()
        tasks = [
            Task(
                plan.name,
                plan.size,
                CompactWork(plan, _checkpoint_of(checkpoints, plan), now_ms, request.map_bytes, request.dry_run),
            )
            for plan in plans
        ]
        results = run_tasks(spark, tasks, compact_log, progress or Progress("compact", quiet=True))
        if not request.dry_run:
            for plan, result in zip(plans, results, strict=True):
                partition = TopicPartition(plan.topic, plan.partition)
                checkpoints[os.path.dirname(plan.path)][partition] = result.clean_below
            for path, offsets in checkpoints.items():
                write_offset_checkpoint(file_system, os.path.join(path, CLEANER_OFFSET_FILE), offsets)
    return results


def _select_compacted(plans: list[LogPlan], source: LogSource) -> list[LogPlan]:
    """Select the plans of compacted topics. Raises BadRequestError when a named topic is not compacted."""
    wanted = [plan for plan in plans if LogConfig(dict(plan.config)).compact]
    others = sorted({plan.topic for plan in plans} - {plan.topic for plan in wanted})
    if others and source.choice.pattern is None:
        raise BadRequestError(
            f"{', '.join(others)}: cleanup.policy is not compact; expected compacted topics "
            "(or --config cleanup.policy=compact)"
        )
    return wanted


def _checkpoint_of(checkpoints: dict[str, dict[TopicPartition, int]], plan: LogPlan) -> int | None:
    return checkpoints[os.path.dirname(plan.path)].get(TopicPartition(plan.topic, plan.partition))


def compact_log(work: CompactWork) -> CompactResult:
    """Run one cleaning round over one log. Raises KafkaStorageError, ConfigError."""
    from tidelog.cleaner.engine.engine import ENGINE
    from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions

    log = open_log(work.log)
    try:
        cleanable = measure_log(log, work.checkpoint, work.now_ms)
        if not cleanable.cleanable_bytes:
            clean_below = first_dirty_offset(log, work.checkpoint)
            return CompactResult(work.log.name, work.log.path, clean_below, 0, 0, 0, 0, 0)
        cleaner = Cleaner(ENGINE, CleanerOptions(map_bytes=work.map_bytes))
        stats = cleaner.clean(cleanable, work.now_ms, dry_run=work.dry_run)
        return CompactResult(
            work.log.name,
            work.log.path,
            stats.end_offset,
            stats.bytes_before,
            stats.bytes_after,
            stats.records_before,
            stats.records_after,
            stats.unreadable_batches,
        )
    finally:
        close_log(log)


def report(results: list[CompactResult], *, dry_run: bool) -> list[str]:
    """Build the lines that the command prints."""
    verb = "would go from" if dry_run else "went from"
    lines = []
    for result in results:
        if not result.bytes_before:
            lines.append(f"{result.name}: nothing to clean")
            continue
        lines.append(
            f"{result.name}: {result.records_before:,} to {result.records_after:,} records, {verb} "
            f"{result.bytes_before:,} to {result.bytes_after:,} bytes, clean below offset {result.clean_below}"
        )
        if result.unreadable_batches:
            lines.append(f"{result.name}: {result.unreadable_batches} unreadable batches kept as they are")
    return lines or ["no compacted topic"]
