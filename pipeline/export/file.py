"""The work of one export task: the slices of one file become a Parquet file, damaged bytes a second one.

    slices -> read_slice -> Arrow batches -> row groups -> staging/<run>/data/NAME         zstd
    a batch that cannot be read -> one row of staging/<run>/dead-letter/NAME               its bytes and the reason

Reading goes on after a damaged batch by the rule of ``tidelog.log.segment.resync``, as an audit does. A file is synced
before its name is reported, and a range without rows has no file.

Columns are those of ``format("tidelog")``; ``tidelog.pipeline.export.parquet`` says how the file is
written and how it grows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tidelog.log.segment.batch_scan import iter_batches
from tidelog.log.segment.resync import find_resume_position
from tidelog.pipeline.decode.decode import Isolation, ReadOptions, read_slice
from tidelog.pipeline.errors import CorruptBatchError, MalformedTimestampError
from tidelog.pipeline.export.manifest import DATA, DEAD_LETTER, TableFile, id_text
from tidelog.pipeline.export.parquet import RowWriter, sync_file
from tidelog.pipeline.files.batch_walk import header_at
from tidelog.pipeline.files.segment_files import OpenSegment, SegmentFile
from tidelog.pipeline.files.sparse_index import indexed_batches
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.plan.plan import SegmentSlice
from tidelog.pipeline.plan.rows import LostRange
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.record.record_batch import MAGIC_V2
from tidelog.protocol.record.record_batch import iter_batches as iter_entries

if TYPE_CHECKING:
    import pyarrow as pa

#: Of a damaged batch so many bytes are kept.
DEAD_LETTER_BYTES = 16 * 1024 * 1024
#: The latest time whose microseconds fit 64 bits.
MAX_MILLISECONDS = (2**63 - 1) // 1000


@dataclass(frozen=True, slots=True)
class FilePlan:
    """One file to write: slices of one partition, one after the other, and where to stage it.

    ``grows`` is an earlier, small file and its path: these rows are appended to its own. ``ends_in_name`` says that
    the file never grows, and its name tells where it ends.
    """

    slices: tuple[SegmentSlice, ...]
    staging: str
    start: int
    end: int
    grows: tuple[str, TableFile] | None = None
    ends_in_name: bool = False
    headers: bool = True
    read_committed: bool = True
    keep_damaged: bool = True
    fail_on_data_loss: bool = True

    @property
    def name(self) -> str:
        """The file's name: a function of topic id, partition and first offset; with ``ends_in_name`` of the end too."""
        if self.grows is not None:
            return self.grows[1].name
        return self.letters_name if self.ends_in_name else self._named((self.start,))

    @property
    def letters_name(self) -> str:
        """The name of the dead letters of this range."""
        return self._named((self.start, self.end))

    def _named(self, offsets: tuple[int, ...]) -> str:
        first = self.slices[0]
        return file_name(first.topic, first.topic_id, first.partition, offsets)

    @property
    def log_bytes(self) -> int:
        """Number of bytes of the log that this file reads."""
        return sum(piece.size_bytes for piece in self.slices)


@dataclass(frozen=True, slots=True)
class FileResult:
    """Result of a plan: the file and the dead letters, None without rows; the largest record time in ms or -1; the
    ranges of offsets that were found missing."""

    file: TableFile | None
    dead_letters: TableFile | None
    largest_timestamp: int
    lost: tuple[LostRange, ...] = ()


@dataclass(slots=True)
class DeadLetters:
    """Damaged batches of one file's range."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, piece: SegmentSlice, place: tuple[int, int, int], reason: str, data: bytes) -> None:
        """Keep ``data``; ``place`` is its offset, byte position and size in the slice's file."""
        offset, position, size = place
        self.rows.append(
            {
                "topic": piece.topic,
                "partition": piece.partition,
                "offset": offset,
                "file": piece.path,
                "position": position,
                "size": size,
                "reason": reason,
                "bytes": data,
            }
        )


def file_name(topic: str, topic_id: bytes | None, partition: int, offsets: tuple[int, ...]) -> str:
    """``<topic>-<topic id>-<partition>-<start>.parquet`` or ``...-<start>-<end>.parquet``, offsets in 20 digits."""
    numbers = "-".join(f"{offset:020d}" for offset in offsets)
    return f"{topic}-{id_text(topic_id)}-{partition}-{numbers}.parquet"


