"""A chunk of a segment in memory, the scratch memory in which its batches are expanded, and the steps of a pass.

``tidelog.cleaner.engine.batch_table`` defines chunk, scratch, batch table and ordinal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tidelog.cleaner.engine import batch_table as at
from tidelog.cleaner.engine.arrays import ByteArray, IntegerArray
from tidelog.cleaner.engine.batch_table import BATCH_OVERHEAD, BatchState
from tidelog.log.segment.segment import LogSegment
from tidelog.protocol.record.record_batch import Buffer

#: Largest number of batches in a chunk, one row each. If more were read, the others are read again as the next chunk.
TABLE_ROWS = 4096


class Chunk:
    """Some bytes of a segment in ``buffer``, and their batches in the first ``rows`` rows of ``table``.

    ``length`` bytes were read from byte ``position`` of the file; the first ``framed`` of them are whole batches. The
    scratch memory follows, and is filled up to ``used``. ``is_plain`` says that no batch has to be expanded. ``spare``
    is the buffer of an earlier step, for the next change of buffers.
    """

    __slots__ = ("buffer", "framed", "is_plain", "length", "position", "rows", "spare", "table", "used")

    def __init__(self, size: int) -> None:
        self.buffer: ByteArray = np.zeros(size + at.PADDING, np.uint8)
        self.spare: ByteArray = np.zeros(0, np.uint8)
        self.table: IntegerArray = np.zeros((TABLE_ROWS, at.COLUMNS), np.int64)
        self.position = self.length = self.used = self.rows = self.framed = 0
        self.is_plain = True

    def renew_scratch(self) -> None:
        """Begin an empty scratch in another buffer, because the caller still works on the last one."""
        self.buffer, self.spare = self.spare, self.buffer
        if len(self.buffer) < len(self.spare):
            self.buffer = np.empty(len(self.spare), np.uint8)
        self.buffer[: self.length] = self.spare[: self.length]
        self.used = self.length

    def reserve(self, size: int) -> int:
        """Reserve ``size`` bytes of scratch; return the byte at which they begin."""
        start = self.used
        if start + size + at.PADDING > len(self.buffer):
            self.enlarge(max(size, len(self.buffer)))
        self.used = start + size
        return start

    def enlarge(self, size: int) -> None:
        """Enlarge the buffer so that ``size`` bytes are free in it."""
        wanted = self.used + size + at.PADDING
        if wanted > len(self.buffer):
            larger: ByteArray = np.empty(wanted, np.uint8)
            larger[: self.used] = self.buffer[: self.used]
            self.buffer = larger


@dataclass(frozen=True, slots=True)
class Step:
    """Batches for one step of a pass, none of them PACKED any more: ``rows`` (first, end) of ``table``, whose bytes are
    in ``buffer``.

    The buffer begins at byte ``position`` of the file. ``ordinal`` is the ordinal after the last record of these rows.
    ``bytes_read`` counts the bytes of all batches that the reader has read, up to the end of the chunk. ``is_plain``
    says that no batch was expanded. ``keys`` has the rows of ``Engine.parse`` (key position, key size, ordinal), if the
    ``prepare`` of :class:`Reading` parsed the records.
    """

    buffer: ByteArray
    table: IntegerArray
    rows: tuple[int, int]
    position: int
    ordinal: int
    bytes_read: int
    is_plain: bool = True
    keys: IntegerArray | None = None


def prepare_nothing(step: Step) -> Step:
    """Return the step unchanged."""
    return step


@dataclass(frozen=True, slots=True)
class Reading:
    """Request to read the bytes ``span`` (first, end) of a segment: from the beginning of a batch to the end of one.

    ``next_base_offset`` is the lowest offset after the segment; ``ordinal`` is the first record's. ``prepare`` is
    called for each step in order, before the pass gets it, perhaps in another thread.
    """

    segment: LogSegment
    next_base_offset: int
    ordinal: int
    span: tuple[int, int]
    prepare: Callable[[Step], Step] = prepare_nothing


def store_expanded(chunk: Chunk, row: IntegerArray, header: memoryview, records: Buffer, state: BatchState) -> None:
    """Copy an expanded batch into the scratch: ``header``, then ``records``. Note the position and size of its records,
    and ``state``, in its row."""
    start = chunk.reserve(BATCH_OVERHEAD + len(records))
    body = start + BATCH_OVERHEAD
    view = chunk.buffer.data
    view[start:body] = header
    view[body : body + len(records)] = records
    row[at.BODY], row[at.BODY_SIZE], row[at.STATE] = body, len(records), state
