"""The replay job: writes a range of a log's committed records into a topic again, in order, each once.

    a task per source partition: slices of its segments -> rows, with a header ``replayed-from`` =
    ``topic-partition@offset`` -> transactions into the topic (tidelog.pipeline.jobs.writing), each with the source
    offset of its last row, after which the next run continues

Keys, values, headers and timestamps are kept. Records go to the partition that they come from, or with ``by_key`` to
the one of their key's hash. If the job is run again under the same name, it continues after the last written record and
writes no record twice. The brokers must still have the offset that it committed, which by default expires after 7 days
(``jobs.writing``). Another name starts from the beginning. A range that begins before the one written under the name is
refused, and so is another target topic on the same brokers. Other brokers have no record of earlier runs, so a replay
to them starts from the beginning. The source topic may also be the target: the range is fixed at the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tidelog.pipeline.decode.decode import Isolation, read_slice
from tidelog.pipeline.export.manifest import id_text
from tidelog.pipeline.job_errors import BadRequestError
from tidelog.pipeline.jobs.progress import Progress
from tidelog.pipeline.jobs.runner import Task, context_of, run_tasks
from tidelog.pipeline.jobs.writing import (
    Chunks,
    Target,
    TopicWriter,
    check_broker,
    check_names,
    partitions_of,
    read_written,
    topic_exists,
)
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.options.options import SourceOptions, parse_options
from tidelog.pipeline.plan.plan import OffsetRange, ReadRequest, SegmentSlice, plan_range
from tidelog.pipeline.plan.request import batch_request
from tidelog.pipeline.scan.bounds import first_millisecond

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

HEADER = "replayed-from"
_COLUMNS = Columns(("key", "value", "partition", "offset", "timestamp", "headers"))


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Request of a replay: the range, the target and the run's name. ``source``: see :func:`replay_source`."""

    source: SourceOptions
    target: Target
    name: str
    by_key: bool = False


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """One task: a range of one partition, its target, and the name of its writer in the transactional id."""

    topic: str
    partition: int
    start: int
    end: int
    slices: tuple[SegmentSlice, ...]
    target: Target
    writer: str
    by_key: bool

    @property
    def size(self) -> int:
        """Bytes of the log to read."""
        return sum(piece.size_bytes for piece in self.slices)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The replayed range of one partition: offsets ``start`` to below ``end``.

    This run began at offset ``resumed``, and wrote ``rows`` rows.
    """

    topic: str
    partition: int
    start: int
    end: int
    resumed: int
    rows: int


def replay_source(paths: str, choice: dict[str, str], begin: str | None, end: str | None) -> SourceOptions:
    """Build the options of a range.

    ``begin`` is ``earliest``, ``end`` is ``latest``, or each is a time (ms or ISO 8601) or offsets in JSON.

    ``choice`` has one of subscribe, subscribePattern, assign. Raises OptionError, BadRequestError.
    """
    options = {"path": paths, "includeHeaders": "true", "kafka.isolation.level": "read_committed", **choice}
    options["startingOffsetsByTimestampStrategy"] = "latest"
    for name, option, text, default in (
        ("starting", "--from", begin, "earliest"),
        ("ending", "--until", end, "latest"),
    ):
        if text is None or text == default or text.lstrip().startswith("{"):
            options[f"{name}Offsets"] = text or default
        else:
            options[f"{name}Timestamp"] = str(moment(text, option))
    return parse_options(options)


def moment(text: str, option: str) -> int:
    """Parse a time to ms since 1970, rounded up, 0 for a time before 1970; without a zone the time is UTC. Raises
    BadRequestError, which names the ``option``."""
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        expected = {
            "--from": "earliest, ms since 1970, an ISO 8601 time, or offsets in JSON",
            "--until": "latest, ms since 1970, an ISO 8601 time, or offsets in JSON",
        }
        wanted = expected.get(option, "ms since 1970 or an ISO 8601 time")
        raise BadRequestError(f"{option} {text}: expected {wanted}") from None
    return max(first_millisecond(found if found.tzinfo else found.replace(tzinfo=UTC)), 0)


def replay(spark: SparkSession | None, request: ReplayRequest, progress: Progress | None = None) -> list[ReplayResult]:
    """Write the committed records of a range into the target topic again, each once per ``request.name``.

    ``spark`` None does the work in this process, one partition after the other. Records keep order, key, value, headers
    and time, and get the header ``replayed-from``. After a run that was killed, the next one continues after the last
    committed record. Readers must use ``read_committed``. The results are in the order of the partitions. Raises
    BadRequestError before anything is written, PipelineError.
    """
    check_names(request.target, request.name)
    ranges = batch_request(request.source).ranges
    slots = 1 if spark is None else min(len(ranges), context_of(spark).defaultParallelism)
    plans = [_plan(wanted, request, request.target.share(slots)) for wanted in ranges if wanted.start < wanted.end]
    if plans:
        check_broker(request.target)
        _check_partitions(plans, request)
        _check_starts(plans, request)
    tasks = [Task(f"{plan.topic}-{plan.partition}", plan.size, plan) for plan in plans]
    return run_tasks(spark, tasks, replay_partition, progress or Progress("replay", quiet=True))


def _check_partitions(plans: list[ReplayPlan], request: ReplayRequest) -> None:
    """Raise BadRequestError, before anything is written, if records keep partitions that the target does not have."""
    largest = max(plan.partition for plan in plans)
    if request.by_key:
        return
    if largest and not topic_exists(request.target):  # a topic that the broker creates may have too few
        raise BadRequestError(
            f"--to {request.target.topic}: the topic does not exist: expected one with {largest + 1} partitions, "
            "or --by-key"
        )
    if largest >= (count := partitions_of(request.target)):
        raise BadRequestError(
            f"--to {request.target.topic}: the topic has {count} partitions, records come from partition {largest}: "
            "expected a topic with as many partitions, or --by-key"
        )


def _check_starts(plans: list[ReplayPlan], request: ReplayRequest) -> None:
    """Raise BadRequestError, before anything is written, if records of this range would not be written.

    They would not if the range written under the name begins later, or was written to another topic.
    """
    for plan in plans:
        written = read_written(request.target, plan.writer)
        if written.first is not None and plan.start < written.first:
            raise BadRequestError(
                f"--name {request.name}: under this name {plan.topic}-{plan.partition} was written from offset "
                f"{written.first} to {written.last}, and the range begins before it, at {plan.start}: expected another "
                f"--name for the earlier range, or --from at {written.first} or later"
            )


def _plan(wanted: OffsetRange, request: ReplayRequest, target: Target) -> ReplayPlan:
    directory = wanted.directory
    read = ReadRequest((), request.source.bytes_per_task)
    writer = f"replay-{request.name}-{directory.topic}-{id_text(directory.topic_id)}-{directory.partition}"
    return ReplayPlan(
        directory.topic,
        directory.partition,
        wanted.start,
        wanted.end,
        tuple(plan_range(wanted, read)),
        target,
        writer,
        request.by_key,
    )


def replay_partition(plan: ReplayPlan) -> ReplayResult:
    """Replay one partition's range. Raises PipelineError, OSError."""
    rows = 0
    with TopicWriter(plan.target, plan.writer, first_partition=plan.partition) as writer:
        begin = writer.begin(plan.start)
        chunks = Chunks(plan.target.chunk_rows)
        for piece in plan.slices:
            if piece.end_offset <= begin:
                continue
            for batch in read_slice(piece, _COLUMNS, isolation=Isolation.READ_COMMITTED):
                for chunk in chunks.add(_select_rows_from(batch, begin)):
                    rows += _write(writer, chunk, plan)
        if rest := chunks.rest():
            rows += _write(writer, rest, plan)
    return ReplayResult(plan.topic, plan.partition, plan.start, plan.end, begin, rows)


