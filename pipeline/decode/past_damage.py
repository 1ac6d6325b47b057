"""Reading that goes on after damage, by the rule of ``tidelog.log.segment.resync``, as an audit does.

a damaged batch                     its bytes are passed to the caller, and reading goes on at the next batch, or at the
                                    next one that the offset index names
a record with a time beyond 64 bits of microseconds      its batch is passed to the caller, its neighbours are read
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.segment.batch_scan import BatchHeader, crc_matches, iter_batches
from tidelog.log.segment.resync import find_resume_position
from tidelog.pipeline.decode.decode import ReadOptions, read_slice
from tidelog.pipeline.errors import CorruptBatchError, MalformedTimestampError
from tidelog.pipeline.files.batch_walk import header_at
from tidelog.pipeline.files.segment_files import SegmentFile
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.files.sparse_index import indexed_batches
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.plan.plan import SegmentSlice
from tidelog.protocol.errors import CorruptMessageError, KafkaError
from tidelog.protocol.record.batches import iter_batches as iter_entries
from tidelog.protocol.record.record_batch import MAGIC_V2

if TYPE_CHECKING:
    import pyarrow as pa

#: Limit of the bytes of one damaged batch that the caller gets.
KEPT_BYTES = 16 * 1024 * 1024
#: The first and the last time whose microseconds fit 64 bits.
MIN_MILLISECONDS, MAX_MILLISECONDS = -(2**63 // 1000), (2**63 - 1) // 1000


class Damage(NamedTuple):
    """Bytes of a slice's file that could not be read, and the reason; ``offset`` of their first record, -1 when
    unknown."""

    piece: SegmentSlice
    offset: int
    position: int
    size: int
    reason: str
    data: bytes


Keep = Callable[[Damage], None]
"""A function that is called with the bytes that cannot be read."""


def read_past_damage(
    slices: Sequence[SegmentSlice], wanted: Columns, options: ReadOptions, keep: Keep | None
) -> Iterator[pa.RecordBatch]:
    """Yield the records of slices of one partition as ``pyarrow.RecordBatch``es; ``keep`` is called with the bytes that
    cannot be read.

    Raises DataLossError and other PipelineErrors; CorruptBatchError and MalformedTimestampError only without ``keep``.
    """
    waiting = list(slices)
    while waiting:
        reading = _Reading(waiting.pop(0), wanted, options)
        yield from reading.batches()
        if reading.problem is not None:
            if keep is None:
                raise reading.problem
            waiting[:0] = _skip_problem(reading, keep)


def _skip_problem(reading: _Reading, keep: Keep) -> list[SegmentSlice]:
    """Pass the bytes that could not be read to ``keep`` and return the rest of the slice."""
    if isinstance(reading.problem, CorruptBatchError):
        following = _after_damage(reading, reading.problem, keep)
        return [] if following is None else [following]
    return _slices_around(reading, keep)


class _Reading:
    """One reading of a slice, up to the first record that cannot be read; ``problem`` is then the error."""

    def __init__(self, piece: SegmentSlice, wanted: Columns, options: ReadOptions) -> None:
        self.piece = piece
        self.next_offset = piece.start_offset
        self.problem: CorruptBatchError | MalformedTimestampError | None = None
        self._wanted = wanted
        self._options = options

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches, up to damage. Raises PipelineError for everything but damage."""
        try:
            yield from self._read(self.piece, self._options)
        except MalformedTimestampError as error:
            self.problem = error
        except CorruptBatchError as error:
            self.problem = error
            yield from self._batches_before(error)

    def _batches_before(self, damage: CorruptBatchError) -> Iterator[pa.RecordBatch]:
        """Yield the rows before damage that were not yielded yet. A record among them whose time does not fit is the
        first ``problem``; the damage is found again after it."""
        before = replace(_relocate(self.piece, damage), start_offset=self.next_offset, end_position=damage.position)
        try:
            if before.size_bytes > 0:
                yield from self._read(before, replace(self._options, looks_for_holes=False))
        except MalformedTimestampError as error:
            self.problem = error

    def _read(self, piece: SegmentSlice, options: ReadOptions) -> Iterator[pa.RecordBatch]:
        for batch in read_slice(piece, self._wanted, options=options):
            if batch.num_rows:
                self.next_offset = batch.column("offset")[-1].as_py() + 1
            yield batch


