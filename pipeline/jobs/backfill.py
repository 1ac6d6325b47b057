"""The backfill job: writes the rows of Parquet files into a topic, each once.

    a task per file: row groups -> rows -> transactions into the topic (tidelog.pipeline.jobs.writing); a row's number
    is its index in the file

Columns are those of an exported table. ``value`` is required. Optional are ``key``, ``timestamp`` (default: now),
``headers``, and ``partition`` (default: that of Kafka's producer, ``sink.rows``). Key and value are bytes or text. The
columns ``topic``, ``offset`` and ``timestampType`` are ignored, because the target's log assigns its own. Any other
column is refused, because it would be lost. A file is identified by its path and its first bytes: at most 1 MiB, and
up to about the end of the first row group. So if a file has grown since, as in an exported table, only its new rows are
written, while other content at the same path is another file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.errors import one_line
from tidelog.pipeline.job_errors import BadRequestError
from tidelog.pipeline.jobs.progress import Progress
from tidelog.pipeline.jobs.runner import Task, context_of, run_tasks
from tidelog.pipeline.jobs.writing import (
    CHUNK_BYTES,
    Chunks,
    Target,
    TopicWriter,
    check_broker,
    check_names,
    read_written,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_IGNORED = ("topic", "offset", "timestampType")
SUFFIX = ".parquet"
IDENTIFYING_BYTES = 1024 * 1024
_BATCH_ROWS = 8192


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """Request of a backfill: Parquet files (or directories of them), and the target of their rows.

    ``name``: all runs with one name together write each row once."""

    files: tuple[str, ...]
    target: Target
    name: str


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """One task: a file and its writer. ``number`` is the first partition for rows without key, so that files use
    different ones."""

    path: str
    writer: str
    target: Target
    number: int


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """Number of rows written from one file: ``rows`` by this run, ``before`` by earlier runs."""

    path: str
    rows: int
    before: int


def find_files(paths: Iterable[str]) -> list[str]:
    """Find the Parquet files among the paths, and in the directories among them. Raises BadRequestError."""
    found: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            inside = sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith(SUFFIX))
            if not inside:
                raise BadRequestError(f"{path} holds no {SUFFIX} file: expected Parquet files")
            found += inside
        elif os.path.isfile(path):
            found.append(path)
        else:
            raise BadRequestError(f"{path} does not exist: expected a Parquet file or a directory of them")
    return list(dict.fromkeys(map(os.path.abspath, found)))


def backfill(
    spark: SparkSession | None, request: BackfillRequest, progress: Progress | None = None
) -> list[BackfillResult]:
    """Write the files' rows into the target topic, each row once per ``request.name``, even if the job is repeated
    within the broker's ``offsets.retention.minutes``.

    ``spark`` None does the work in this process, one file after the other. After a run that was killed, the next one
    continues after the last committed row. Readers must use ``read_committed``. The results are in the order of the
    files. Raises BadRequestError before anything is written, or when a value does not fit its column; PipelineError.
    """
    check_names(request.target, request.name)
    paths = find_files(request.files)
    for path in paths:
        sink_schema(path)
    check_broker(request.target)
    slots = 1 if spark is None else min(len(paths), context_of(spark).defaultParallelism)
    target = request.target.share(slots)
    plans = [BackfillPlan(path, _writer(request.name, path), target, number) for number, path in enumerate(paths)]
    for plan in plans:
        read_written(target, plan.writer)  # raises if this name wrote to another topic
    tasks = [Task(plan.path, os.path.getsize(plan.path), plan) for plan in plans]
    return run_tasks(spark, tasks, backfill_file, progress or Progress("backfill", quiet=True))


def _writer(name: str, path: str) -> str:
    identity = hashlib.sha256(path.encode() + b"\0" + _read_beginning(path)).hexdigest()[:24]
    return f"backfill-{name}-{identity}"


def _read_beginning(path: str) -> bytes:
    """Read as many bytes from the file's beginning as its first row group has, at most ``IDENTIFYING_BYTES``.

    They lie before the footer, so they stay when the file grows.
    """
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path)
    if not metadata.num_row_groups:
        return b""
    group = metadata.row_group(0)
    size = sum(group.column(number).total_compressed_size for number in range(group.num_columns))
    with open(path, "rb") as file:
        return file.read(min(size, IDENTIFYING_BYTES))


def sink_schema(path: str) -> pa.Schema:
    """Return the schema of the columns to write, in the types of the sink. Raises BadRequestError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise BadRequestError(f"{path} is not a Parquet file: {one_line(error)}") from error
    fields = [_field(path, field) for field in schema if field.name not in _IGNORED]
    if "value" not in schema.names:
        raise BadRequestError(f"{path} has no column value: expected one of type string or binary")
    return pa.schema(fields)


