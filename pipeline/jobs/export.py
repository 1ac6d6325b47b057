"""The export job: writes records of topics to a table of Parquet files, over many runs, each exactly once. By default
records of open and aborted transactions are left out.

    manifest (topic ids, the exported offsets of each partition) -> new offsets of the log
    -> files for about ``file_bytes`` of the log each -> workers write them into staging
    -> a commit after some files: the next version of the manifest, or nothing

The first run begins at the log start. A later one continues where the newest version ends. A small last file grows, so
that there are few small files: one rename replaces it by a longer file that begins with the same bytes. No two files of
a table have the same row at any moment. Offsets of compacted or aborted records give no rows: a range of offsets may
have fewer rows, or none. These are errors, of which the request may allow the first two:

- a topic that was deleted and created again (its id is another one): ``restart_recreated`` begins with the new one, the
  rows of the old one stay;
- records that retention deleted before they were exported, or that are missing in the middle of the log (a segment that
  was removed; ``tidelog.pipeline.plan.holes``): ``fail_on_data_loss=False`` continues and records the gap;
- a log that ends before the exported offsets, or that was truncated and written again since.

Two exports into one table may run at the same time: one commits, the other one gets ConflictError. If the job is killed
at any point and run again, the table has the same rows as without the kill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.pipeline.export.manifest import ExportTable, Manifest, StagingRun
from tidelog.pipeline.jobs.exporting.commits import export_into
from tidelog.pipeline.jobs.exporting.plan import PartitionPlan
from tidelog.pipeline.jobs.exporting.request import ExportRequest, ExportResult
from tidelog.pipeline.jobs.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ExportRequest", "ExportResult", "export"]


def export(spark: SparkSession | None, request: ExportRequest, progress: Progress | None = None) -> ExportResult:
    """Add to a table of Parquet files every record that it does not have yet, each once; unless
    ``source.read_committed`` is false, only committed records.

    ``spark`` None does the work in this process, one file after the other. There is a commit after every
    ``commit_files`` files or ``commit_minutes``. Commits that a run made before it was killed, or before another run
    was faster (ConflictError), are kept; the next run continues after the last commit. ``ExportResult.incomplete``
    lists the partitions that may still get records from before a given time. Raises ConflictError, TopicRecreatedError,
    DataLossError, other PipelineErrors, OSError, KafkaStorageError.
    """
    table = ExportTable(request.table)
    return export_into(spark, request, _ParquetTarget(table), table.open(), progress)


class _ParquetTarget:
    """The target of an export: a folder of Parquet files with a manifest."""

    may_grow = True

    def __init__(self, table: ExportTable) -> None:
        self._table = table

    def widen(self, request: ExportRequest) -> None:
        """Do nothing: each file has its own schema."""

    def begin_run(self, run: str) -> StagingRun:
        """Create a run's staging directory. Raises the errors of ``ExportTable.begin_run``."""
        return self._table.begin_run(run)

    def commit(self, before: Manifest, after: Manifest, plans: list[PartitionPlan], staged: StagingRun) -> None:
        """Commit ``after`` as the newest version. Raises the errors of ``ExportTable.commit``."""
        self._table.commit(after, staged)
