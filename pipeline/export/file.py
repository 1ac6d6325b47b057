"""The work of one export task: slices of segments become a Parquet file, or with ``split_by`` several. Another file has
the dead letters: bytes that could not be read, or could not be a row of the table.

    slices -> read_slice -> Arrow batches -> row groups -> staging/<run>/data/NAME
    a batch or record that cannot be a row -> one row of staging/<run>/dead-letter/NAME    its bytes and the reason
    a value that cannot be decoded -> its row, with value columns that are null, and a dead letter

With ``keep_damaged`` reading goes on after a damaged batch (``tidelog.pipeline.decode.past_damage``). A file is synced
before its name is reported, and a range without rows has no file.

Columns are those of ``format("tidelog")``; ``tidelog.pipeline.export.parquet`` describes how the file is
written and how it grows.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.decode.decode import Isolation, ReadOptions
from tidelog.pipeline.decode.past_damage import Damage, read_past_damage
from tidelog.pipeline.export.latest import latest_rows
from tidelog.pipeline.export.manifest import DATA, DEAD_LETTER, TableFile, id_text
from tidelog.pipeline.export.parquet import RowWriter
from tidelog.pipeline.export.store import LOCAL, TableStore
from tidelog.pipeline.options.columns import Columns, calendar_mask
from tidelog.pipeline.plan.plan import SegmentSlice
from tidelog.pipeline.plan.rows import LostRange
from tidelog.pipeline.values.columns import ValueColumns
from tidelog.protocol.record.record_batch import Record, build_batch

if TYPE_CHECKING:
    import pyarrow as pa


#: A file ends with the slice that reaches the wanted bytes of the log. It ends before a slice that would lead beyond
#: this multiple of them.
FILE_TOLERANCE = 1.25
_MAX_NAME = 255
"""Longest name in a directory, on most file systems. Object stores allow longer ones, but a table may be copied."""
_TOPIC_BEGINNING = 80
"""With the longest suffix, of a run, an attempt and an hour, a name then has 250 characters."""
_SPLIT_MICROSECONDS = {"hour": 3_600_000_000, "day": 86_400_000_000}


@dataclass(frozen=True, slots=True)
class FilePlan:
    """One file to write: consecutive slices of one partition, and the directory to stage it in.

    ``earlier_file``: path and description of an earlier, small file, to which these rows are appended.
    ``ends_in_name``: the file never grows, and its name has its end offset. ``split_by`` hour or day: one file for each
    hour or day of the rows, which are then held in memory. ``latest``: only the last row of each key, including
    deletes. ``keep_damaged``: damaged batches become dead letters; otherwise the first one is an error. ``store`` has
    the files; ``suffix`` follows the offsets in each name. ``values`` decodes values to columns.
    """

    slices: tuple[SegmentSlice, ...]
    staging: str
    start: int
    end: int
    earlier_file: tuple[str, TableFile] | None = None
    ends_in_name: bool = False
    headers: bool = True
    read_committed: bool = True
    keep_damaged: bool = True
    fail_on_data_loss: bool = True
    split_by: str = ""
    latest: bool = False
    store: TableStore = LOCAL
    suffix: str = ""
    values: ValueColumns | None = None

    @property
    def name(self) -> str:
        """The file's name, made of topic, topic id, partition and first offset; with ``ends_in_name`` also of the
        end."""
        if self.earlier_file is not None:
            return self.earlier_file[1].name
        return self.letters_name if self.ends_in_name else self._build_name((self.start,))

    @property
    def letters_name(self) -> str:
        """The name of the file with the dead letters of this range."""
        return self._build_name((self.start, self.end))

    def _build_name(self, offsets: tuple[int, ...]) -> str:
        first = self.slices[0]
        return file_name(first.topic, first.topic_id, first.partition, offsets, self.suffix)

    @property
    def log_bytes(self) -> int:
        """Number of bytes of the log that this file reads."""
        return sum(piece.size_bytes for piece in self.slices)


@dataclass(frozen=True, slots=True)
class FileResult:
    """Result of a plan: the files with rows, and the file of dead letters.

    ``rows``: those that are new, without those of an earlier file that grew. ``largest_timestamp``: the largest record
    time in ms, or -1. ``lost``: the ranges of offsets that were missing.
    """

    files: tuple[TableFile, ...]
    dead_letters: TableFile | None
    rows: int
    largest_timestamp: int
    lost: tuple[LostRange, ...] = ()


@dataclass(slots=True)
class DeadLetters:
    """The rows of dead letters of one file's range."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, damage: Damage) -> None:
        """Add bytes that could not be read."""
        self.rows.append(
            {
                "topic": damage.piece.topic,
                "partition": damage.piece.partition,
                "offset": damage.offset,
                "file": damage.piece.path,
                "position": damage.position,
                "size": damage.size,
                "reason": damage.reason,
                "bytes": damage.data,
            }
        )

    def add_keyless(self, batch: pa.RecordBatch) -> None:
        """Add the values of records that have no key."""
        self.add_rows(batch, ["the record has no key, which a table of latest values needs"] * batch.num_rows)

    def add_rows(self, batch: pa.RecordBatch, reasons: Sequence[str]) -> None:
        """Add the values of records, each with a reason."""
        rows = batch.select(["topic", "partition", "offset", "value"]).to_pylist()
        for row, reason in zip(rows, reasons, strict=True):
            data = row.pop("value") or b""
            self.rows.append({**row, "file": "", "position": -1, "size": len(data), "reason": reason, "bytes": data})

    def add_records(self, batch: pa.RecordBatch, reason: str) -> None:
        """Add whole records, each encoded as a batch. ``reason`` has a placeholder for the timestamp in ms."""
        import pyarrow as pa

        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        for row, time in zip(batch.drop_columns(["timestamp"]).to_pylist(), times, strict=True):
            headers = [(header["key"], header["value"]) for header in row.get("headers") or ()]
            data = bytes(build_batch([Record(row["offset"], time // 1000, row["key"], row["value"], headers)]))
            identity = {name: row[name] for name in ("topic", "partition", "offset")}
            content = {"size": len(data), "reason": reason.format(time // 1000), "bytes": data}
            self.rows.append({**identity, "file": "", "position": -1, **content})


def file_name(topic: str, topic_id: bytes | None, partition: int, offsets: tuple[int, ...], suffix: str = "") -> str:
    """Make the name ``<topic>-<topic id>-<partition>-<start>[-<end>]<suffix>.parquet``, offsets in 20 digits.

    A name that is too long for a directory has ``short_topic``.
    """
    numbers = "-".join(f"{offset:020d}" for offset in offsets)
    rest = f"-{id_text(topic_id)}-{partition}-{numbers}{suffix}.parquet"
    return f"{topic if len(topic) + len(rest) <= _MAX_NAME else short_topic(topic)}{rest}"


def short_topic(topic: str) -> str:
    """Return the beginning of a topic's name with a hash of the whole name, for names of files that would be too
    long."""
    return f"{topic[:_TOPIC_BEGINNING]}-{hashlib.sha256(topic.encode()).hexdigest()[:32]}"


def write_file(plan: FilePlan) -> FileResult:
    """Write the plan's file into its staging directory. Raises PipelineError, OSError."""
    letters = DeadLetters()
    lost: list[LostRange] = []
    batches, largest_read = _batches(plan, letters, lost), -1
    # Before latest_rows: a record that becomes a dead letter must not replace an earlier row of its key.
    if plan.split_by:
        batches = _keep_calendar_rows(batches, letters)
    if plan.latest:
        rows = latest_rows(batches, letters.add_keyless)
        batches, largest_read = iter(rows.batches()), rows.largest_timestamp
    if plan.values is not None:
        batches = _with_values(plan.values, batches, letters)
    own = replace(plan, suffix=plan.suffix + plan.store.attempt_suffix())
    files, largest = _write_split(own, batches) if plan.split_by else _write_whole(own, batches)
    dead = None
    if letters.rows:
        path = os.path.join(plan.staging, DEAD_LETTER, plan.letters_name)
        _write_dead_letters(path, letters, plan.store)
        dead = table_file(replace(plan, earlier_file=None, ends_in_name=True), path, len(letters.rows))
    return FileResult(files, dead, _count_new(files, plan.earlier_file), max(largest, largest_read), tuple(lost))


def _count_new(files: Iterable[TableFile], earlier_file: tuple[str, TableFile] | None) -> int:
    """Count the rows of files without those of the earlier file that one of them continues."""
    earlier = None if earlier_file is None else earlier_file[1]
    old = (earlier.rows for file in files if earlier is not None and file.start == earlier.start)
    return sum(file.rows for file in files) - sum(old)


def _with_values(
    values: ValueColumns, batches: Iterator[pa.RecordBatch], letters: DeadLetters
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        full, wrong = values.add_to(batch)
        if wrong:
            letters.add_rows(batch.take(pa.array(sorted(wrong), pa.int64())), [wrong[row] for row in sorted(wrong)])
        yield full


def _schema(plan: FilePlan) -> pa.Schema:
    """Return the columns of a record, followed by those of its decoded value."""
    import pyarrow as pa

    record = Columns.default(headers=plan.headers).arrow_schema()
    return record if plan.values is None else pa.schema([*record, *plan.values.fields()])


def _write_whole(plan: FilePlan, batches: Iterator[pa.RecordBatch]) -> tuple[tuple[TableFile, ...], int]:
    """Write all rows into one file; returns it and the largest record time."""
    plan, writer = _open_writer(plan)
    writer.write(batches)
    file = _finish(plan, writer)
    return () if file is None else (file,), writer.largest_timestamp


def _keep_calendar_rows(batches: Iterator[pa.RecordBatch], letters: DeadLetters) -> Iterator[pa.RecordBatch]:
    """Yield the rows with a time in the years 1 to 9999; the others become dead letters."""
    import pyarrow.compute as pc

    for batch in batches:
        fits = calendar_mask(batch)
        strange: Any = batch.filter(pc.invert(fits))
        letters.add_records(strange, "timestamp {} ms lies outside of the years 1 to 9999")
        yield batch.filter(fits) if strange.num_rows else batch


def _write_split(plan: FilePlan, batches: Iterator[pa.RecordBatch]) -> tuple[tuple[TableFile, ...], int]:
    """Write the rows of each hour or day into a file of its own; returns them and the largest record time."""
    import numpy as np
    import pyarrow as pa

    table = pa.Table.from_batches(list(batches), _schema(plan))
    numbers = table.column("timestamp").cast(pa.int64()).to_numpy() // _SPLIT_MICROSECONDS[plan.split_by]
    files, largest = [], -1
    for number in np.unique(numbers).tolist():
        part = replace(plan, suffix=f"{plan.suffix}-{plan.split_by[0]}{number}")
        path = _staged_path(part)
        writer = RowWriter(path, table.schema, _origin(plan), plan.store)
        writer.write(table.filter(pa.array(numbers == number)).to_batches())
        writer.close()
        files.append(table_file(part, path, writer.rows))
        largest = max(largest, writer.largest_timestamp)
    return tuple(files), largest


def table_file(plan: FilePlan, path: str, rows: int) -> TableFile:
    """Describe the finished file at ``path``, with ``rows`` new rows, for a manifest."""
    first = plan.slices[0]
    if plan.earlier_file is not None:
        return _extend(plan, plan.earlier_file[1], rows=rows, size=plan.store.size_of(path))
    return TableFile(
        name=plan.name,
        topic=first.topic,
        topic_id=id_text(first.topic_id),
        partition=first.partition,
        start=plan.start,
        end=plan.end,
        rows=rows,
        size=plan.store.size_of(path),
        log_bytes=plan.log_bytes,
    )


def _extend(plan: FilePlan, earlier: TableFile, *, rows: int, size: int) -> TableFile:
    return replace(
        earlier, end=plan.end, rows=earlier.rows + rows, size=size, log_bytes=earlier.log_bytes + plan.log_bytes
    )


def _open_writer(plan: FilePlan) -> tuple[FilePlan, RowWriter]:
    """Open the writer of the plan's file; return the plan, without ``earlier_file`` if that cannot grow, and the
    writer."""
    writer = RowWriter(_staged_path(plan), _schema(plan), _origin(plan), plan.store)
    if plan.earlier_file is None or writer.begin_with(plan.earlier_file[0]):
        return plan, writer
    writer.give_up()
    return _open_writer(replace(plan, earlier_file=None))


def _finish(plan: FilePlan, writer: RowWriter) -> TableFile | None:
    """Finish the file and describe it. Without new rows nothing is staged; an earlier file then only covers more
    offsets."""
    if writer.rows:
        writer.close()
        return table_file(plan, _staged_path(plan), writer.rows)
    writer.give_up()
    if plan.earlier_file is None:
        return None
    _, earlier = plan.earlier_file
    return _extend(plan, earlier, rows=0, size=earlier.size)


def _staged_path(plan: FilePlan) -> str:
    return os.path.join(plan.staging, DATA, plan.name)


def _origin(plan: FilePlan) -> dict[str, str]:
    """Return the key-value metadata of the Parquet file: the partition and the offsets from which its rows come."""
    first = plan.slices[0]
    start = plan.start if plan.earlier_file is None else plan.earlier_file[1].start
    return {
        "tidelog.topic": first.topic,
        "tidelog.topic-id": id_text(first.topic_id),
        "tidelog.partition": str(first.partition),
        "tidelog.offsets": f"{start} {plan.end}",
    }


# ---- dead letters


def _write_dead_letters(path: str, letters: DeadLetters, store: TableStore) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    part = store.part_of(path)
    try:
        with store.open_output(part) as sink:
            pq.write_table(pa.Table.from_pylist(letters.rows, dead_letter_schema()), sink, compression="zstd")
        store.finish(part)
        store.put_in_place(part, path)
    except BaseException:
        with suppress(OSError):
            store.remove(part)
        raise


def dead_letter_schema() -> pa.Schema:
    """Return the columns of the dead-letter table: where the bytes were found, the reason, and the bytes."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("topic", pa.string()),
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),  # of the record, or the base offset that a damaged batch has
            pa.field("file", pa.string()),
            pa.field("position", pa.int64()),
            pa.field("size", pa.int64()),
            pa.field("reason", pa.string()),
            pa.field("bytes", pa.binary()),
        ]
    )


def _batches(plan: FilePlan, letters: DeadLetters, lost: list[LostRange]) -> Iterator[pa.RecordBatch]:
    isolation = Isolation.READ_COMMITTED if plan.read_committed else Isolation.READ_UNCOMMITTED
    options = ReadOptions(isolation, plan.fail_on_data_loss, lost=lost)
    keep = letters.add if plan.keep_damaged else None
    return read_past_damage(plan.slices, Columns.default(headers=plan.headers), options, keep)


def group_slices(slices: Sequence[SegmentSlice], file_bytes: int) -> list[tuple[SegmentSlice, ...]]:
    """Group slices of one partition into files of about ``file_bytes`` of the log."""
    groups: list[tuple[SegmentSlice, ...]] = []
    group: list[SegmentSlice] = []
    size = 0
    for piece in slices:
        if group and size + piece.size_bytes > file_bytes * FILE_TOLERANCE:
            groups.append(tuple(group))
            group, size = [], 0
        group.append(piece)
        size += piece.size_bytes
        if size >= file_bytes:
            groups.append(tuple(group))
            group, size = [], 0
    if group:
        groups.append(tuple(group))
    return groups
