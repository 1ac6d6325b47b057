"""A chunk of a segment in memory, the scratch where its batches are expanded, and the steps it is handed out in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tidelog.cleaner.engine import batch_table as at
from tidelog.cleaner.engine.batch_table import BATCH_OVERHEAD, BatchState
from tidelog.cleaner.engine.engine import ByteArray, IntegerArray
from tidelog.log.segment.segment import LogSegment
from tidelog.protocol.record.record_batch import Buffer

#: Rows of the batch table; the rest of a chunk with more batches is read again as another chunk.
TABLE_ROWS = 4096


class Chunk:
    """One stretch of a segment in ``buffer`` and its ``rows`` batches in ``table``.

    It was read from byte ``position`` of the file and has ``length`` bytes, of which whole batches take ``framed``;
    after it, up to ``used``, lies the scratch. ``is_plain``: no batch has to be expanded.
    """

    __slots__ = ("buffer", "framed", "is_plain", "length", "position", "rows", "spare", "table", "used")

    def __init__(self, size: int) -> None:
        self.buffer: ByteArray = np.zeros(size + at.PADDING, np.uint8)
        self.spare: ByteArray = np.zeros(0, np.uint8)
        self.table: IntegerArray = np.zeros((TABLE_ROWS, at.COLUMNS), np.int64)
        self.position = self.length = self.used = self.rows = self.framed = 0
        self.is_plain = True

    def renew_scratch(self) -> None:
        """Start an empty scratch in a new buffer: the caller still works on the one before."""
        self.buffer, self.spare = self.spare, self.buffer
        if len(self.buffer) < len(self.spare):
            self.buffer = np.empty(len(self.spare), np.uint8)
        self.buffer[: self.length] = self.spare[: self.length]
        self.used = self.length

    def reserve(self, size: int) -> int:
        """Reserve ``size`` bytes after what is used; returns where they begin."""
        start = self.used
        if start + size + at.PADDING > len(self.buffer):
            self.make_room(max(size, len(self.buffer)))
        self.used = start + size
        return start

    def make_room(self, size: int) -> None:
        """Grow the buffer until it has ``size`` bytes after what is used."""
        wanted = self.used + size + at.PADDING
        if wanted > len(self.buffer):
            larger: ByteArray = np.zeros(wanted, np.uint8)
            larger[: self.used] = self.buffer[: self.used]
            self.buffer = larger


@dataclass(frozen=True, slots=True)
class Step:
    """Batches ready to be worked on: rows of ``table`` over ``buffer``, which was read from byte ``position``.

    ``ordinal`` and ``bytes_read`` are the reader's counts after these rows. ``is_plain``: no row was expanded.
    ``keys``: the keys of the rows' records, if they were parsed ahead.
    """

    buffer: ByteArray
    table: IntegerArray
    rows: tuple[int, int]
    position: int
    ordinal: int
    bytes_read: int
    is_plain: bool = True
    keys: IntegerArray | None = None


def as_it_is(step: Step) -> Step:
    """Return the step without any preparation."""
    return step


@dataclass(frozen=True, slots=True)
class Reading:
    """Request to read part of a segment: bytes ``span``, from the beginning of a batch to the end of one.

    ``next_base_offset``: the lowest offset beyond the segment. ``ordinal``: of the first record. ``prepare`` is called
    for each step in order before the step is worked on, perhaps in another thread.
    """

    segment: LogSegment
    next_base_offset: int
    ordinal: int
    span: tuple[int, int]
    prepare: Callable[[Step], Step] = as_it_is


def place(chunk: Chunk, row: IntegerArray, header: memoryview, records: Buffer, state: BatchState) -> None:
    """Copy an expanded batch into the scratch and note its place in its row."""
    start = chunk.reserve(BATCH_OVERHEAD + len(records))
    body = start + BATCH_OVERHEAD
    view = chunk.buffer.data
    view[start:body] = header
    view[body : body + len(records)] = records
    row[at.BODY], row[at.BODY_SIZE], row[at.STATE] = body, len(records), state
