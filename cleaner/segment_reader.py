"""A segment as chunks of readable batches: read, framed, decompressed, converted, numbered.

A buffer holds the chunk at its beginning, behind it the scratch for batches that must be expanded.
Compressed batches are decompressed there behind a copy of their header; old message sets (magic 0 and 1) become
version 2 batches there, runs of single messages together in one. When the scratch is full the rows done so far are
handed out first.

Ordinals are given here, in file order, to the batches that can be read. The buffer grows to a batch larger than itself
and shrinks again with the next segment.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from cleaner import layout as at
from cleaner.engine import ByteArray, Engine, IntegerArray
from cleaner.errors import UnframedSegmentError
from cleaner.layout import BATCH_OVERHEAD, BatchState, Unreadable
from log.file_system import LogStorageError
from log.segment import LogSegment
from protocol.compression import decompress
from protocol.errors import (
    CorruptMessageError,
    InvalidRecordError,
    MessageTooLargeError,
    UnsupportedCompressionTypeError,
)
from protocol.message_set import LegacyRecordBatch
from protocol.record_batch import BatchOptions, Record, build_batch

#: Rows of the batch table: a chunk of single-record batches has more, it is then read in more steps.
TABLE_ROWS = 4096
#: Expanded bytes handed out at once: a lot of small compressed batches share one step, a large one gets its own.
SCRATCH_BYTES = 4 * 1024 * 1024
#: Old single messages that become one version 2 batch.
CONVERTED_RECORDS = 500
CONVERTED_BYTES = 64 * 1024
#: Longest list of unreadable batches kept for reports; all are counted.
REPORTED_BATCHES = 100

_UNREADABLE = (InvalidRecordError, CorruptMessageError, MessageTooLargeError, UnsupportedCompressionTypeError)


@dataclass(frozen=True, slots=True)
class UnreadableBatch:
    """A batch that was kept as bytes."""

    segment: int
    position: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"segment {self.segment}, byte {self.position}, offset {self.offset}: {self.reason}"


class Chunk:
    """A stretch of a segment in ``buffer`` and its ``rows`` batches in ``table``.

    It was read from byte ``position`` of the file and has ``length`` bytes, of which whole batches take ``framed``;
    behind it, up to ``used``, lies the scratch.
    """

    __slots__ = ("buffer", "framed", "length", "position", "rows", "table", "used")

    def __init__(self, size: int) -> None:
        self.buffer: ByteArray = np.zeros(size + at.PADDING, np.uint8)
        self.table: IntegerArray = np.zeros((TABLE_ROWS, at.COLUMNS), np.int64)
        self.position = self.length = self.used = self.rows = self.framed = 0


class SegmentReader:
    """Reads segments for one round. ``buffer`` and ``table`` are valid from one step of ``chunks`` to the next.

    With an engine that works without the interpreter lock the next chunk is read and framed by a helper thread
    meanwhile: a quarter of a round's work, so that a round takes three quarters of the time where a core is idle.
    """

    def __init__(self, engine: Engine, io_buffer_bytes: int, max_decompressed_bytes: int) -> None:
        self._engine = engine
        self._chunk_bytes = max(io_buffer_bytes, 1024)
        self._max_decompressed_bytes = max_decompressed_bytes
        self._chunk = Chunk(self._chunk_bytes)
        self._ahead = self._chunk
        self._helper: ThreadPoolExecutor | None = None
        if engine.name != "reference":
            self._ahead = Chunk(self._chunk_bytes)
            self._helper = ThreadPoolExecutor(1, "log-cleaner-reader")
        self.ordinal = 0
        self.bytes_read = 0
        self._segment = 0

    @property
    def buffer(self) -> ByteArray:
        """The chunk and its scratch."""
        return self._chunk.buffer

    @property
    def table(self) -> IntegerArray:
        """The chunk's batches."""
        return self._chunk.table

    def close(self) -> None:
        """End the helper thread."""
        if self._helper is not None:
            self._helper.shutdown()

    def chunks(self, segment: LogSegment, next_base_offset: int, ordinal: int) -> Iterator[tuple[int, int]]:
        """The rows of ``table`` to work on, step by step. ``ordinal`` is the first record's; ``self.ordinal`` goes on.

        Raises UnframedSegmentError, KafkaStorageError when the file was closed.
        """
        self.ordinal, self._segment = ordinal, segment.base_offset
        offsets = (segment.base_offset, next_base_offset)
        shared = segment.records.shared
        shared.retain()
        pending: Future[None] | None = None
        try:
            position, size = 0, segment.size
            while position < size:
                if pending is not None:
                    pending.result()
                else:
                    self._fill(self._ahead, shared.fileno(), (position, size), offsets)
                self._chunk, self._ahead = self._ahead, self._chunk
                chunk = self._chunk
                if chunk.rows == 0:
                    raise UnframedSegmentError(segment.base_offset, position)
                position += chunk.framed
                pending = None
                if self._helper is not None and position < size:
                    pending = self._helper.submit(self._fill, self._ahead, shared.fileno(), (position, size), offsets)
                self.bytes_read += chunk.framed
                yield from self._expand(chunk.rows, chunk.length)
        finally:
            if pending is not None:
                wait([pending])
            shared.release()

    def _fill(self, chunk: Chunk, fd: int, span: tuple[int, int], offsets: tuple[int, int]) -> None:
        """Read and frame from byte ``span[0]`` of a file that ends at ``span[1]``. No rows when nothing is framed.

        Raises KafkaStorageError.
        """
        position, end = span
        if len(chunk.buffer) > 4 * (self._chunk_bytes + SCRATCH_BYTES):
            chunk.buffer = np.zeros(self._chunk_bytes + at.PADDING, np.uint8)
        wanted = self._chunk_bytes
        while True:
            self._read(chunk, fd, position, min(wanted, end - position))
            chunk.rows, chunk.framed, claimed = self._engine.scan(chunk.buffer, (0, chunk.length), offsets, chunk.table)
            if chunk.rows or not chunk.length < claimed <= end - position:
                return
            wanted = claimed

    def unreadable(self, rows: tuple[int, int]) -> list[UnreadableBatch]:
        """The poison batches among ``rows``."""
        table = self.table[rows[0] : rows[1]]
        poison = table[table[:, at.STATE] == BatchState.POISON]
        return [
            UnreadableBatch(
                self._segment,
                self._chunk.position + int(row[at.POSITION]),
                int(row[at.BASE_OFFSET]),
                Unreadable(int(row[at.REASON])).sentence,
            )
            for row in poison
        ]

    def _read(self, chunk: Chunk, fd: int, position: int, size: int) -> None:
        if size + at.PADDING > len(chunk.buffer):
            chunk.buffer = np.zeros(max(size + at.PADDING, 2 * len(chunk.buffer)), np.uint8)
        view = chunk.buffer.data
        done = 0
        while done < size:
            try:
                got = os.preadv(fd, [view[done:size]], position + done)
            except OSError as error:
                raise LogStorageError("read", f"segment {self._segment}", error.errno or errno.EIO) from error
            if not got:
                break
            done += got
        chunk.position, chunk.length, chunk.used = position, done, done

    def _reserve(self, size: int) -> int:
        """Room for ``size`` bytes behind what is used; returns where it begins."""
        chunk = self._chunk
        start = chunk.used
        if start + size + at.PADDING > len(chunk.buffer):
            larger: ByteArray = np.zeros(max(start + size + at.PADDING, 2 * len(chunk.buffer)), np.uint8)
            larger[:start] = chunk.buffer[:start]
            chunk.buffer = larger
        chunk.used = start + size
        return start

    def _number(self, first: int, end: int) -> tuple[int, int]:
        """Give ordinals to the readable batches of the rows, and hand the rows out."""
        table = self.table[first:end]
        counts = np.where(table[:, at.STATE] == BatchState.POISON, 0, table[:, at.COUNT])
        ends = np.cumsum(counts)
        table[:, at.ORDINAL] = self.ordinal + ends - counts
        self.ordinal += int(ends[-1]) if len(ends) else 0
        return first, end

    def _expand(self, rows: int, length: int) -> Iterator[tuple[int, int]]:
        if not np.any(self.table[:rows, at.STATE] == BatchState.PACKED):
            yield self._number(0, rows)
            return
        first = done = 0
        legacy = LegacyRun()
        for number in range(rows):
            row = self.table[number]
            is_legacy = row[at.STATE] == BatchState.PACKED and row[at.COUNT] < 0
            if is_legacy and self._add_legacy(legacy, row):
                continue
            done = self._flush_legacy(legacy, done)
            if self._chunk.used - length >= SCRATCH_BYTES:
                yield self._number(first, done)
                first = done = number
                self._chunk.used = length
            if is_legacy:
                self._add_legacy(legacy, row)
                continue
            if row[at.STATE] == BatchState.PACKED:
                self._decompress(row)
            self.table[done] = row
            done += 1
        done = self._flush_legacy(legacy, done)
        if done > first:
            yield self._number(first, done)

    def _decompress(self, row: IntegerArray) -> None:
        """Put header and records of a compressed batch into the scratch, or mark it POISON."""
        body, size = int(row[at.BODY]), int(row[at.BODY_SIZE])
        packed = self.buffer.data[body : body + size]
        try:
            records = decompress(packed, int(row[at.ATTRIBUTES]) & at.CODEC_MASK, self._max_decompressed_bytes)
        except _UNREADABLE:
            row[at.STATE], row[at.REASON] = BatchState.POISON, Unreadable.CODEC
            return
        if row[at.COUNT] < 0 or row[at.COUNT] * at.SMALLEST_RECORD > len(records):
            row[at.STATE], row[at.REASON] = BatchState.POISON, Unreadable.COUNT
            return
        header = self.buffer[body - BATCH_OVERHEAD : body].copy()
        self._place(row, header, records, BatchState.EXPANDED)

    def _place(
        self, row: IntegerArray, header: ByteArray, records: bytes | bytearray | memoryview, state: BatchState
    ) -> None:
        start = self._reserve(BATCH_OVERHEAD + len(records))
        body = start + BATCH_OVERHEAD
        self.buffer[start:body] = header
        self.buffer[body : body + len(records)] = np.frombuffer(records, np.uint8)
        row[at.BODY], row[at.BODY_SIZE], row[at.STATE] = body, len(records), state

    def _add_legacy(self, run: LegacyRun, row: IntegerArray) -> bool:
        """Take an old message into ``run``; False when it does not fit there and the run must be flushed first."""
        position, size = int(row[at.POSITION]), int(row[at.SIZE])
        try:
            batch = LegacyRecordBatch(self.buffer[position : position + size].data)
            batch.ensure_valid()
            records = list(batch.records(self._max_decompressed_bytes))
        except _UNREADABLE:
            if run.rows:
                return False
            row[at.STATE], row[at.REASON] = BatchState.POISON, Unreadable.MESSAGE_SET
            run.poison = row.copy()
            return True
        return run.add(row, batch, records)

    def _flush_legacy(self, run: LegacyRun, done: int) -> int:
        """Write the run's version 2 batch to the scratch and its row to the table; returns the rows done."""
        if run.poison is not None:
            self.table[done] = run.poison
            run.poison = None
            return done + 1
        if not run.rows:
            return done
        row, batch = run.finish()
        header: ByteArray = np.frombuffer(batch, np.uint8, BATCH_OVERHEAD)
        self._place(row, header, memoryview(batch)[BATCH_OVERHEAD:], BatchState.CONVERTED)
        self.table[done] = row
        return done + 1


