"""The decoder of one segment slice to a table: for each record its offset and time, and the bytes at which its key,
value and headers are.

    file -> chunk -> columns.decode_chunk: whole batches, CRC checked, rows trimmed and filtered -> table
                 compressed batch -> decompressed, up to a limit, into the arena -> columns.decode_section ^
                 old message set  -> message by message into the arena ---------------------------------^

A slice is a range of a segment file's bytes, and the range of offsets that are wanted from them
(``plan.rows.SegmentSlice``). A chunk is the part of these bytes that is in memory. The arena is a second buffer, for
the records of compressed batches and of old message sets. The reader yields :class:`Block`s: a buffer, and rows of a
table whose positions are bytes of that buffer (``tidelog.pipeline.decode.layout`` names the columns). Both are reused
for the next block.

Nothing is dropped silently: a batch that is cut or damaged, or whose offsets go back, is a CorruptBatchError.
With ``looks_for_holes`` every offset of the slice must be in a batch, unless ``tidelog.pipeline.plan.holes`` says that
a cleaner removed its record.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import numpy as np

from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.segment.resync import reaches_next
from tidelog.pipeline.decode import columns, layout
from tidelog.pipeline.engine.engine import engine
from tidelog.pipeline.errors import CorruptBatchError
from tidelog.pipeline.files.segment_files import SegmentFile
from tidelog.pipeline.files.sources import OpenSegment
from tidelog.pipeline.options.row_filter import RowFilter
from tidelog.pipeline.plan.holes import Hole, Holes
from tidelog.pipeline.plan.rows import LostRange, SegmentSlice
from tidelog.pipeline.plan.transactions.markers import MarkerWalk
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.record.compression import decompress
from tidelog.protocol.record.message_set import LegacyRecordBatch
from tidelog.protocol.record.record_batch import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    HEADER,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    MAGIC_V0,
    MAGIC_V2,
    MIN_ENTRY_BYTES,
    Buffer,
    Record,
    RecordBatch,
)

#: Size of the chunk, if the slice is not shorter; a larger batch makes it grow.
CHUNK_BYTES = 2 * 1024 * 1024
#: The arena's rows are yielded once it has more bytes than this; it has room for twice as many, or for a larger batch.
ARENA_BYTES = 4 * 1024 * 1024
#: Number of rows of the table, or fewer for a short slice; a batch with more records makes it grow.
TABLE_ROWS = 32 * 1024
#: Why a batch's offset is damaged; each names the offset that should follow.
GOES_BACK = "its offset goes back, {} or more should follow"
JUMPS_AHEAD = "its offset jumps ahead, {} should follow"


class Block(NamedTuple):
    """Rows ``first`` to below ``last`` of ``table`` (int64, columns by rows), with positions in ``buffer`` (uint8).

    Valid until the next block is read.
    """

    buffer: Any
    table: Any
    first: int
    last: int

    @property
    def rows(self) -> int:
        return self.last - self.first


class _Buffer:
    """A buffer that can grow, with PADDING bytes after its capacity, which decoding may read.

    Bytes that are not used yet have any value, as after the first use.
    """

    def __init__(self, capacity: int) -> None:
        self.array = np.empty(capacity + layout.PADDING, np.uint8)
        self.used = 0

    @property
    def capacity(self) -> int:
        return len(self.array) - layout.PADDING

    @property
    def room(self) -> int:
        return self.capacity - self.used

    def view(self, start: int, end: int) -> memoryview:
        return self.array.data[start:end]

    def grow(self, capacity: int) -> None:
        """Make the buffer larger; its used bytes stay."""
        array = np.empty(capacity + layout.PADDING, np.uint8)
        array[: self.used] = self.array[: self.used]
        self.array = array

    def append(self, data: Buffer) -> int:
        """Append ``data`` to the used bytes and return its position; the caller has checked the room."""
        start = self.used
        self.view(start, start + len(data))[:] = data
        self.used = start + len(data)
        return start


def follow_markers(piece: SegmentSlice, file: OpenSegment) -> MarkerWalk:
    """Start a walk over the transaction markers from a slice's first byte on."""
    return MarkerWalk(
        TopicPartition(piece.topic, piece.partition),
        SegmentFile(piece.base_offset, piece.path),
        file,
        position=piece.start_position,
        end_offset=piece.end_offset,
        engine=engine(),
    )


