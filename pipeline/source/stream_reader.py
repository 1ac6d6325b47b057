"""The streaming reader of ``format("tidelog")``: the batch source's planning and decoding, one trigger at a time.

    initialOffset         the position that the startingOffsets options give            a new query only
    latestOffset          the logs' ends, cut to the trigger's limits                   every trigger
    partitions(start, end)  slices of segments, as the batch source plans them          every batch
    read(slice)           Arrow batches                                                 in executors
    commit(end), stop     progress to ``commitGroup``, if given and not committed yet

Positions are those of ``tidelog.pipeline.source.offsets``; ends come from the files, or from the broker's ListOffsets
when ``kafka.bootstrap.servers`` is given. What may have changed since the last trigger:

    a new partition                      is read from offset 0; data loss if its log begins later
    a partition was deleted              data loss
    a log begins above the position (retention, DeleteRecords)     data loss, goes on at the log's start
    a log ends below the position   (truncated by recovery)        data loss, goes on at the log's end
    a topic has another id               error, whatever the options: its offsets are another topic's

Data loss raises DataLossError under ``failOnDataLoss=true``; with false it is logged and reading goes on as above.

Progress is committed to ``commitGroup`` in each ``latestOffset``, whose start is the end of the last finished batch.
Spark calls ``commit`` one trigger later, so never for the last batch of AvailableNow, and ends without ``stop``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from tidelog.pipeline.errors import DataLossError, PipelineError, hide_frames
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.options.offset_json import PartitionOffsets
from tidelog.pipeline.options.options import SourceOptions
from tidelog.pipeline.plan.log_watch import LogWatch, Partition
from tidelog.pipeline.plan.plan import OffsetRange, ReadRequest, group, plan
from tidelog.pipeline.plan.request import ensure_named, starting_offset
from tidelog.pipeline.plan.selection import PartitionDirectory, ensure_same_topics
from tidelog.pipeline.source.limits import Patience, TriggerLimits, limited_ends
from tidelog.pipeline.source.offsets import StreamOffset
from tidelog.pipeline.source.progress import GroupProgress
from tidelog.pipeline.source.reader import SlicePartition, TidelogReader

logger = logging.getLogger(__name__)


class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one streaming query, in one process of the driver while the query runs; ``read`` runs in
    executors."""

    def __init__(self, options: SourceOptions, wanted: Columns) -> None:
        """Raises OptionError."""
        self.options = options
        self._batch = TidelogReader(options, wanted)
        self._limits = TriggerLimits.of(options)
        self._patience = Patience()
        self._progress = GroupProgress(options)
        self._watch = LogWatch(options)
        self._target: PartitionOffsets | None = None
        self._latest: StreamOffset | None = None

    @hide_frames
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Find the position at which a new query begins. Raises PipelineError."""
        partitions = self._watch.partitions()
        ensure_named(self.options.starting, partitions)
        offsets = _offsets({p.directory: starting_offset(p, self.options) for p in partitions})
        return StreamOffset.of(_directories(partitions), offsets).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit that the options set."""
        return self._limits.default()

    @hide_frames
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the current ends: the query reads nothing beyond them."""
        self._target = _offsets({p.directory: p.end for p in self._watch.partitions()})

    @hide_frames
    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the next batch. Raises DataLossError, TopicRecreatedError, PipelineError."""
        position = StreamOffset.from_json(start)
        self._progress.note_progress(position.offsets)
        self._progress.commit()
        partitions = self._check(position, self._watch.partitions())
        self._latest = StreamOffset.of(_directories(partitions), _offsets({p.directory: p.end for p in partitions}))
        ranges = {p.directory: (_begin(position, p), self._visible_end(p)) for p in partitions}
        limits = self._limits.combine(limit)
        waiting = sum(max(0, end - begin) for begin, end in ranges.values())
        if self._target is None and not self._patience.is_enough(limits, waiting):
            return dict(start)
        ends = limited_ends(ranges, limits)
        ends |= {p.directory: p.end for p in partitions if p.end < _begin(position, p)}
        return StreamOffset.of(_directories(partitions), _offsets(ends)).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the ends that the last trigger saw, for the query's progress."""
        return None if self._latest is None else self._latest.to_json()

    @hide_frames
    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Plan the slices of a batch. Raises DataLossError, TopicRecreatedError, PipelineError."""
        first, last = StreamOffset.from_json(start), StreamOffset.from_json(end)
        partitions = [p for p in self._watch.partitions() if last.get(p.directory) is not None]
        ensure_same_topics(sorted(last.ids.items()), _directories(partitions))
        self._ensure_there(last, partitions)
        ranges = tuple(self._range(first, last, partition) for partition in partitions)
        request = ReadRequest(
            ranges=ranges,
            bytes_per_task=self.options.bytes_per_task,
            min_partitions=self.options.min_partitions,
            max_records_per_partition=self.options.max_records_per_partition,
            fail_on_data_loss=self.options.fail_on_data_loss,
            row_filter=self.options.row_filter,
        )
        return [SlicePartition(slices) for slices in group(plan(request), request)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read the records of one task as ``pyarrow.RecordBatch``es; runs in an executor. Raises PipelineError."""
        return self._batch.read(partition)

    @hide_frames
    def commit(self, end: Mapping[str, Any]) -> None:
        """Commit to ``commitGroup`` that records below ``end`` are processed. Raises PipelineError when it is
        refused."""
        self._progress.note_progress(StreamOffset.from_json(end).offsets)
        self._progress.commit()

    @hide_frames
    def stop(self) -> None:
        """Commit the progress since the last ``commit``. Raises PipelineError when ``commitGroup`` is refused."""
        self._progress.commit()

    def _visible_end(self, partition: Partition) -> int:
        """Return the partition's end; under AvailableNow at most its end when the query began."""
        if self._target is None:
            return partition.end
        directory = partition.directory
        return min(partition.end, self._target.get(directory.topic, {}).get(directory.partition, 0))

    def _check(self, position: StreamOffset, partitions: list[Partition]) -> list[Partition]:
        """Return the partitions after checking that the position is still valid in them."""
        ensure_same_topics(sorted(position.ids.items()), _directories(partitions))
        self._ensure_there(position, partitions)
        for partition in partitions:
            begin, name = position.get(partition.directory), _name(partition.directory)
            if begin is None and partition.bounds.start > 0:
                self._report_loss(f"new partition {name} begins at {partition.bounds.start}, not 0")
            elif begin is not None and begin > partition.end:
                self._report_loss(
                    f"{name} ends at {partition.end}, below the position {begin}; reading goes on at the end"
                )
        return partitions

    def _ensure_there(self, position: StreamOffset, partitions: Sequence[Partition]) -> None:
        there = {(p.directory.topic, p.directory.partition) for p in partitions}
        known = {(topic, number) for topic, numbers in position.offsets.items() for number in numbers}
        gone = sorted(known - there)
        if gone:
            self._report_loss(f"partitions {', '.join(f'{topic}-{number}' for topic, number in gone)} are gone")

    def _range(self, first: StreamOffset, last: StreamOffset, partition: Partition) -> OffsetRange:
        begin, end = first.get(partition.directory) or 0, last.get(partition.directory) or 0
        start = partition.bounds.start
        if begin < min(start, end):
            self._report_loss(f"{_name(partition.directory)} begins at {start}, records from {begin} on are gone")
        if end > partition.end:
            self._report_loss(
                f"{_name(partition.directory)} ends at {partition.end}, below {end} where this batch ends"
            )
        return OffsetRange(partition.directory, max(begin, start), min(end, partition.end))

    def _report_loss(self, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLossError(f"{what} (failOnDataLoss=false would go on)")
        logger.warning("data loss: %s", what)


class RefusedStreamReader(DataSourceStreamReader):
    """A reader for wrong options: looking up an offset, planning and reading raise their error."""

    def __init__(self, error: PipelineError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise the error."""
        raise self._error.with_traceback(None) from None

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise the error."""
        raise self._error.with_traceback(None) from None

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Raise the error."""
        raise self._error.with_traceback(None) from None

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise the error."""
        raise self._error.with_traceback(None) from None


def _begin(position: StreamOffset, partition: Partition) -> int:
    """Find the offset at which the next batch begins in a partition; in a new partition it is the log's start."""
    known = position.get(partition.directory)
    return partition.bounds.start if known is None else known


def _offsets(by_directory: Mapping[PartitionDirectory, int]) -> PartitionOffsets:
    offsets: PartitionOffsets = {}
    for directory, offset in by_directory.items():
        offsets.setdefault(directory.topic, {})[directory.partition] = offset
    return offsets


def _directories(partitions: Sequence[Partition]) -> list[PartitionDirectory]:
    return [partition.directory for partition in partitions]


def _name(directory: PartitionDirectory) -> str:
    return f"{directory.topic}-{directory.partition}"
