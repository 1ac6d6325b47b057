"""Reading that goes on after damage, by the rule of ``tidelog.log.segment.resync``, as an audit does.

a damaged batch                   its bytes are passed to the caller, and reading goes on at the next batch, or at
                                  the next one that the offset index names
a record whose time in            its batch is passed to the caller, and all other records are read, those of the
microseconds exceeds 64 bits      same batch, too; without the column timestamp it is a record like all others
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tidelog.log.segment.batch_scan import BatchHeader, iter_batches
from tidelog.log.segment.resync import find_resume_position
from tidelog.pipeline.decode import layout
from tidelog.pipeline.decode.decode import ReadOptions, open_planned, plan_again, read_blocks, read_slice
from tidelog.pipeline.errors import CorruptBatchError, MalformedTimestampError, ObjectGoneError
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

#: Limit of the bytes of one damaged batch that the caller gets. Batches with times that do not fit are held in memory
#: until all are passed on, so their walk stops after as many bytes. Reading then goes on to the next such time.
KEPT_BYTES = 16 * 1024 * 1024
#: The first and the last time whose microseconds fit 64 bits.
MIN_MILLISECONDS, MAX_MILLISECONDS = -(2**63 // 1000), (2**63 - 1) // 1000


class Damage(NamedTuple):
    """Bytes of a slice's file that could not be read, and the reason. ``offset`` is the base offset that the damaged
    bytes have, which may be damaged, too. If only a record's time is the reason, ``offset`` is that record's, and the
    bytes are those of its batch; they are empty if an earlier record of the batch has them. ``size`` counts all bytes,
    ``data`` has the first KEPT_BYTES at most.
    """

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
    cannot be read. ``wanted`` has the column offset.

    Raises DataLossError and other PipelineErrors; CorruptBatchError only without ``keep``; MalformedTimestampError
    without ``keep``, or if the record with that time is not found again.
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
    """Pass the bytes that could not be read to ``keep`` and return slices of the rest.

    If another file has the segment's name by now, the bytes at the problem's position are others. Then nothing is
    passed, and the rest, with the problem, is planned again.
    """
    file = open_planned(reading.piece, reading.options.count)
    if file is None:
        return reading.plan_rest_again()
    found: list[Damage] = []
    with file:
        try:
            rest = _find_rest(reading, file, found.append)
            was_replaced = file.was_replaced()
        except ObjectGoneError:
            was_replaced = True
    if was_replaced:
        return reading.plan_rest_again()
    for damage in found:
        keep(damage)
    return [one for one in rest if one.start_offset < one.end_offset]


def _find_rest(reading: _Reading, file: OpenSegment, keep: Keep) -> list[SegmentSlice]:
    if isinstance(reading.problem, CorruptBatchError):
        return [_after_damage(reading, reading.problem, file, keep)]
    return _slices_around_strange_times(reading, file, keep)


class _Reading:
    """One reading of a slice, up to the first record that cannot be read; ``problem`` is then the error."""

    def __init__(self, piece: SegmentSlice, wanted: Columns, options: ReadOptions) -> None:
        self.piece = piece
        self.options = options
        self.next_offset = piece.start_offset
        self.problem: CorruptBatchError | MalformedTimestampError | None = None
        self._wanted = wanted
        self._lost_before = len(options.lost)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches, up to the ``problem``. Raises PipelineError for all other faults."""
        try:
            yield from self._read(self.piece, self.options)
        except MalformedTimestampError as error:
            self.problem = error
        except CorruptBatchError as error:
            self.problem = error
            yield from self._batches_before(error)

    def _batches_before(self, damage: CorruptBatchError) -> Iterator[pa.RecordBatch]:
        """Yield the rows before damage that were not yielded yet. A record among them whose time does not fit is the
        first ``problem``; the damage is found again after it."""
        before = replace(self.piece, start_offset=self.next_offset, end_position=damage.position)
        try:
            if before.size_bytes > 0:
                yield from self._read(before, replace(self.options, looks_for_holes=False))
        except (CorruptBatchError, MalformedTimestampError) as error:
            self.problem = error

    def _read(self, piece: SegmentSlice, options: ReadOptions) -> Iterator[pa.RecordBatch]:
        for batch in read_slice(piece, self._wanted, options=options):
            if batch.num_rows:
                self.next_offset = batch.column("offset")[-1].as_py() + 1
            yield batch

    def plan_rest_again(self) -> list[SegmentSlice]:
        """Plan the offsets that were not yielded yet in the current files. Raises PipelineError, DataLossError."""
        found = self.options.lost[self._lost_before :]  # the next reading finds the later ones again
        self.options.lost[self._lost_before :] = [one for one in found if one.start < self.next_offset]
        rest = replace(self.piece, start_offset=self.next_offset)
        return plan_again(rest, self.options) if rest.start_offset < rest.end_offset else []


