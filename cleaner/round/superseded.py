"""Index pass of a round: finds the records that are superseded by a later record with the same key.

It walks the dirty section once and sets one bit for each superseded record. If the map can hold all keys, records of
the clean section are looked up in it when the copy pass reads them. If it cannot, the keys go through a file
(``tidelog.cleaner.round.spill``), and the clean section is walked here as well. So in an undamaged log each of the two
passes goes over a batch at most once, whatever the number of keys. Stretches without a record to keep are not read
again (``tidelog.cleaner.round.stretches``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tidelog.cleaner.engine import batch_table as at
from tidelog.cleaner.engine.arrays import ByteArray, IntegerArray
from tidelog.cleaner.engine.engine import Engine, KeyMap
from tidelog.cleaner.engine.transaction_rows import TransactionRows
from tidelog.cleaner.errors import UnframedSegmentError
from tidelog.cleaner.round.chunk import Reading, Step
from tidelog.cleaner.round.segment_reader import SegmentReader
from tidelog.cleaner.round.spill import Bits, Spill
from tidelog.cleaner.round.stretches import Stretch, Stretches
from tidelog.log.segment.segment import LogSegment


@dataclass(frozen=True, slots=True)
class Section:
    """Segments in offset order, and the offset at which each ends (the next one's base offset)."""

    segments: Sequence[LogSegment]
    ends: Sequence[int]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)


class KeyTable:
    """Memory for the keys of one step, in the form of ``Engine.parse``. One thread at a time fills it."""

    def __init__(self) -> None:
        self._rows: IntegerArray = np.zeros((0, 3), np.int64)

    def reserve(self, count: int) -> IntegerArray:
        """Return rows for at least ``count`` keys, with any content."""
        if len(self._rows) < count:
            self._rows = np.empty((2 * count, 3), np.int64)
        return self._rows