def _select_rows_from(batch: pa.RecordBatch, begin: int) -> pa.RecordBatch:
    """Return the rows of a batch from offset ``begin`` on."""
    offsets = batch.column("offset").to_numpy()
    return batch.slice(int(offsets.searchsorted(begin)))


def _write(writer: TopicWriter, chunk: list[pa.RecordBatch], plan: ReplayPlan) -> int:
    last = chunk[-1].column("offset")[-1].as_py()
    marked = [mark(batch, f"{plan.topic}-{plan.partition}", keep_partition=not plan.by_key) for batch in chunk]
    writer.write(marked, last)
    return sum(batch.num_rows for batch in chunk)


def mark(batch: pa.RecordBatch, source: str, *, keep_partition: bool) -> pa.RecordBatch:
    """Build rows for the sink, with ``replayed-from`` as their last header; ``source``: ``topic-partition``."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    headers = batch.column("headers")
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy().astype(np.int64)
    old = headers.flatten()
    origin = pc.binary_join_element_wise(f"{source}@", batch.column("offset").cast(pa.string()), "").cast(pa.binary())
    names = pa.array([HEADER] * batch.num_rows, pa.string())
    new = pa.StructArray.from_arrays([names, origin], fields=list(old.type))
    ends = np.cumsum(counts + 1)
    take = np.empty(int(ends[-1]) if len(ends) else 0, np.int64)
    is_new = np.zeros(len(take), np.bool_)
    is_new[ends - 1] = True
    take[is_new] = len(old) + np.arange(batch.num_rows)
    take[~is_new] = np.arange(len(old))
    flat = pa.concat_arrays([old, new]).take(pa.array(take))
    starts = pa.array(np.concatenate(([0], ends)), pa.int32())
    marked = pa.ListArray.from_arrays(starts, flat)
    names_kept = ["key", "value", "timestamp", *(["partition"] if keep_partition else [])]
    columns = [batch.column(name) for name in names_kept]
    return pa.RecordBatch.from_arrays([*columns, marked], names=[*names_kept, "headers"])


def report(results: list[ReplayResult], request: ReplayRequest) -> list[str]:
    """Build the lines that the command prints."""
    lines = []
    for result in results:
        line = (
            f"{result.topic}-{result.partition}: {result.rows:,} records of offsets {result.start} to {result.end - 1}"
        )
        if result.resumed > result.start:
            line += f"; below {result.resumed} they were written by earlier runs under the name {request.name}"
        lines.append(line)
    return lines or ["nothing in the range"]