def write_file(plan: FilePlan) -> FileResult:
    """Write the plan's file into its staging directory. Raises PipelineError, OSError."""
    letters = DeadLetters()
    lost: list[LostRange] = []
    plan, writer = _open_writer(plan)
    try:
        writer.write(_batches(plan, letters, lost))
    except BaseException:
        writer.give_up()
        raise
    file = _finished(plan, writer)
    dead = None
    if letters.rows:
        path = os.path.join(plan.staging, DEAD_LETTER, plan.letters_name)
        _write_dead_letters(path, letters)
        dead = table_file(replace(plan, grows=None, ends_in_name=True), path, len(letters.rows))
    return FileResult(file, dead, writer.largest_timestamp, tuple(lost))


def table_file(plan: FilePlan, path: str, rows: int) -> TableFile:
    """The finished file at ``path``, with so many new rows, as a manifest names it."""
    first = plan.slices[0]
    if plan.grows is not None:
        return _longer(plan, plan.grows[1], rows=rows, size=os.path.getsize(path))
    return TableFile(
        name=plan.name,
        topic=first.topic,
        topic_id=id_text(first.topic_id),
        partition=first.partition,
        start=plan.start,
        end=plan.end,
        rows=rows,
        size=os.path.getsize(path),
        log_bytes=plan.log_bytes,
    )


def _longer(plan: FilePlan, earlier: TableFile, *, rows: int, size: int) -> TableFile:
    return replace(
        earlier, end=plan.end, rows=earlier.rows + rows, size=size, log_bytes=earlier.log_bytes + plan.log_bytes
    )


def _open_writer(plan: FilePlan) -> tuple[FilePlan, RowWriter]:
    """The writer of the plan's file, and the plan: without growth where the earlier file cannot grow."""
    writer = RowWriter(_staged(plan), Columns.all(headers=plan.headers).arrow_schema(), _origin(plan))
    if plan.grows is None:
        return plan, writer
    try:
        if writer.begin_with(plan.grows[0]):
            return plan, writer
    except BaseException:
        writer.give_up()
        raise
    writer.give_up()
    return _open_writer(replace(plan, grows=None))


def _finished(plan: FilePlan, writer: RowWriter) -> TableFile | None:
    """The file as the table has it; one that gets no rows is not staged, and only covers more offsets."""
    if writer.rows:
        writer.close()
        return table_file(plan, _staged(plan), writer.rows)
    writer.give_up()
    return None if plan.grows is None else _longer(plan, plan.grows[1], rows=0, size=plan.grows[1].size)


def _staged(plan: FilePlan) -> str:
    return os.path.join(plan.staging, DATA, plan.name)


def _origin(plan: FilePlan) -> dict[str, str]:
    first = plan.slices[0]
    start = plan.start if plan.grows is None else plan.grows[1].start
    return {
        "tidelog.topic": first.topic,
        "tidelog.topic-id": id_text(first.topic_id),
        "tidelog.partition": str(first.partition),
        "tidelog.offsets": f"{start} {plan.end}",
    }


# ---- dead letters


def _write_dead_letters(path: str, letters: DeadLetters) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(letters.rows, dead_letter_schema()), path, compression="zstd")
    sync_file(path)


def dead_letter_schema() -> pa.Schema:
    """The columns of the dead-letter table: where the bytes lie, why they are no records, and the bytes."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("topic", pa.string()),
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),  # of the damaged batch as far as it can be known, -1 otherwise
            pa.field("file", pa.string()),
            pa.field("position", pa.int64()),
            pa.field("size", pa.int64()),
            pa.field("reason", pa.string()),
            pa.field("bytes", pa.binary()),
        ]
    )


# ---- reading on after damage


def _batches(plan: FilePlan, letters: DeadLetters, lost: list[LostRange]) -> Iterator[pa.RecordBatch]:
    isolation = Isolation.READ_COMMITTED if plan.read_committed else Isolation.READ_UNCOMMITTED
    options = ReadOptions(isolation, plan.fail_on_data_loss, lost=lost)
    wanted = Columns.all(headers=plan.headers)
    waiting = list(plan.slices)
    while waiting:
        reading = _Reading(waiting.pop(0), wanted, options)
        yield from reading.batches()
        if reading.problem is not None:
            if not plan.keep_damaged:
                raise reading.problem
            waiting[:0] = _go_on(reading, letters)


def _go_on(reading: _Reading, letters: DeadLetters) -> list[SegmentSlice]:
    """Keep the bytes that could not be read and return the rest of the slice."""
    if isinstance(reading.problem, CorruptBatchError):
        following = _after_damage(reading, reading.problem, letters)
        return [] if following is None else [following]
    return _around(reading, letters)


class _Reading:
    """The rows of a slice up to the first that cannot be read; why it cannot is then in ``problem``."""

    def __init__(self, piece: SegmentSlice, wanted: Columns, options: ReadOptions) -> None:
        self.piece = piece
        self.next_offset = piece.start_offset
        self.problem: CorruptBatchError | MalformedTimestampError | None = None
        self._wanted = wanted
        self._options = options

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Raises PipelineError for everything but damage."""
        try:
            yield from self._read(self.piece, self._options)
        except MalformedTimestampError as error:
            self.problem = error
        except CorruptBatchError as error:
            self.problem = error
            before = replace(_relocated(self.piece, error), start_offset=self.next_offset, end_position=error.position)
            if before.size_bytes > 0:  # rows in front of the damage that were not given out yet
                yield from self._read(before, replace(self._options, looks_for_holes=False))

    def _read(self, piece: SegmentSlice, options: ReadOptions) -> Iterator[pa.RecordBatch]:
        for batch in read_slice(piece, self._wanted, options=options):
            if batch.num_rows:
                self.next_offset = batch.column("offset")[-1].as_py() + 1
            yield batch


