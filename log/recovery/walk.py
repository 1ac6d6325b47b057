"""Recovery of a segment's valid magic 2 batches by kernels.

A chunk is read into a buffer that is used again, ``tidelog.log.recovery.scan_kernels`` walks it without the interpreter
lock, and its results are applied in bulk: index entries as bytes, leader epochs, and those producer batches that a
replay cannot do without. At the first batch the kernel does not take, the plain walk goes on
(``tidelog.log.recovery.segment_recovery``). Neither numba nor numpy is needed: a broker that recovers imports nothing
for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.log.index.time_index import TimestampOffset
from tidelog.log.recovery import scan_layout as slot
from tidelog.log.segment.batch_scan import BatchHeader

if TYPE_CHECKING:
    from tidelog.log.recovery.segment_recovery import SegmentRecovery

#: 2 MB stay in a core's cache from the read to the CRC: 20 % faster than 16 MB.
CHUNK_BYTES = 2 * 1024 * 1024
#: A batch larger than this is left to the plain walk.
MAX_CHUNK_BYTES = 256 * 1024 * 1024
_ENTRIES_PER_CALL = 4096
_EPOCHS_PER_CALL = 256


class KernelScan:
    """Buffers and tables of one recovery; used by one thread."""

    def __init__(self, kernels: Any) -> None:
        """``kernels``: those of ``tidelog.log.recovery.scan_group``."""
        self._kernels = kernels
        self._buffer = bytearray(CHUNK_BYTES)
        self._walk = _integers(slot.WALK_SLOTS)
        self._offset_entries = bytearray(8 * _ENTRIES_PER_CALL)
        self._time_entries = bytearray(12 * _ENTRIES_PER_CALL)
        self._epochs = _integers(2 * _EPOCHS_PER_CALL)
        self._rows = _integers(slot.PRODUCER_ROWS * slot.ROW_COLUMNS)
        self._producers = _integers(slot.PRODUCER_SLOTS), bytearray(slot.PRODUCER_SLOTS)
        self._needed = _integers(slot.PRODUCER_ROWS)

    def run(self, work: SegmentRecovery) -> None:
        """Advance ``work`` over the valid batches. Raises KafkaStorageError."""
        self._begin(work)
        position, end = work.valid, work.segment.size
        while position < end:
            wanted = min(len(self._buffer), end - position)
            size = work.segment.records.read_into(position, memoryview(self._buffer)[:wanted])
            consumed, is_done = self._scan_chunk(work, position, size)
            position += consumed
            if is_done:
                return
            if consumed == 0 and not self._enlarge(wanted, end - position):
                return

    def _enlarge(self, wanted: int, remaining: int) -> bool:
        """A larger buffer for a batch that did not fit; false when the file or the limit ends it."""
        if wanted == remaining or wanted >= MAX_CHUNK_BYTES:
            return False
        self._buffer = bytearray(2 * wanted)
        return True

    def _begin(self, work: SegmentRecovery) -> None:
        walk, builder = self._walk, work.builder
        walk[slot.SEGMENT_BASE] = work.segment.base_offset
        walk[slot.INTERVAL] = builder.interval_bytes
        walk[slot.NEXT_OFFSET] = work.next_offset
        walk[slot.LAST_ENTRY] = builder.last_entry_position
        walk[slot.LARGEST], walk[slot.LARGEST_OFFSET] = builder.largest
        walk[slot.LAST_TIME] = work.segment.time_index.last_entry.timestamp
        walk[slot.LATEST_EPOCH] = work.epochs.latest_epoch
        walk[slot.OFFSET_ROOM] = work.segment.offset_index.room
        walk[slot.TIME_ROOM] = work.segment.time_index.room

    def _scan_chunk(self, work: SegmentRecovery, position: int, size: int) -> tuple[int, bool]:
        """(bytes consumed, whether the kernel goes no further)."""
        walk = self._walk
        consumed = 0
        while True:
            bounds = consumed, size, position
            status = self._kernels.scan(
                self._buffer, bounds, walk, self._offset_entries, self._time_entries, self._epochs, self._rows
            )
            self._apply(work, position)
            consumed = walk[slot.CONSUMED]
            work.advance(position + consumed, walk[slot.NEXT_OFFSET])
            if status != slot.TABLE_FULL:
                return consumed, status == slot.NOT_MINE

    def _apply(self, work: SegmentRecovery, position: int) -> None:
        walk, segment, builder = self._walk, work.segment, work.builder
        if count := walk[slot.OFFSET_COUNT]:
            segment.offset_index.append_packed(bytes(self._offset_entries[: 8 * count]))
        if count := walk[slot.TIME_COUNT]:
            segment.time_index.append_packed(bytes(self._time_entries[: 12 * count]))
        builder.last_entry_position = walk[slot.LAST_ENTRY]
        builder.largest = TimestampOffset(walk[slot.LARGEST], walk[slot.LARGEST_OFFSET])
        for number in range(walk[slot.EPOCH_COUNT]):
            work.epochs.assign(*self._epochs[2 * number : 2 * number + 2], write=False)
        if count := walk[slot.ROW_COUNT]:
            found = self._kernels.needed_rows(self._rows, count, *self._producers, self._needed)
            for number in self._needed[:found]:
                first = number * slot.ROW_COLUMNS
                self._replay(work, self._rows[first : first + slot.ROW_COLUMNS], position)

    def _replay(self, work: SegmentRecovery, row: memoryview[int], position: int) -> None:
        at, size, base, delta, max_timestamp, epoch, attributes, producer, producer_epoch, sequence, count = row
        header = BatchHeader(position + at, size, 2, base, base + delta, max_timestamp, epoch, attributes, producer,
                             producer_epoch, sequence, delta, count)  # fmt: skip
        work.replay(header, memoryview(self._buffer)[at : at + size])


def _integers(count: int) -> memoryview[int]:
    """Allocate ``count`` zeros; untouched memory costs nothing, and most segments need little of it."""
    return memoryview(bytearray(8 * count)).cast("q")
