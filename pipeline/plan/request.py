"""The read request that follows from a query's options: its partitions, with start and end resolved to offsets.

OffsetSpec      batch start                       batch end
earliest        log start                         (refused)
latest          (refused)                         log end; last stable offset under read_committed
offsets         as given, -2 the start            as given, -1 the end
timestamps      first offset at or after          likewise; none: the end
                none: error, or the end with startingOffsetsByTimestampStrategy=latest
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.pipeline.errors import DataLossError, OffsetRangeError, OptionError
from tidelog.pipeline.files.read_count import ReadCount
from tidelog.pipeline.files.storage import for_each
from tidelog.pipeline.options.offset_json import EARLIEST, LATEST, PartitionOffsets
from tidelog.pipeline.options.options import OffsetSpec, SourceOptions
from tidelog.pipeline.plan.log_watch import LogWatch, Partition
from tidelog.pipeline.plan.rows import OffsetRange, ReadRequest
from tidelog.pipeline.plan.timestamps import first_offset_at_or_after


def find_bounds(
    options: SourceOptions, count: ReadCount | None = None, *, accepts_damage: bool = False
) -> list[Partition]:
    """Look up the chosen partitions and their bounds once; ``accepts_damage`` as ``LogWatch`` takes it.

    Raises PipelineError.
    """
    return LogWatch(options, accepts_damage=accepts_damage).partitions(count)


def batch_request(options: SourceOptions) -> ReadRequest:
    """Build the read request of a batch query with these options. Raises PipelineError."""
    count = ReadCount()
    partitions = find_bounds(options, count)
    ensure_named(options.starting, partitions)
    ensure_named(options.ending, partitions)
    ranges = for_each(
        partitions, lambda partition: partition.directory.path, lambda partition: _range(partition, options, count)
    )
    return ReadRequest(
        ranges=tuple(ranges),
        bytes_per_task=options.bytes_per_task,
        min_partitions=options.min_partitions,
        max_records_per_partition=options.max_records_per_partition,
        fail_on_data_loss=options.fail_on_data_loss,
        row_filter=options.row_filter,
        count=count,
    )


def ensure_named(spec: OffsetSpec, partitions: Iterable[Partition]) -> None:
    """Check that offsets or times by partition name exactly the chosen partitions, as Spark's Kafka source demands.
    Raises OptionError.
    """
    given = spec.offsets if spec.offsets is not None else spec.timestamps
    if given is None:
        return
    named = {(topic, number) for topic, numbers in given.items() for number in numbers}
    there = {(partition.directory.topic, partition.directory.partition) for partition in partitions}
    if named != there:
        missing = ", ".join(f"{topic}-{number}" for topic, number in sorted(there - named)) or "none"
        extra = ", ".join(f"{topic}-{number}" for topic, number in sorted(named - there)) or "none"
        raise OptionError(f"{spec.option} must name every partition: missing {missing}, unknown {extra}")


def _range(partition: Partition, options: SourceOptions, count: ReadCount) -> OffsetRange:
    start = starting_offset(partition, options, count)
    end = _ending_offset(partition, options, count)
    if start > end and partition.bounds.start <= end:
        raise OffsetRangeError(
            f"{partition.directory.topic}-{partition.directory.partition}: the range starts at {start} "
            f"({options.starting.option}) and ends at {end} ({options.ending.option})"
        )
    return OffsetRange(partition.directory, start, max(start, end))


def starting_offset(partition: Partition, options: SourceOptions, count: ReadCount | None = None) -> int:
    """Find the offset at which reading of a partition begins. Raises PipelineError."""
    spec = options.starting
    if spec.default is not None:
        return partition.bounds.start if spec.default == EARLIEST else partition.end
    if spec.offsets is not None:
        return _given_start(partition, spec, options)
    timestamp = _timestamp(partition, spec)
    found = first_offset_at_or_after(partition.directory, timestamp, partition.bounds.start, partition.end, count)
    if found is None and options.timestamp_strategy == "error":
        raise OffsetRangeError(
            f"{spec.option}: {partition.directory.topic}-{partition.directory.partition} has no record at or after "
            f"{timestamp} ms (startingOffsetsByTimestampStrategy=latest would begin at the end)"
        )
    return partition.end if found is None else found


def _given_start(partition: Partition, spec: OffsetSpec, options: SourceOptions) -> int:
    offset = _find_given(partition, spec, spec.offsets)
    if offset in (EARLIEST, LATEST):
        return partition.bounds.start if offset == EARLIEST else partition.end
    if offset > partition.end:
        raise _beyond_error(partition, spec, offset)
    if offset < partition.bounds.start:
        if options.fail_on_data_loss:
            raise DataLossError(
                f"{spec.option}: {partition.directory.topic}-{partition.directory.partition} begins at "
                f"{partition.bounds.start}, records from {offset} on are gone (failOnDataLoss=false would go on there)"
            )
        return partition.bounds.start
    return offset


def _ending_offset(partition: Partition, options: SourceOptions, count: ReadCount) -> int:
    spec = options.ending
    if spec.default is not None:
        return partition.end
    if spec.offsets is not None:
        offset = _find_given(partition, spec, spec.offsets)
        if offset == LATEST:
            return partition.end
        if offset > partition.end:
            raise _beyond_error(partition, spec, offset)
        return offset
    timestamp = _timestamp(partition, spec)
    found = first_offset_at_or_after(partition.directory, timestamp, partition.bounds.start, partition.end, count)
    return partition.end if found is None else found


def _timestamp(partition: Partition, spec: OffsetSpec) -> int:
    if spec.timestamp is not None:
        return spec.timestamp
    return _find_given(partition, spec, spec.timestamps)


def _find_given(partition: Partition, spec: OffsetSpec, given: PartitionOffsets | None) -> int:
    directory = partition.directory
    found = (given or {}).get(directory.topic, {}).get(directory.partition)
    if found is None:
        raise OptionError(f"{spec.option} must name every partition: missing {directory.topic}-{directory.partition}")
    return found


def _beyond_error(partition: Partition, spec: OffsetSpec, offset: int) -> OffsetRangeError:
    name = f"{partition.directory.topic}-{partition.directory.partition}"
    return OffsetRangeError(f"{spec.option}: offset {offset} of {name} is beyond the end of the log, {partition.end}")