def _relocated(piece: SegmentSlice, error: CorruptBatchError) -> SegmentSlice:
    """The slice in the file that the error's position is of: the reader may have met another one than was planned."""
    try:
        with OpenSegment(error.file) as file:
            if not piece.inode or file.is_same(piece.inode, piece.changed_ns, piece.end_position):
                return piece
            return replace(
                piece,
                path=error.file, inode=file.inode, changed_ns=0, start_position=0, end_position=file.size,
            )  # fmt: skip
    except FileNotFoundError:
        raise error from None


def _after_damage(reading: _Reading, damage: CorruptBatchError, letters: DeadLetters) -> SegmentSlice | None:
    """Keep the damaged bytes and return the slice after them; None at the slice's end."""
    piece = _relocated(reading.piece, damage)
    with OpenSegment(piece.path) as file:
        end = min(piece.end_position, file.size)
        indexed = indexed_batches(SegmentFile(piece.base_offset, piece.path), damage.position)
        target = find_resume_position(file, damage.position, end, indexed)
        start = _first_offset(file, target, end)
        data = file.read_at(damage.position, min(target - damage.position, DEAD_LETTER_BYTES))
    size = target - damage.position
    start = max(reading.next_offset, damage.expected, start) if target < end else piece.end_offset
    why = f"{damage.why}; offsets {damage.expected} to {start - 1} are lost"
    letters.add(piece, (damage.offset, damage.position, size), why, data)
    return replace(piece, start_position=target, start_offset=start) if start < piece.end_offset else None


def _first_offset(file: OpenSegment, position: int, end: int) -> int:
    """The offset of the first record of the batch at ``position``; -1 where there is none, or none that can be read."""
    try:
        header = header_at(file, position) if position < end else None
        if header is None or header.magic == MAGIC_V2:
            return -1 if header is None else header.base_offset
        return next(record.offset for record in next(iter_entries(file.read_at(position, header.size))).records())
    except (CorruptBatchError, KafkaError, StopIteration):
        return -1  # damaged as well, as its reader will find


def _around(reading: _Reading, letters: DeadLetters) -> list[SegmentSlice]:
    """Keep the batches of records whose time no column can hold; returns the slice without those records.

    Raises MalformedTimestampError when none is found: then it is the reader that is wrong.
    """
    piece, start = reading.piece, reading.next_offset
    pieces = []
    with OpenSegment(piece.path) as file:
        for header, batch in iter_batches(file, piece.start_position, min(piece.end_position, file.size)):
            if header.last_offset < start or header.is_control or not header.max_timestamp > MAX_MILLISECONDS:
                continue
            entry = next(iter_entries(batch))
            for record in entry.records():
                if record.timestamp > MAX_MILLISECONDS and start <= record.offset < piece.end_offset:
                    reason = f"timestamp {record.timestamp} ms does not fit microseconds in 64 bits"
                    place = (record.offset, header.position, header.size)
                    letters.add(piece, place, reason, bytes(batch[:DEAD_LETTER_BYTES]))
                    pieces.append(replace(piece, start_offset=start, end_offset=record.offset))
                    start = record.offset + 1
    if not pieces:
        assert reading.problem is not None
        raise reading.problem
    return [one for one in (*pieces, replace(piece, start_offset=start)) if one.start_offset < one.end_offset]


def group_slices(slices: Sequence[SegmentSlice], file_bytes: int) -> list[tuple[SegmentSlice, ...]]:
    """Group slices of one partition into files of about ``file_bytes`` of the log."""
    groups: list[tuple[SegmentSlice, ...]] = []
    group: list[SegmentSlice] = []
    size = 0
    for piece in slices:
        if group and size + piece.size_bytes > file_bytes * 1.25:
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