def _relocate(piece: SegmentSlice, error: CorruptBatchError) -> SegmentSlice:
    """Return the slice for the file in which the error was found: it may be another one than was planned."""
    try:
        with OpenSegment(error.file) as file:
            if not piece.inode or file.is_same(piece.inode, piece.ctime_ns, piece.end_position):
                return piece
            return replace(
                piece,
                path=error.file, inode=file.inode, ctime_ns=0, start_position=0, end_position=file.size,
            )  # fmt: skip
    except FileNotFoundError:
        raise error from None


def _after_damage(reading: _Reading, damage: CorruptBatchError, keep: Keep) -> SegmentSlice | None:
    """Pass the damaged bytes to ``keep`` and return the slice after them; None at the slice's end."""
    piece = _relocate(reading.piece, damage)
    with OpenSegment(piece.path) as file:
        end = min(piece.end_position, file.size)
        indexed = indexed_batches(SegmentFile(piece.base_offset, piece.path), damage.position)
        target = find_resume_position(file, damage.position, end, indexed)
        start = _first_offset(file, target, end)
        data = file.read_at(damage.position, min(target - damage.position, KEPT_BYTES))
    size = target - damage.position
    start = max(reading.next_offset, damage.expected, start) if target < end else piece.end_offset
    lost = f"; offsets {damage.expected} to {start - 1} are lost" if start > damage.expected else ""
    keep(Damage(piece, damage.offset, damage.position, size, damage.why + lost, data))
    return replace(piece, start_position=target, start_offset=start) if start < piece.end_offset else None


def _first_offset(file: OpenSegment, position: int, end: int) -> int:
    """Read the offset of the first record of the batch at ``position``; -1 if there is no batch, or it cannot be
    read.
    """
    try:
        header = header_at(file, position) if position < end else None
        if header is None or header.magic == MAGIC_V2:
            return -1 if header is None else header.base_offset
        return next(record.offset for record in next(iter_entries(file.read_at(position, header.size))).records())
    except (CorruptBatchError, KafkaError, StopIteration):
        return -1  # damaged as well; its reader reports it


def _slices_around(reading: _Reading, keep: Keep) -> list[SegmentSlice]:
    """Pass to ``keep`` the batches of records whose time does not fit the column; returns the slice without those
    records.

    Raises MalformedTimestampError when there is no such record: then the decoder itself is wrong.
    """
    assert reading.problem is not None
    found = _split_at_strange_times(reading, keep, shown=True) or _split_at_strange_times(reading, keep, shown=False)
    if not found:
        raise reading.problem
    return [one for one in found if one.start_offset < one.end_offset]


def _split_at_strange_times(reading: _Reading, keep: Keep, *, shown: bool) -> list[SegmentSlice]:
    """Pass the batches of such records to ``keep`` and return the slices between them; none without such records.

    ``shown``: decode only batches whose header shows such a time. A header has only the latest time of its records, so
    times that are too early need a search in all batches. The search ends at damage, which the reader of the last slice
    finds.
    """
    piece, start = reading.piece, reading.next_offset
    pieces = []
    with OpenSegment(piece.path) as file:
        for header, batch in _valid_batches(file, piece.start_position, min(piece.end_position, file.size)):
            if header.last_offset < start or header.is_control or (shown and header.max_timestamp <= MAX_MILLISECONDS):
                continue
            entry = next(iter_entries(batch))
            for record in entry.records():
                fits = MIN_MILLISECONDS <= record.timestamp <= MAX_MILLISECONDS
                if not fits and start <= record.offset < piece.end_offset:
                    reason = f"timestamp {record.timestamp} ms does not fit microseconds in 64 bits"
                    data = bytes(batch[:KEPT_BYTES])
                    keep(Damage(piece, record.offset, header.position, header.size, reason, data))
                    pieces.append(replace(piece, start_offset=start, end_offset=record.offset))
                    start = record.offset + 1
    return [*pieces, replace(piece, start_offset=start)] if pieces else []


def _valid_batches(file: OpenSegment, start: int, end: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches between two bytes, up to the first that is damaged."""
    with suppress(CorruptMessageError):
        for header, batch in iter_batches(file, start, end):
            if not crc_matches(header, batch):
                return
            yield header, batch