class ColumnReader:
    """Decoder of the records of one slice, whose file the caller opens and closes. One thread."""

    def __init__(
        self,
        piece: SegmentSlice,
        file: OpenSegment,
        row_filter: RowFilter | None = None,
        *,
        read_committed: bool = False,
        fail_on_data_loss: bool = True,
        looks_for_holes: bool = True,
    ) -> None:
        """``row_filter``: only records that match it. Without ``fail_on_data_loss``, missing ranges are collected in
        ``lost``; without ``looks_for_holes`` none is looked for."""
        self._piece = piece
        self._file = file
        self._filter = row_filter or RowFilter()
        self.lost: list[LostRange] = []
        self._holes = Holes(
            TopicPartition(piece.topic, piece.partition),
            os.path.dirname(piece.path),
            fail_on_data_loss=fail_on_data_loss,
            lost=self.lost,
        )
        self._is_ended = False
        self._position = piece.start_position  # of the chunk's first byte
        self._chunk = _Buffer(min(CHUNK_BYTES, piece.size_bytes))
        self._arena = _Buffer(0)
        self._arena_rows = 0  # the first rows of the table, whose bytes are in the arena
        self._table = np.zeros((layout.COLUMNS, min(TABLE_ROWS, 64 + piece.size_bytes // 16)), np.int64)
        self._progress = np.zeros(layout.PROGRESS_SLOTS, np.int64)
        self._bounds = np.zeros(layout.BOUNDS_SLOTS, np.int64)
        self._key = np.frombuffer(self._filter.key or b"", np.uint8).copy()
        self._limits = np.array(
            [piece.start_offset, piece.end_offset, self._filter.min_time, self._filter.max_time,
             self._filter.key is not None, 0 if looks_for_holes else piece.end_offset], np.int64,
        )  # fmt: skip
        self._aborted = np.zeros((0, 3), np.int64)
        self._markers = follow_markers(piece, file) if read_committed else None

    def blocks(self) -> Iterator[Block]:
        """Yield the slice's records. Raises CorruptBatchError, DataLossError, other PipelineErrors."""
        try:
            yield from self._read()
        finally:
            if self._markers is not None:
                self._markers.close()

    def _read(self) -> Iterator[Block]:
        at = 0
        while self._fill(at):
            if self._markers is not None:
                self._aborted = self._markers.aborted_below(self._chunk.array, self._chunk.used, self._position)
                self._bounds[layout.VERIFIED_FROM :] = self._markers.verified
            at = yield from self._decode_filled()
            if self._is_ended:
                self._check_end(at)
                break
        self._judge_hole(self._piece.end_offset)

    def _decode_filled(self) -> Generator[Block, None, int]:
        """Decode the whole batches of the chunk and yield their rows; return the byte of the chunk at which the first
        batch begins that was not decoded."""
        at = 0
        while not self._is_ended:
            before = self._rows
            self._bounds[: layout.VERIFIED_FROM] = at, self._chunk.used
            status = columns.decode_chunk(
                self._chunk.array, self._bounds, self._limits, self._key, self._aborted, self._table, self._progress
            )
            at = int(self._progress[layout.CONSUMED])
            # Rows of the chunk are yielded before more are added: those of the arena come first in the table.
            if self._rows > before or self._arena.used > ARENA_BYTES or before > TABLE_ROWS:
                yield from self._take()
            size = self._handle_stop(status, at)
            self._is_ended |= bool(self._progress[layout.NEXT_OFFSET] >= self._piece.end_offset)
            if size is None:
                break
            at += size
        yield from self._take()
        return at

    @property
    def _rows(self) -> int:
        return int(self._progress[layout.ROWS])

    def _take(self) -> Iterator[Block]:
        """Yield the rows of the table, those with bytes in the arena first."""
        rows, from_arena = int(self._progress[layout.ROWS]), self._arena_rows
        self._progress[layout.ROWS] = self._arena_rows = 0
        if from_arena:
            yield Block(self._arena.array, self._table, 0, from_arena)
        if rows > from_arena:
            yield Block(self._chunk.array, self._table, from_arena, rows)
        self._arena.used = 0

    # ---- chunks

    def _fill(self, consumed: int) -> bool:
        """Move on by ``consumed`` bytes and fill the chunk; False at the slice's end. A batch that is larger than the
        chunk makes it grow."""
        chunk = self._chunk
        rest = chunk.used - consumed
        remaining = self._piece.end_position - self._position - chunk.used
        if remaining <= 0:
            if rest:
                raise self._corrupt_error(consumed, "the planned bytes end within it")
            return False
        self._position += consumed
        if consumed:
            chunk.array[:rest] = chunk.array[consumed : chunk.used]
            chunk.used = rest
        elif rest == chunk.capacity:
            chunk.grow(max(self._batch_size(0), 2 * rest))
        wanted = min(chunk.room, remaining)
        got = self._file.read_into(self._position + rest, chunk.view(rest, rest + wanted))
        if got < wanted:
            raise self._corrupt_error(
                0, f"the file ends at byte {self._position + rest + got}, within the planned bytes"
            )
        chunk.used = rest + got
        return True

    def _batch_size(self, at: int) -> int:
        """Read the size in bytes that the batch at ``at`` claims; 0 if the chunk has too few bytes of it. Raises
        CorruptBatchError when no batch has that size, or the slice has fewer bytes."""
        if self._chunk.used - at <= MAGIC_OFFSET:
            return 0
        size = int.from_bytes(self._chunk.view(at + 8, at + 12), "big", signed=True) + LOG_OVERHEAD
        if size < LOG_OVERHEAD + MIN_ENTRY_BYTES:
            raise self._corrupt_error(at, f"it claims {size} bytes, fewer than a batch has")
        if size > self._piece.end_position - self._position - at:
            raise self._corrupt_error(at, f"it claims {size} bytes, more than the rest of the planned bytes")
        return size

    def _check_end(self, at: int) -> None:
        """Check the offsets around byte ``at`` of the chunk, where the batches reach or pass the slice's end offset.

        A batch's CRC does not cover its offset, and a damaged offset would hide the records after it. So the offset is
        damaged if bytes of an exact slice are left, or if the next batch has a lower offset. Raises CorruptBatchError.
        """
        if self._piece.is_exact and self._position + at < self._piece.end_position:
            raise self._corrupt_error(
                at, f"offsets jump ahead of {self._piece.end_offset}, where the planned range ends"
            )
        smallest = following = int(self._progress[layout.NEXT_OFFSET])
        suspect, why = at, GOES_BACK
        if following < self._piece.end_offset and self._chunk.used - at >= MAGIC_OFFSET:
            smallest, why = self._offset_at(at), JUMPS_AHEAD
            at += self._batch_size(at)
        rest = self._chunk.view(at, self._chunk.used)
        if len(rest) < HEADER.size or rest[MAGIC_OFFSET] != MAGIC_V2 or self._offset_at(at) >= smallest:
            return
        if RecordBatch(rest).is_valid():  # otherwise it is a batch that is still being written
            raise self._corrupt_error(suspect, why.format(following))

    # ---- batches that the compiled decoder leaves to Python

    def _handle_stop(self, status: int, at: int) -> int | None:
        """Handle the batch at ``at``, at which decoding stopped; returns the bytes consumed, None when more bytes are
        needed."""
        if status == layout.NEED_BYTES:
            return None
        if status == layout.END:
            self._is_ended = True
            return 0
        if status == layout.TABLE_FULL:
            self._grow_table(int.from_bytes(self._chunk.view(at + 57, at + 61), "big", signed=True))
            return 0
        if status == layout.COMPRESSED:
            return self._decode_compressed(at)
        if status == layout.OLD_FORMAT:
            return self._decode_old(at)
        if status == layout.HOLE:
            base = self._offset_at(at)
            self._check_jump(at, base + int.from_bytes(self._chunk.view(at + 23, at + 27), "big"))
            self._judge_hole(base)
            self._progress[layout.NEXT_OFFSET] = base
            return 0
        raise self._damage_error(status, at)

    def _grow_table(self, rows: int) -> None:
        """Make room for ``rows`` more rows, a count that was checked against the batch's size; rows in the table
        stay."""
        needed = rows + int(self._progress[layout.ROWS])
        if needed > self._table.shape[1]:
            table = np.zeros((layout.COLUMNS, needed), np.int64)
            table[:, : self._table.shape[1]] = self._table
            self._table = table

    def _decode_compressed(self, at: int) -> int:
        batch = RecordBatch(self._chunk.array.data, at)
        try:
            section = decompress(batch.records_section(), batch.compression_type, DEFAULT_MAX_DECOMPRESSED_BYTES)
        except KafkaError as error:
            raise self._corrupt_error(at, str(error)) from error
        if batch.record_count < 0 or batch.record_count * 7 > len(section):
            raise self._corrupt_error(
                at, f"its {len(section)} bytes of records cannot hold {batch.record_count} records"
            )
        self._grow_table(batch.record_count)
        start = self._put(section)
        is_append_time = int(batch.timestamp_type == LOG_APPEND_TIME)
        context = np.array(
            [batch.base_offset, batch.base_timestamp, batch.max_timestamp, is_append_time, batch.record_count, start,
             start + len(section)], np.int64,
        )  # fmt: skip
        arguments = (self._limits, self._key, self._table, self._progress)
        if columns.decode_section(self._arena.array, context, *arguments) != layout.NEED_BYTES:
            raise self._damage_error(layout.MALFORMED, at)
        self._arena_rows = int(self._progress[layout.ROWS])
        self._progress[layout.NEXT_OFFSET] = batch.next_offset
        return batch.size_in_bytes

    def _put(self, data: Buffer) -> int:
        if len(data) > self._arena.room:
            self._arena.grow(max(2 * ARENA_BYTES, self._arena.used + len(data)))
        return self._arena.append(data)

    def _decode_old(self, at: int) -> int | None:
        """Decode a message or wrapper of magic 0 or 1; returns its size, None when more bytes are needed."""
        size = self._batch_size(at)
        if size == 0 or self._chunk.used - at < size:
            return None
        try:
            entry = LegacyRecordBatch(self._chunk.view(at, at + size))
            entry.ensure_valid()
            # A wrapper before the slice's records is not decompressed.
            records = list(entry.records()) if entry.offset >= self._piece.start_offset else []
        except KafkaError as error:
            raise self._corrupt_error(at, str(error)) from error
        offsets = [record.offset for record in records] or [entry.offset]
        self._follow_old(at, offsets[0], offsets[-1])
        kind = -1 if entry.magic == MAGIC_V0 else entry.timestamp_type
        self._grow_table(len(records))
        for record in records:
            if self._piece.start_offset <= record.offset < self._piece.end_offset and self._filter.matches(
                record.timestamp, record.key
            ):
                self._add(record, kind)
        self._arena_rows = int(self._progress[layout.ROWS])
        self._progress[layout.NEXT_OFFSET] = offsets[-1] + 1
        return size

    def _follow_old(self, at: int, first: int, last: int) -> None:
        """Check the offsets of the old message or wrapper at ``at``, from its first to its last record: no CRC covers
        them. Raises CorruptBatchError, DataLossError."""
        following = int(self._progress[layout.NEXT_OFFSET])
        if first < following:
            raise self._corrupt_error(at, GOES_BACK.format(following))
        if first > max(following, self._piece.start_offset):
            self._check_jump(at, last)
        self._judge_hole(min(first, self._piece.end_offset))

    def _add(self, record: Record, timestamp_type: int) -> None:
        row = self._rows
        key_start, value_start = self._put(record.key or b""), self._put(record.value or b"")
        sizes = [-1 if field is None else len(field) for field in (record.key, record.value)]
        self._table[:, row] = (
            record.offset, record.timestamp, timestamp_type, key_start, sizes[0], value_start, sizes[1], 0, 0,
        )  # fmt: skip
        self._progress[layout.ROWS] = row + 1

    # ---- holes

    def _judge_hole(self, end: int) -> None:
        """Decide whether the offsets from the last batch to below ``end``, which no batch has, are lost. Raises
        DataLossError if they are and that is an error."""
        start = max(int(self._progress[layout.NEXT_OFFSET]), self._piece.start_offset)
        if start >= end or end <= self._limits[layout.CLEANED_BELOW]:
            return
        segment = SegmentFile(self._piece.base_offset, self._file.path)
        self._holes.judge(Hole(start, end, segment, segment))
        self._progress[layout.NEXT_OFFSET] = end
        self._limits[layout.CLEANED_BELOW] = self._holes.cleaned_below

    def _check_jump(self, at: int, last: int) -> None:
        """Check the offsets of a batch after a hole, up to ``last``. No CRC covers them: if they overlap those of the
        next batch, they are damaged. Raises CorruptBatchError."""
        if reaches_next(self._file, self._position + at + self._batch_size(at), last):
            raise self._corrupt_error(at, JUMPS_AHEAD.format(int(self._progress[layout.NEXT_OFFSET])))

    # ---- damage

    def _damage_error(self, status: int, at: int) -> CorruptBatchError:
        """Build the error for the damaged batch at ``at``. Its reason is a wrong CRC, an offset that goes back, the
        error of ``RecordBatch`` when it decodes the records, or, without any of these, an impossible header."""
        if status == layout.BAD_CRC:
            stored = int.from_bytes(self._chunk.view(at + 17, at + 21), "big")
            return self._corrupt_error(at, f"its checksum does not hold (stored crc {stored:#010x})")
        offset, following = self._offset_at(at), int(self._progress[layout.NEXT_OFFSET])
        if offset < following:
            return self._corrupt_error(at, GOES_BACK.format(following))
        try:
            batch = RecordBatch(self._chunk.view(at, self._chunk.used))
            if batch.magic == MAGIC_V2 and batch.size_in_bytes >= HEADER.size:
                for _ in batch.records():
                    pass
        except KafkaError as error:
            return self._corrupt_error(at, str(error))
        return self._corrupt_error(at, "its header is impossible")

    def _corrupt_error(self, at: int, why: str) -> CorruptBatchError:
        expected = max(int(self._progress[layout.NEXT_OFFSET]), self._piece.start_offset)
        return CorruptBatchError(self._file.path, self._position + at, self._offset_at(at), why, expected)

    def _offset_at(self, at: int) -> int:
        return int.from_bytes(self._chunk.view(at, at + 8), "big", signed=True)
