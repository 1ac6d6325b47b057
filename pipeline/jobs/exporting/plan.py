"""The plan of an export: the new offsets of each partition, their files, and the table's state after their commit.

In a folder of Parquet files, names follow from topic, topic id, partition and offsets alone; in Iceberg and Delta they
also have the run's id. The first offsets of files follow from the exported offsets, the logs, ``file_bytes`` and the
number of workers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tidelog.log.files.checkpoints import EpochEntry
from tidelog.pipeline.errors import DataLossError, TopicRecreatedError
from tidelog.pipeline.export.file import FILE_TOLERANCE, FilePlan, FileResult, file_name, group_slices
from tidelog.pipeline.export.manifest import (
    DATA,
    UPSERT,
    EarlierRange,
    ExportTable,
    Manifest,
    PartitionState,
    TableFile,
    TopicState,
    id_text,
)
from tidelog.pipeline.job_errors import JobError
from tidelog.pipeline.jobs.exporting.history import epoch_at, epochs_of, require_same_history
from tidelog.pipeline.jobs.exporting.request import ExportRequest
from tidelog.pipeline.plan.log_watch import Partition
from tidelog.pipeline.plan.plan import OffsetRange, ReadRequest, plan_range
from tidelog.pipeline.plan.selection import PartitionDirectory


@dataclass(slots=True)
class PartitionPlan:
    """The offsets from ``start`` to below ``end`` of one partition that a run adds to the table.

    ``before``: the partition's state in the table. ``lost``: ranges of offsets, in that state or found by this run,
    whose records are gone. ``earlier_file`` is a small file that gets the first rows; ``may_grow``: whether files
    of this table grow. ``epochs``: the log's leader epochs.
    """

    partition: Partition
    before: PartitionState | None
    start: int
    end: int
    lost: tuple[tuple[int, int], ...] = ()
    earlier_file: TableFile | None = None
    may_grow: bool = True
    epochs: tuple[EpochEntry, ...] = ()
    results: list[FileResult] = field(default_factory=list)

    @property
    def changes_state(self) -> bool:
        """Return whether the run changes the partition's state."""
        return self.before is None or self.end > self.before.end or self.lost != self.before.lost

    def state(self) -> PartitionState:
        """Build the partition's state after the commit of the results."""
        known = -1 if self.before is None else self.before.complete_timestamp
        largest = max((result.largest_timestamp for result in self.results), default=-1)
        begin = self.start if self.before is None else self.before.start
        found = _union((lost.start, lost.end) for result in self.results for lost in result.lost)
        epoch = epoch_at(self.epochs, self.end - 1)
        return PartitionState(begin, self.end, max(known, largest), (*self.lost, *found), epoch)


def _union(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ranges that overlap or touch: a task that plans again while retention deletes records finds longer
    ranges."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def plan_partition(
    partition: Partition, before: Manifest, request: ExportRequest, *, may_grow: bool = True
) -> PartitionPlan:
    """Plan the offsets to add for one partition.

    Raises TopicRecreatedError, LogRewrittenError, DataLossError, JobError, other PipelineErrors.
    """
    directory, bounds = partition.directory, partition.bounds
    name, number = directory.topic, directory.partition
    topic = before.topics.get(name)
    if topic is not None and topic.topic_id != id_text(directory.topic_id):
        if not request.restart_recreated or request.mode == UPSERT:
            raise TopicRecreatedError(
                f"topic {name} was deleted and created again: the table has id {topic.topic_id}, the log "
                f"{id_text(directory.topic_id)}; --restart-recreated exports the new one beside the old rows, but not "
                "into a table of latest values: expected a new table for that"
            )
        topic = None
    state = None if topic is None else topic.partitions.get(number)
    epochs = epochs_of(directory)
    if state is None:
        return PartitionPlan(partition, None, bounds.start, partition.end, may_grow=may_grow, epochs=epochs)
    if state.end > bounds.end:
        raise JobError(
            f"{name}-{number} ends at offset {bounds.end}, the table has it up to {state.end}: the log was truncated; "
            "expected the log that was exported before"
        )
    require_same_history(directory, state, epochs)
    lost = state.lost
    if state.end < bounds.start:
        if request.fail_on_data_loss:
            raise DataLossError(
                f"{name}-{number} begins at offset {bounds.start}, the table ends at {state.end}: the records between "
                "are gone; --accept-data-loss continues and records the gap"
            )
        lost = (*lost, (state.end, bounds.start))
    start, end = max(state.end, bounds.start), max(partition.end, state.end, bounds.start)
    last = _find_growing_file(before, directory, start, request.file_bytes) if may_grow and end > start else None
    return PartitionPlan(partition, state, start, end, lost, last, may_grow, epochs)


