"""Reader of a segment in steps: it divides the bytes into batches, decompresses, converts and numbers them.

A buffer holds a chunk of the segment and, after it, scratch memory for batches that must be expanded. Compressed
batches are decompressed there after a copy of their header. Old message sets (magic 0 and 1) become version 2 batches
there; consecutive single messages share one. When the scratch memory is full, the rows done so far are yielded as a
step. The next step has another buffer, so that one can be filled while the other is used.

The records of readable batches are numbered here in file order: these numbers are the *ordinals*. The buffer is
enlarged for a batch that does not fit, and becomes smaller again later.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tidelog.cleaner.engine import batch_table as at
from tidelog.cleaner.engine.arrays import ByteArray, IntegerArray
from tidelog.cleaner.engine.batch_table import BATCH_OVERHEAD, BatchState, Unreadable
from tidelog.cleaner.engine.engine import Engine
from tidelog.cleaner.errors import UnframedSegmentError
from tidelog.cleaner.round.chunk import Chunk, Reading, Step, store_expanded
from tidelog.cleaner.round.message_sets import MAX_OFFSET_DELTA, LegacyRun
from tidelog.log.system.file_system import LogStorageError
from tidelog.protocol.errors import (
    CorruptMessageError,
    InvalidRecordError,
    MessageTooLargeError,
    UnsupportedCompressionTypeError,
)
from tidelog.protocol.record.compression import CompressionType, decompress, decompress_zstd_frames, zstd_size
from tidelog.protocol.record.crc import crc32, crc32c
from tidelog.protocol.record.message_set import LegacyRecordBatch
from tidelog.protocol.record.record_batch import CRC_OFFSET, MAGIC_OFFSET, MAGIC_V2, Buffer, Record

#: Expanded bytes after which a step ends: many small compressed batches share a step, a large one has its own.
SCRATCH_BYTES = 4 * 1024 * 1024
#: If a chunk's batches are on average larger than a 16th of ``io_buffer_bytes``, the next chunk has four times as many
#: bytes. A batch that is cut at a chunk's end is read again: a tenth of all bytes with batches of 200 KB in chunks of
#: 1 MB. 400 MB of such batches take 0.25 s of CPU with the larger chunks, and 0.37 s with the smaller ones.
LARGE_BATCH_SHARE = 16
LARGE_CHUNK_BUFFERS = 4
#: Before a larger batch gets memory, its checksum is compared: a damaged length may claim the rest of the segment.
LARGE_CLAIM_BYTES = 64 * 1024 * 1024
#: Largest number of unreadable batches that are listed in reports; all are counted.
REPORTED_BATCHES = 100

_POISON, _PACKED = int(BatchState.POISON), int(BatchState.PACKED)
_ZSTD = int(CompressionType.ZSTD)
_FACTS = [at.STATE, at.ATTRIBUTES, at.COUNT, at.BODY, at.BODY_SIZE]
"""The columns that are needed to expand a batch."""

_UNREADABLE = (InvalidRecordError, CorruptMessageError, MessageTooLargeError, UnsupportedCompressionTypeError)


@dataclass(frozen=True, slots=True)
class UnreadableBatch:
    """A batch that could not be read, and was kept as it is: its segment's base offset, its byte in the segment, and
    its offset. For a segment that is not cleaned, ``position`` is the byte where no batch begins, and the offset is -1.
    """

    segment: int
    position: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"segment {self.segment}, byte {self.position}, offset {self.offset}: {self.reason}"


def is_always_allowed() -> bool:
    """Return True: reading ahead is always allowed."""
    return True


class SegmentReader:
    """Reader of segments for one round. ``buffer`` and ``table`` are valid until ``steps`` yields the next step.

    With an engine that works without the interpreter lock, a helper thread reads, checks, decompresses and prepares the
    next step meanwhile, if ``reads_ahead`` returns True.
    """

    def __init__(
        self,
        engine: Engine,
        io_buffer_bytes: int,
        max_decompressed_bytes: int,
        *,
        reads_ahead: Callable[[], bool] = is_always_allowed,
    ) -> None:
        self._engine = engine
        self._chunk_bytes = max(io_buffer_bytes, 1024)
        self._max_decompressed_bytes = max_decompressed_bytes
        self._chunk = Chunk(self._chunk_bytes)
        self._ahead = self._chunk
        self._helper: ThreadPoolExecutor | None = None
        self._reads_ahead = reads_ahead
        if engine.name != "reference":
            self._ahead = Chunk(self._chunk_bytes)
            self._helper = ThreadPoolExecutor(1, "log-cleaner-reader")
        self._ordinal = self._bytes_read = 0
        self._segment = 0
        self._offsets = (0, 0)
        self._batches_are_large = False
        self._step = Step(self._chunk.buffer, self._chunk.table, (0, 0), 0, 0, 0)

    @property
    def buffer(self) -> ByteArray:
        """The bytes of the current step: a chunk and its scratch memory."""
        return self._step.buffer

    @property
    def table(self) -> IntegerArray:
        """The batch table of the current step."""
        return self._step.table

    @property
    def ordinal(self) -> int:
        """The ordinal after the current step's last record."""
        return self._step.ordinal

    @property
    def position(self) -> int:
        """The byte of the segment's file at which the buffer begins."""
        return self._step.position

    @property
    def bytes_read(self) -> int:
        """Bytes read so far, up to the end of the current step's chunk."""
        return self._step.bytes_read

    def close(self) -> None:
        """End the helper thread."""
        if self._helper is not None:
            self._helper.shutdown()

    @property
    def keys(self) -> IntegerArray | None:
        """The keys of the current step's records, if ``prepare`` has parsed them."""
        return self._step.keys

    def steps(self, reading: Reading) -> Iterator[tuple[int, int]]:
        """Yield the rows (first, end) of each step. Records are numbered from ``reading.ordinal`` on.

        Raises UnframedSegmentError; KafkaStorageError if the file cannot be read or was closed.
        """
        self._ordinal, self._segment = reading.ordinal, reading.segment.base_offset
        self._step = replace(self._step, ordinal=reading.ordinal)
        steps = self._read_steps(reading)
        pending = self._read_ahead(steps)
        try:
            while (ready := next(steps, None) if pending is None else pending.result()) is not None:
                pending = self._read_ahead(steps)
                self._step = ready
                yield ready.rows
        finally:
            if pending is not None:
                wait([pending])
            steps.close()

    def _read_ahead(self, steps: Iterator[Step]) -> Future[Step | None] | None:
        if self._helper is None or not self._reads_ahead():
            return None
        return self._helper.submit(next, steps, None)

    def _read_steps(self, reading: Reading) -> Generator[Step, None, None]:
        """Yield steps. With a helper thread, a step's buffer and table rows stay unchanged until the next step but one
        is begun."""
        segment = reading.segment
        self._offsets = offsets = (segment.base_offset, reading.next_base_offset)
        shared = segment.records.shared
        shared.retain()
        try:
            position, size = reading.span
            while position < size:
                self._chunk, self._ahead = self._ahead, self._chunk
                chunk = self._chunk
                self._fill(chunk, shared.fileno(), (position, size), offsets)
                if chunk.rows == 0:
                    raise UnframedSegmentError(segment.base_offset, position)
                position += chunk.framed
                self._bytes_read += chunk.framed
                for rows in self._expand(chunk):
                    self._number(chunk.table, rows)
                    counts = (self._ordinal, self._bytes_read)
                    step = Step(chunk.buffer, chunk.table, rows, chunk.position, *counts, chunk.is_plain)
                    yield reading.prepare(step)
        finally:
            shared.release()

    def _fill(self, chunk: Chunk, fd: int, span: tuple[int, int], offsets: tuple[int, int]) -> None:
        """Read a chunk from byte ``span[0]`` of a file, and frame it; bytes from ``span[1]`` on are not read. The chunk
        has no rows if no batch is framed.

        Raises KafkaStorageError.
        """
        position, end = span
        if len(chunk.buffer) > 4 * (self._chunk_bytes + SCRATCH_BYTES):
            chunk.buffer, chunk.spare = np.zeros(self._chunk_bytes + at.PADDING, np.uint8), np.zeros(0, np.uint8)
        wanted = self._chunk_bytes * (LARGE_CHUNK_BUFFERS if self._batches_are_large else 1)
        while True:
            self._read(chunk, fd, position, min(wanted, end - position))
            chunk.rows, chunk.framed, claimed = self._engine.scan(chunk.buffer, (0, chunk.length), offsets, chunk.table)
            if chunk.rows or not chunk.length < claimed <= end - position:
                break
            if claimed > LARGE_CLAIM_BYTES and not self._matches_checksum(chunk, fd, position, claimed):
                break
            wanted = claimed
        self._batches_are_large = LARGE_BATCH_SHARE * chunk.framed > chunk.rows * self._chunk_bytes

    def find_unreadable(self, rows: tuple[int, int]) -> list[UnreadableBatch]:
        """Return the batches among ``rows`` that cannot be read."""
        table = self.table[rows[0] : rows[1]]
        poison = table[table[:, at.STATE] == _POISON]
        return [
            UnreadableBatch(
                self._segment,
                self._step.position + int(row[at.POSITION]),
                int(row[at.BASE_OFFSET]),
                Unreadable(int(row[at.REASON])).sentence,
            )
            for row in poison
        ]

    def _matches_checksum(self, chunk: Chunk, fd: int, position: int, size: int) -> bool:
        """Read a batch of ``size`` bytes piece by piece; return whether its checksum is right. ``chunk`` has the
        beginning of the batch. Raises KafkaStorageError.
        """
        head = chunk.buffer.data
        is_legacy = head[MAGIC_OFFSET] < MAGIC_V2
        crc_offset, checksum = (MAGIC_OFFSET - 4, crc32) if is_legacy else (CRC_OFFSET, crc32c)
        first = crc_offset + 4
        found, piece = 0, memoryview(bytearray(self._chunk_bytes))
        while first < size:
            done = self._read_at(fd, piece[: size - first], position + first)
            if not done:
                return False
            found = checksum(piece[:done], found)
            first += done
        return found == int.from_bytes(head[crc_offset : crc_offset + 4], "big")

    def _read_at(self, fd: int, view: memoryview, position: int) -> int:
        """Read into ``view`` from a byte of the file; return how many bytes. Raises KafkaStorageError."""
        try:
            return os.preadv(fd, [view], position)
        except OSError as error:
            raise LogStorageError("read", f"segment {self._segment}", error.errno or errno.EIO) from error

    def _read(self, chunk: Chunk, fd: int, position: int, size: int) -> None:
        if size + at.PADDING > len(chunk.buffer):
            chunk.buffer = np.zeros(max(size + at.PADDING, 2 * len(chunk.buffer)), np.uint8)
        view = chunk.buffer.data
        done = 0
        while done < size:
            got = self._read_at(fd, view[done:size], position + done)
            if not got:
                break
            done += got
        chunk.position, chunk.length, chunk.used = position, done, done

    def _number(self, table: IntegerArray, rows: tuple[int, int]) -> None:
        """Set the first ordinals of the rows' readable batches."""
        table = table[rows[0] : rows[1]]
        counts = np.where(table[:, at.STATE] == _POISON, 0, table[:, at.COUNT])
        ends = np.cumsum(counts)
        table[:, at.ORDINAL] = self._ordinal + ends - counts
        self._ordinal += int(ends[-1]) if len(ends) else 0

    def _expand(self, chunk: Chunk) -> Iterator[tuple[int, int]]:
        """Expand the rows that need it. Yield (first, end) of the rows done whenever the scratch is full, and at the
        end."""
        table = chunk.table[: chunk.rows]
        packed = table[:, at.STATE] == _PACKED
        chunk.is_plain = not packed.any()
        if chunk.is_plain:
            yield 0, chunk.rows
        elif (packed & (table[:, at.COUNT] < 0)).any():
            yield from self._expand_with_legacy(chunk)
        else:
            yield from self._expand_packed(chunk)

    def _expand_packed(self, chunk: Chunk) -> Iterator[tuple[int, int]]:
        first = number = 0
        facts = chunk.table[: chunk.rows, _FACTS].tolist()  # a list, because reading numpy scalars takes much longer
        chunk.enlarge(SCRATCH_BYTES)
        while number < chunk.rows:
            full = chunk.length + SCRATCH_BYTES
            limits = at.ExpandLimits(len(chunk.buffer) - at.PADDING, self._max_decompressed_bytes, full)
            if facts[number][1] & at.CODEC_MASK == at.LZ4:
                number, chunk.used = self._engine.expand(
                    chunk.buffer, chunk.table, (number, chunk.rows), chunk.used, limits
                )
                if number == chunk.rows:
                    break
            if chunk.used >= full:
                yield first, number
                first = number
                chunk.renew_scratch()
            elif facts[number][0] == _PACKED:
                number = self._decompress_run(chunk, number, facts, full - chunk.used)
            else:
                number += 1
        yield first, chunk.rows

    def _decompress_run(self, chunk: Chunk, number: int, facts: list[list[int]], free: int) -> int:
        """Decompress the batch ``number``, and with zstd also the zstd batches after it, until ``free`` bytes are used;
        return the next number."""
        view, end = chunk.buffer.data, number
        parts: list[memoryview] = []
        sizes: list[int] = []
        total = 0
        while end < len(facts) and total < free:
            state, attributes, count, body, size = facts[end]
            if state != _PACKED or attributes & at.CODEC_MASK != _ZSTD or count < 0:
                break
            part = view[body : body + size]
            sizes.append(zstd_size(part, self._max_decompressed_bytes))
            if not sizes[-1]:
                sizes.pop()
                break
            parts.append(part)
            total += sizes[-1]
            end += 1
        found = decompress_zstd_frames(parts, sizes) if len(parts) > 1 else None
        if found is None:
            self._decompress(chunk, number, facts[number])
            return number + 1
        for row, records in enumerate(found, number):
            self._take(chunk, row, facts[row], records)
        return end

    def _expand_with_legacy(self, chunk: Chunk) -> Iterator[tuple[int, int]]:
        first = done = 0
        legacy = LegacyRun()
        table = chunk.table
        for number in range(chunk.rows):
            row = table[number]
            is_legacy = row[at.STATE] == _PACKED and row[at.COUNT] < 0
            if is_legacy and self._add_legacy(legacy, row):
                continue
            done = self._flush_legacy(legacy, done)
            if chunk.used - chunk.length >= SCRATCH_BYTES:
                yield first, done
                first = done = number
                chunk.renew_scratch()
            if is_legacy:
                self._add_legacy(legacy, row)
                continue
            table[done] = row
            if row[at.STATE] == _PACKED:
                self._decompress(chunk, done, row[_FACTS].tolist())
            done += 1
        done = self._flush_legacy(legacy, done)
        if done > first:
            yield first, done

    def _decompress(self, chunk: Chunk, number: int, fact: list[int]) -> None:
        """Decompress a batch into the scratch, after a copy of its header; if that fails, mark its row as POISON."""
        _, attributes, _, body, size = fact
        packed = chunk.buffer.data[body : body + size]
        try:
            records = decompress(packed, attributes & at.CODEC_MASK, self._max_decompressed_bytes)
        except _UNREADABLE:
            row = chunk.table[number]
            row[at.STATE], row[at.REASON] = _POISON, Unreadable.CODEC
            return
        self._take(chunk, number, fact, records)

    @staticmethod
    def _take(chunk: Chunk, number: int, fact: list[int], records: Buffer) -> None:
        """Copy a batch's header and decompressed records into the scratch; if its record count is impossible, mark its
        row as POISON."""
        _, _, count, body, _ = fact
        row = chunk.table[number]
        if count < 0 or count * at.SMALLEST_RECORD > len(records):
            row[at.STATE], row[at.REASON] = _POISON, Unreadable.COUNT
            return
        store_expanded(chunk, row, chunk.buffer.data[body - BATCH_OVERHEAD : body], records, BatchState.EXPANDED)

    def _add_legacy(self, run: LegacyRun, row: IntegerArray) -> bool:
        """Add an old message to ``run``, as its ``unreadable`` row if it cannot be read; return False if the run must
        be flushed first."""
        position, size = int(row[at.POSITION]), int(row[at.SIZE])
        try:
            batch = LegacyRecordBatch(self._chunk.buffer[position : position + size].data)
            batch.ensure_valid()
            records = list(batch.records(self._max_decompressed_bytes))
            reason = Unreadable.NONE if self._are_offsets_possible(records) else Unreadable.COUNT
        except _UNREADABLE:
            reason = Unreadable.MESSAGE_SET
        if reason is Unreadable.NONE:
            return run.add(row, batch, records)
        if run.rows or run.unreadable is not None:
            return False
        row[at.STATE], row[at.REASON] = BatchState.POISON, reason
        run.unreadable = row.copy()
        return True

    def _are_offsets_possible(self, records: list[Record]) -> bool:
        """Return whether the offsets of old messages grow, and fit their segment and one batch. This is checked because
        no checksum covers them."""
        first, last = records[0].offset, records[-1].offset
        grow = all(earlier.offset < later.offset for earlier, later in pairwise(records))
        return grow and self._offsets[0] <= first and last < self._offsets[1] and last - first <= MAX_OFFSET_DELTA

    def _flush_legacy(self, run: LegacyRun, done: int) -> int:
        """Write the run's version 2 batch to the scratch and its row to the table; return the number of rows done."""
        table = self._chunk.table
        if run.unreadable is not None:
            table[done] = run.unreadable
            run.unreadable = None
            return done + 1
        if not run.rows:
            return done
        row, batch = run.finish()
        view = memoryview(batch)
        store_expanded(self._chunk, row, view[:BATCH_OVERHEAD], view[BATCH_OVERHEAD:], BatchState.CONVERTED)
        table[done] = row
        return done + 1