def _field(path: str, field: Any) -> Any:
    import pyarrow as pa
    import pyarrow.types as kinds

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    is_bytes = _is_text_or_bytes(field.type)
    known = {
        "key": (is_bytes, pa.binary(), "string or binary"),
        "value": (is_bytes, pa.binary(), "string or binary"),
        "partition": (kinds.is_integer(field.type), pa.int32(), "an integer"),
        "timestamp": (kinds.is_timestamp(field.type), pa.timestamp("us", tz="UTC"), "a timestamp"),
        "headers": (_are_headers(field.type), pa.list_(header), "a list of (key, value), as text and bytes"),
    }
    if field.name not in known:
        raise BadRequestError(
            f"{path}: column {field.name} cannot be written; expected some of {', '.join((*known, *_IGNORED))}"
        )
    fits, target, expected = known[field.name]
    if not fits:
        raise BadRequestError(f"{path}: column {field.name} has type {field.type}, expected {expected}")
    return pa.field(field.name, target)


def _are_headers(kind: Any) -> bool:
    import pyarrow.types as kinds

    if not kinds.is_list(kind) or not kinds.is_struct(kind.value_type):
        return False
    found = {field.name: field.type for field in kind.value_type}
    return set(found) == {"key", "value"} and all(_is_text_or_bytes(one) for one in found.values())


def _is_text_or_bytes(kind: Any) -> bool:
    import pyarrow.types as kinds

    checks = (kinds.is_binary, kinds.is_string, kinds.is_large_binary, kinds.is_large_string)
    return any(check(kind) for check in checks)


def backfill_file(plan: BackfillPlan) -> BackfillResult:
    """Write one file's rows. Raises PipelineError, OSError."""
    with TopicWriter(plan.target, plan.writer, first_partition=plan.number) as writer:
        done = before = writer.begin(0)
        chunks = Chunks(plan.target.chunk_rows)
        for batch in _rows(plan.path, before):
            for chunk in chunks.add(batch):
                done += sum(part.num_rows for part in chunk)
                writer.write(chunk, done - 1)
        if rest := chunks.rest():
            done += sum(part.num_rows for part in rest)
            writer.write(rest, done - 1)
    return BackfillResult(plan.path, done - before, before)


def _rows(path: str, skipped: int) -> Iterator[pa.RecordBatch]:
    """Yield the file's rows after the first ``skipped``, row group by row group."""
    import pyarrow.parquet as pq

    schema = sink_schema(path)
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            found = file.metadata.row_group(group)
            rows = found.num_rows
            if skipped >= rows:
                skipped -= rows
                continue
            fitting = max(1, min(_BATCH_ROWS, CHUNK_BYTES * rows // max(found.total_byte_size, 1)))
            for batch in file.iter_batches(fitting, row_groups=[group], columns=schema.names):
                left = batch.slice(min(skipped, batch.num_rows))
                skipped -= batch.num_rows - left.num_rows
                if left.num_rows:
                    yield _convert(path, left.select(schema.names), schema)


def _convert(path: str, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch to the sink's types; times are rounded down to microseconds. Raises BadRequestError for a value
    that does not fit."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = []
    for field, column in zip(schema, batch.columns, strict=True):
        try:
            if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
                # In UTC: in another zone, a local time that comes twice would be an error.
                column = pc.floor_temporal(column.cast(pa.timestamp("ns", tz="UTC")), unit="microsecond")
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            raise BadRequestError(f"{path}: column {field.name} has a value that cannot be written: {error}") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def report(results: list[BackfillResult], request: BackfillRequest) -> list[str]:
    """Build the lines that the command prints."""
    lines = []
    for result in results:
        line = f"{result.path}: {result.rows:,} rows"
        if result.before:
            line += f"; {result.before:,} were written by earlier runs under the name {request.name}"
        lines.append(line)
    return lines