def _after_damage(reading: _Reading, damage: CorruptBatchError, file: OpenSegment, keep: Keep) -> SegmentSlice:
    """Pass the damaged bytes to ``keep``, if they may have wanted records. Return the slice after them, which may have
    no offsets."""
    piece = reading.piece
    end = min(piece.end_position, file.size)
    indexed = indexed_batches(SegmentFile(piece.base_offset, piece.path), damage.position)
    target = find_resume_position(file, damage.position, end, indexed)
    start = _first_offset(file, target, end)
    if 0 <= start <= piece.start_offset:  # only offsets before the slice's are lost
        return replace(piece, start_position=target)
    data = file.read_at(damage.position, min(target - damage.position, KEPT_BYTES))
    size = target - damage.position
    start = max(reading.next_offset, damage.expected, start) if target < end else piece.end_offset
    lost = f"; offsets {damage.expected} to {start - 1} are lost" if start > damage.expected else ""
    keep(Damage(piece, damage.offset, damage.position, size, damage.why + lost, data))
    return replace(piece, start_position=target, start_offset=start)


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


# ---- times that do not fit


def _slices_around_strange_times(reading: _Reading, file: OpenSegment, keep: Keep) -> list[SegmentSlice]:
    """Pass to ``keep`` the batches of records whose time does not fit the column; return the slices between these
    records.

    Each slice has only the bytes of its own batches: those after them would look like batches whose damaged offsets
    jump ahead. Raises MalformedTimestampError when no such record is found: then the decoder itself is wrong.
    """
    assert reading.problem is not None
    rest = replace(reading.piece, start_offset=reading.next_offset)
    found: list[SegmentSlice] = []
    for header, batch, times in _batches_of(file, rest, _find_strange_times(rest, reading.options)):
        data, given = bytes(batch[:KEPT_BYTES]), ""
        for offset, timestamp in times:
            reason = f"timestamp {timestamp} ms does not fit microseconds in 64 bits"
            keep(Damage(rest, offset, header.position, header.size, reason + given, data))
            # The bytes are given once for each batch: a batch of 1 MB may have 10,000 times in nanoseconds.
            data, given = b"", f"; its batch is given with offset {times[0][0]}"
            found.append(_slice_before(rest, header, offset))
            start = header.position if offset < header.last_offset else header.position + header.size
            rest = replace(rest, start_position=start, start_offset=offset + 1)
    if not found:
        raise reading.problem
    return [*found, rest]


def _slice_before(piece: SegmentSlice, header: BatchHeader, offset: int) -> SegmentSlice:
    """Return the part of a slice before a record of the batch with this header."""
    is_in_batch = header.magic != MAGIC_V2 or header.base_offset < offset
    end = header.position + header.size if is_in_batch else header.position
    # A wrapper of old messages does not say whether it has earlier records, so it may begin at the end offset.
    return replace(piece, end_position=end, end_offset=offset, is_exact=header.magic == MAGIC_V2)


def _find_strange_times(piece: SegmentSlice, options: ReadOptions) -> list[tuple[int, int]]:
    """Find the wanted records whose time does not fit: (offset, ms) of each, in order, up to damage."""
    found: list[tuple[int, int]] = []
    try:
        for block in read_blocks(piece, replace(options, looks_for_holes=False, lost=[])):
            offsets, times = block.table[[layout.OFFSET, layout.TIMESTAMP], block.first : block.last]
            rows = np.flatnonzero((times < MIN_MILLISECONDS) | (times > MAX_MILLISECONDS))
            found += zip(offsets[rows].tolist(), times[rows].tolist(), strict=True)
    except CorruptBatchError as damage:
        if not found and damage.position < piece.end_position:  # rows shortly before damage were not yielded
            return _find_strange_times(replace(piece, end_position=damage.position), options)
    return found


def _batches_of(
    file: OpenSegment, piece: SegmentSlice, wanted: Sequence[tuple[int, int]]
) -> Iterator[tuple[BatchHeader, memoryview, list[tuple[int, int]]]]:
    """Yield the batches that hold ``wanted``, pairs of an offset and a time in order, each with its pairs.

    The walk ends after KEPT_BYTES of such batches: the caller reads the slices between the records found so far first.
    """
    number = kept = 0
    with suppress(CorruptMessageError):
        for header, batch in iter_batches(file, piece.start_position, min(piece.end_position, file.size)):
            first = number
            while number < len(wanted) and wanted[number][0] <= header.last_offset:
                number += 1
            if number > first:
                yield header, batch, list(wanted[first:number])
                kept += header.size
            if number == len(wanted) or kept >= KEPT_BYTES:
                return
