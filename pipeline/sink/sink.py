"""The sink of ``format("tidelog")``: rows of a stream, or of one batch write, into topics exactly once.

    task (executor)     Arrow rows -> batches per topic-partition -> one staged file -> commit message
    driver              commit messages of the successful attempts -> one transaction -> staged files removed

A task's work is in ``tidelog.pipeline.sink.rows`` and ``tidelog.pipeline.sink.staging``, the driver's in
``tidelog.pipeline.sink.commit``. A stream is identified by its query id, which its checkpoint keeps, and a batch of it
by Spark's batch id; tasks get both as local properties of the job. A batch write is identified by a random id, or by
``txnAppId`` and ``txnVersion``. With these a repeated write (for example from ``foreachBatch``) is skipped. In the
output modes update and complete every batch's rows are appended, as by Spark's Kafka sink.

Writers are pickled into tasks, and Spark creates a stream's writer again for each commit. So they hold only options,
columns and the names of a batch write and its run. Spark's Kafka sink, for comparison, produces from its tasks and may
write rows twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidelog.pipeline.errors import OptionError, PipelineError, hide_frames
from tidelog.pipeline.options.sink_options import SinkOptions, parse_sink_options
from tidelog.pipeline.sink.staging import StagedFile, TaskIdentity, begin_run, end_run, remove_files, remove_published

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """The commit message of one task attempt: its staged file."""

    staged: StagedFile


class _TaskWriter:
    """The part that both kinds of writers share: options, columns, and the staging of a task's rows."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, streaming: bool) -> None:
        """Raises OptionError."""
        self.options: SinkOptions = parse_sink_options(options, streaming=streaming)
        from tidelog.pipeline.sink.rows import sink_columns

        fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        self.columns = sink_columns(fields, self.options)

    def stage(self, rows: Iterator[pa.RecordBatch], task: TaskIdentity) -> StagedMessage:
        """Build and stage a task's batches. Raises PipelineError."""
        from tidelog.pipeline.sink.task import stage_rows

        return StagedMessage(stage_rows(rows, task, self.options, self.columns))


class TidelogStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query's batches, each exactly once."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool = False) -> None:
        """``overwrite`` means output mode complete; a log can only append the rows. Raises OptionError."""
        self._tasks = _TaskWriter(options, schema, streaming=True)

    @hide_frames
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage one task's rows; runs in an executor. Raises PipelineError."""
        return self._tasks.stage(iterator, _stream_task())

    @hide_frames
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the batch, unless it was published before; runs in the driver. Raises PublishError, StagingError."""
        staged = _collect_staged(messages)
        for writer in {file.task.writer for file in staged}:  # one, the query's id; none if there were no tasks
            _publish(self._tasks.options, writer, batchId, staged=staged, is_last=False)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Remove a failed batch's staged files of attempts that reported; others stay until the batch is published."""
        remove_files(_collect_staged(messages))


class TidelogBatchWriter(DataSourceArrowWriter):
    """The writer of a DataFrame, exactly once."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Called in the driver when the job begins. Raises OptionError, StagingError."""
        if overwrite:
            raise OptionError('mode overwrite: records can only be appended to a log, expected mode("append")')
        self._tasks = _TaskWriter(options, schema, streaming=False)
        self._writer = self._tasks.options.application or str(uuid.uuid4())
        self._run = begin_run(self._tasks.options.staging, self._writer, self._tasks.options.version)

    @hide_frames
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage one task's rows; runs in an executor. Raises PipelineError."""
        context = _context()
        version, partition, attempt = self._tasks.options.version, context.partitionId(), context.attemptNumber()
        return self._tasks.stage(iterator, TaskIdentity(self._writer, version, partition, attempt, self._run))

    @hide_frames
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the rows; runs in the driver. Raises PublishError, StagingError."""
        options = self._tasks.options
        is_last = options.application is None
        _publish(options, self._writer, options.version, staged=_collect_staged(messages), is_last=is_last)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the staged files of a write that failed, with their directory: tasks that still run cannot stage
        more."""
        end_run(self._tasks.options.staging, self._writer, self._tasks.options.version, self._run)


def _publish(options: SinkOptions, writer: str, batch_id: int, *, staged: Sequence[StagedFile], is_last: bool) -> None:
    from tidelog.pipeline.sink.commit import Publication, publish

    publish(options, Publication(writer, batch_id, tuple(staged), is_last))
    remove_published(options.staging, writer, batch_id)


def _collect_staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedFile]:
    return [message.staged for message in messages if isinstance(message, StagedMessage)]


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise PipelineError("rows can only be written in a task of Spark, and no task runs here")
    return context


def _stream_task() -> TaskIdentity:
    context = _context()
    query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if query is None or batch is None:
        raise PipelineError(f"this task has no property {_QUERY_ID} or {_BATCH_ID}: expected a micro-batch query")
    return TaskIdentity(query, int(batch), context.partitionId(), context.attemptNumber())
