"""The index job: builds the indices that a broker builds after its appends, offline over many logs at once.

    .index, .timeindex   checked as by a start of the broker, and rebuilt if they are missing or wrong
    keys/  (IndexFile)   for topics with index.keys=true
    tags/  (ConsumeQueue) for topics with index.tag.header

The work is done by the broker's own code (``tidelog.log.recovery.segment_recovery``, ``tidelog.log.find.indexer``), so
the files are those that the broker would have written; after its next start the broker extends them. Valid indices are
only extended; with ``rebuild`` all are built again. If the job is killed and run again without ``rebuild``, it
continues from the last checkpoint of each index.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.log.find.indexer import LogIndexer
from tidelog.log.recovery.segment_recovery import rebuild_indices
from tidelog.log.unified_log import UnifiedLog
from tidelog.pipeline.jobs.offline_logs import Configuration, LogPlan, OfflineLogs, close_log, open_log
from tidelog.pipeline.jobs.progress import Progress
from tidelog.pipeline.jobs.runner import Task, run_tasks
from tidelog.pipeline.jobs.source import LogSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEP_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class IndexRequest:
    """Request to build indices: logs and their topic configurations; ``rebuild`` builds every index again."""

    source: LogSource
    configuration: Configuration = field(default_factory=Configuration)
    rebuild: bool = False


@dataclass(frozen=True, slots=True)
class IndexWork:
    """One worker's task: a log, and whether its indices are rebuilt."""

    log: LogPlan
    rebuild: bool


@dataclass(frozen=True, slots=True)
class IndexResult:
    """Result for one log.

    ``rebuilt_segments``: segments whose offset and time index were rebuilt. ``indexed_bytes``: bytes of the log that
    this run added to key and tag indices. Entries and files are totals; ``next_offset`` follows the last record
    indexed, and is the log's end without a key or tag index. ``skipped_batches``: batches that could not be read.
    """

    name: str
    rebuilt_segments: int
    indexed_bytes: int
    key_entries: int
    key_files: int
    tag_files: int
    next_offset: int
    skipped_batches: int


def index(spark: SparkSession | None, request: IndexRequest, progress: Progress | None = None) -> list[IndexResult]:
    """Build or extend the key, tag, offset and time indices of the logs, byte for byte as the broker would.

    ``spark`` None does the work in this process, one log after the other. The broker must be stopped, and cannot start
    meanwhile. The results are in the order of the logs. Raises JobError when a broker runs on the logs,
    KafkaError, ConfigError, other PipelineErrors.
    """
    with OfflineLogs(request.source.directories(), request.configuration) as logs:
        tasks = [Task(plan.name, plan.size, IndexWork(plan, request.rebuild)) for plan in logs.plan_logs()]
        logs.begin_changes()
        return run_tasks(spark, tasks, index_log, progress or Progress("index", quiet=True))


def index_log(work: IndexWork) -> IndexResult:
    """Index one log. Raises KafkaError, ConfigError."""
    log = open_log(work.log)
    try:
        rebuilt = log.environment.damage.indices
        if work.rebuild:
            rebuilt = _rebuild(log)
        return _extend_key_and_tag_indices(log, work, rebuilt)
    finally:
        close_log(log)


def _rebuild(log: UnifiedLog) -> int:
    count = 0
    for segment in log.segments:
        rebuild_indices(segment, log.config.index_interval_bytes)
        count += 1
    return count


def _extend_key_and_tag_indices(log: UnifiedLog, work: IndexWork, rebuilt: int) -> IndexResult:
    indexer = LogIndexer(log)
    indexer.configure()
    if work.rebuild and (indexer.keys is not None or indexer.tags is not None):
        indexer.rebuild()
    done = 0
    while size := indexer.step(STEP_BYTES):
        done += size
    indexer.checkpoint()
    keys = indexer.keys.files if indexer.keys is not None else ()
    tags = indexer.tags.files if indexer.tags is not None else ()
    return IndexResult(
        work.log.name,
        rebuilt,
        done,
        sum(file.count - 1 for file in keys),
        len(keys),
        len(tags),
        indexer.next_offset,
        indexer.skipped_batches,
    )


def report(results: list[IndexResult]) -> list[str]:
    """Build the lines that the command prints."""
    return [f"{result.name}: {', '.join(_describe(result))}" for result in results]


def _describe(result: IndexResult) -> list[str]:
    """Build the parts of a log's line: the work done, then the totals."""
    parts = []
    if result.indexed_bytes:
        parts.append(f"{result.indexed_bytes:,} bytes indexed")
    if result.rebuilt_segments:
        parts.append(f"offset and time indices of {result.rebuilt_segments} segments rebuilt")
    parts = parts or ["nothing to do"]
    if result.key_files:
        parts.append(f"{result.key_entries:,} key entries in {result.key_files} files")
    if result.tag_files:
        parts.append(f"tags in {result.tag_files} files")
    if result.skipped_batches:
        parts.append(f"{result.skipped_batches} unreadable batches left out")
    return parts