class LegacyRun:
    """Old messages in a row that become one version 2 batch; a compressed set stays a batch of its own."""

    def __init__(self) -> None:
        self.rows: list[IntegerArray] = []
        self.poison: IntegerArray | None = None
        self._records: list[Record] = []
        self._codec = self._timestamp_type = self._bytes = 0

    def add(self, row: IntegerArray, batch: LegacyRecordBatch, records: list[Record]) -> bool:
        """Take the records of one message or set; False when they belong into a run of their own."""
        if self.poison is not None:
            return False
        full = len(self._records) >= CONVERTED_RECORDS or self._bytes >= CONVERTED_BYTES
        alike = not self._codec and not batch.compression_type and batch.timestamp_type == self._timestamp_type
        # Two sets stamped by the broker share a batch only when they share the stamp, which a batch has once.
        same_stamp = not self._timestamp_type or (self._records and self._records[0].timestamp == batch.max_timestamp)
        follows = not self._records or records[0].offset > self._records[-1].offset
        if self.rows and (full or not alike or not same_stamp or not follows):
            return False
        self.rows.append(row.copy())
        self._records += records
        self._codec, self._timestamp_type = batch.compression_type, batch.timestamp_type
        self._bytes += int(row[at.SIZE])
        return True

    def finish(self) -> tuple[IntegerArray, bytearray]:
        """The row and the uncompressed version 2 batch; the run is empty then."""
        records, rows = self._records, self.rows
        append_time = records[0].timestamp if self._timestamp_type else None
        batch = build_batch(records, BatchOptions(log_append_time=append_time))
        # The codec goes into the header, so that the cleaned batch is compressed as the set was.
        attributes = self._codec | (at.TIMESTAMP_TYPE_MASK if self._timestamp_type else 0)
        batch[21:23] = attributes.to_bytes(2, "big")
        row = rows[0]
        row[at.SIZE] = sum(int(other[at.SIZE]) for other in rows)
        row[at.BASE_OFFSET], row[at.COUNT] = records[0].offset, len(records)
        row[at.LAST_OFFSET_DELTA] = records[-1].offset - records[0].offset
        row[at.ATTRIBUTES], row[at.BASE_TIMESTAMP] = attributes, records[0].timestamp
        row[at.MAX_TIMESTAMP] = max(record.timestamp for record in records)
        row[at.PRODUCER_ID] = row[at.PRODUCER_EPOCH] = -1
        self.__init__()  # type: ignore[misc]
        return row, batch