def _find_growing_file(
    before: Manifest, directory: PartitionDirectory, start: int, file_bytes: int
) -> TableFile | None:
    """Return the partition's last file if it covers at most half of ``file_bytes``, ends at ``start`` and has no end
    offset in its name; else None."""
    identity = (directory.topic, id_text(directory.topic_id), directory.partition)
    mine = (file for file in before.files if (file.topic, file.topic_id, file.partition) == identity)
    last = max(mine, key=lambda file: file.end, default=None)
    if last is None or last.end != start or last.log_bytes * 2 > file_bytes:
        return None
    name = file_name(directory.topic, directory.topic_id, directory.partition, (last.start,))
    return last if last.name == name else None


def share_out(request: ExportRequest, log_bytes: int, workers: int) -> ExportRequest:
    """Return the request with a file size by which as many workers as possible get equal shares of ``log_bytes``.

    This size is from half of ``file_bytes`` to FILE_TOLERANCE times ``file_bytes``. The request itself is returned if
    two workers cannot get such shares; when files are split by hour or day, which gives several files per range; and
    for latest values, whose files are merged.
    """
    parts = min(workers, log_bytes // max(request.file_bytes // 2, 1))
    if parts < 2 or request.split_by or request.mode == UPSERT:
        return request
    fair = -(-log_bytes // parts)
    return replace(request, file_bytes=fair) if fair <= request.file_bytes * FILE_TOLERANCE else request


def plan_files(plan: PartitionPlan, request: ExportRequest, staging: str) -> list[FilePlan]:
    """Plan the files of a partition's new range, which they cover without a gap.

    Adds the offsets that are missing in the log to ``plan.lost``. Raises PipelineError.
    """
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
            split_by=request.split_by,
            latest=request.mode == UPSERT,
            values=request.columns,
        )
        for number, group in enumerate(groups)
    ]
    if plan.earlier_file is not None and files:
        path = ExportTable(request.table).directory(DATA, plan.earlier_file.name)
        files[0] = replace(files[0], earlier_file=(path, plan.earlier_file))
    return files


def next_version(before: Manifest, plans: list[PartitionPlan], run: str) -> Manifest:
    """Build the table's next state, which has the results of the plans."""
    topics: dict[str, TopicState] = dict(before.topics)
    earlier = list(before.earlier)
    for plan in plans:
        directory = plan.partition.directory
        topic_id = id_text(directory.topic_id)
        known: Mapping[int, PartitionState] = {}
        if directory.topic in topics and topics[directory.topic].topic_id == topic_id:
            known = topics[directory.topic].partitions
        elif directory.topic in topics:
            earlier += _ranges_of(directory.topic, topics[directory.topic])
        topics[directory.topic] = TopicState(topic_id, {**known, directory.partition: plan.state()})
    results = [result for plan in plans for result in plan.results]
    new = [file for result in results for file in result.files]
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
        earlier=tuple(earlier),
    )


def _ranges_of(name: str, topic: TopicState) -> list[EarlierRange]:
    """List the exported ranges of a topic that was deleted and created again."""
    return [EarlierRange(name, topic.topic_id, number, s.start, s.end) for number, s in topic.partitions.items()]