class KeyIndex:
    """Keys of one round, and the superseded bits. ``check`` is called between steps and may raise."""

    def __init__(self, engine: Engine, key_map: KeyMap, directory: str, check: Callable[[int], None]) -> None:
        self._engine = engine
        self._map = key_map
        self._directory = directory
        self._check = check
        self._clean = Bits(directory)
        self._dirty = Bits(directory)
        self._spill: Spill | None = None
        self._first_ordinals: dict[int, int] = {}
        self._end_ordinals: dict[int, int] = {}
        self._stretches = Stretches()
        self._keys = KeyTable()
        # Two tables for keys that are parsed ahead: one is filled while the other's keys are put into the map.
        self._ahead = (KeyTable(), KeyTable())
        self.unframed: dict[int, UnframedSegmentError] = {}
        self.utilization = 0.0

    @property
    def spilled_bytes(self) -> int:
        """Bytes of digests in the temporary file; 0 if the map held all keys."""
        return 0 if self._spill is None else self._spill.size_bytes

    @property
    def collision_rate(self) -> float:
        """Probes after the first one, on average for each look-up."""
        return self._map.collision_rate

    def build(
        self, reader: SegmentReader, clean: Section, dirty: Section, transactions: Callable[[], TransactionRows]
    ) -> None:
        """Walk the dirty section, and the clean one if the map became full; set the bits of superseded records. Raises
        KafkaStorageError and what ``check`` raises."""
        self._walk(reader, dirty, at.DIRTY_ORDINALS, transactions())
        self.utilization = 1.0 if self._spill else self._map.size / self._map.limit
        if self._spill is None:
            return
        self._walk(reader, clean, 0, transactions())
        self._spill.add(self._map)
        self._spill.resolve(self._map, self._bits(), lambda: self._check(0))

    def _bits(self) -> tuple[ByteArray, ByteArray]:
        return self._clean.array, self._dirty.array

    def _walk(self, reader: SegmentReader, section: Section, ordinal: int, transactions: TransactionRows) -> None:
        first = ordinal
        bits = self._dirty if ordinal >= at.DIRTY_ORDINALS else self._clean

        def prepare(step: Step) -> Step:
            """Decide about a step's batches. If none of them was expanded, parse the keys too: a helper thread that
            reads ahead then has little else to do."""
            self._engine.decide(step.buffer, step.table, step.rows, transactions)
            if not step.is_plain:
                return step
            self._ahead = self._ahead[::-1]
            return replace(step, keys=self._parse(step.buffer, step.table, step.rows, self._ahead[0]))

        for segment, end in zip(section.segments, section.ends, strict=True):
            self._first_ordinals[segment.base_offset] = ordinal
            before = reader.bytes_read
            try:
                for rows in reader.steps(Reading(segment, end, ordinal, (0, segment.size), prepare)):
                    self._check(reader.bytes_read - before)
                    before = reader.bytes_read
                    bits.reserve(reader.ordinal - first)
                    keys = reader.keys
                    if keys is None:
                        keys = self._parse(reader.buffer, reader.table, rows, self._keys)
                    self._put(reader.buffer, keys)
                    self._stretches.note(segment.base_offset, reader.position, reader.table[slice(*rows)])
            except UnframedSegmentError as error:
                self.unframed[segment.base_offset] = error
            ordinal = self._end_ordinals[segment.base_offset] = reader.ordinal

    def _parse(self, buffer: ByteArray, table: IntegerArray, rows: tuple[int, int], keys: KeyTable) -> IntegerArray:
        """Return the keys of the rows' records; valid until ``keys`` is filled again."""
        batches = table[rows[0] : rows[1]]
        records = int(np.where(batches[:, at.STATE] == at.BatchState.POISON, 0, batches[:, at.COUNT]).sum())
        reserved = keys.reserve(records)
        return reserved[: self._engine.parse(buffer, table, rows, reserved)]

    def _put(self, buffer: ByteArray, keys: IntegerArray) -> None:
        while len(keys):
            done = self._map.put(buffer, keys, len(keys), self._bits())
            keys = keys[done:]
            if len(keys):
                if self._spill is None:
                    self._spill = Spill(self._engine, self._directory)
                self._spill.add(self._map)

    def find_superseded_bits(self, reader: SegmentReader, rows: tuple[int, int]) -> at.SupersededBits:
        """Return the superseded bits for rows of a step in the copy pass."""
        first = int(reader.table[rows[0], at.ORDINAL]) if rows[1] > rows[0] else 0
        if first >= at.DIRTY_ORDINALS or self._spill is not None:
            return self._bits_of(first)
        bits: ByteArray = np.zeros((reader.ordinal - first) // 8 + 1, np.uint8)
        keys = self._parse(reader.buffer, reader.table, rows, self._keys)
        self._map.look_up(reader.buffer, keys, len(keys), bits, first)
        return at.SupersededBits(bits, first)

    def _bits_of(self, ordinal: int) -> at.SupersededBits:
        if ordinal >= at.DIRTY_ORDINALS:
            return at.SupersededBits(self._dirty.array, at.DIRTY_ORDINALS)
        return at.SupersededBits(self._clean.array, 0)

    def find_superseded(self, segment: LogSegment, last_offsets: IntegerArray) -> list[Stretch]:
        """Return the stretches of ``segment`` that need not be read again; see :meth:`Stretches.find_superseded`."""
        bits = self._bits_of(self.first_ordinal(segment))
        return self._stretches.find_superseded(segment.base_offset, bits, last_offsets)

    def first_ordinal(self, segment: LogSegment) -> int:
        """Return the first ordinal of a segment in the copy pass; 0 if the index pass did not walk the segment."""
        return self._first_ordinals.get(segment.base_offset, 0)

    def end_ordinal(self, segment: LogSegment) -> int | None:
        """Return the ordinal after a segment's last record; None if the index pass did not walk the segment."""
        return self._end_ordinals.get(segment.base_offset)

    def close(self) -> None:
        """Free memory and files."""
        self._clean.close()
        self._dirty.close()
        self._map.close()
        if self._spill is not None:
            self._spill.close()
