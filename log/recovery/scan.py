"""Recovery's walk over a chunk of a segment, compiled: checks headers, CRC-32C and offsets, and collects index entries.

``SegmentScan.scan`` walks over whole magic 2 batches from the front of a chunk, as long as each is valid and follows
the one before. It stops at a batch that is damaged, of an old format, or due for an entry in a full index. The walk in
plain Python (``tidelog.log.recovery.segment_recovery``) goes on from there and finds what is wrong. So nothing is
decided about damage here, and both walks give equal results. A follower's append walks over fetched records in the same
way (``tidelog.log.follower.append``).

A call collects index entries in the form of the files (8 and 12 bytes, big-endian), at the batches where appends would
make them; the leader epochs that begin; and a row for each batch that has a producer id. C types are in ``scan.pxd``.
"""

from __future__ import annotations

from typing import Any

from tidelog.protocol.compiled import words

try:
    import cython
except ImportError:
    from tidelog.protocol.compiled import uncompiled as cython

IS_COMPILED = cython.compiled
"""Whether this module runs as machine code."""

_HEADER_BYTES = 61
_LENGTH_OFFSET = 12  # the length field counts the bytes from here on
_MAX_RELATIVE_OFFSET = 0x7FFFFFFF
_CONTROL, _TRANSACTIONAL = 0x20, 0x10
_ENTRIES = 4096
"""Largest number of entries of each index, and of leader epochs, in one call."""
_ROWS, _SLOTS = 8192, 16384
"""Largest number of rows in one call, and of slots in the hash table of producers (``_mask_for``)."""
_ROW_COLUMNS = 11
"""Columns of a row: position in the chunk, size, base offset, last offset delta, largest timestamp, leader epoch,
attributes, producer id, producer epoch, base sequence, record count."""
_PRODUCER, _ATTRIBUTES = 7, 6
_KEPT_BATCHES = 5
_SPREAD = 0x9E3779B97F4A7C15  # multiplier of the hash of a producer id

Integers = memoryview


class SegmentScan:
    """The walk over one segment, chunk by chunk, with the tables that a call fills. One thread at a time."""

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        # Set by the caller before the first call; each call continues from them.
        self.next_offset = base_offset
        self.last_entry_position = 0
        self.largest_timestamp, self.largest_offset = -1, base_offset
        self.last_entry_timestamp = -1
        self.latest_epoch = -1
        self.offset_room, self.time_room = 0, 0
        # Results of a call: the byte of the chunk up to which it walked, and whether it stopped at a batch.
        self.consumed = 0
        self.is_stopped = False
        self._offset_count = self._time_count = self._epoch_count = self._row_count = 0
        self._tables = [bytearray(8 * _ENTRIES), bytearray(12 * _ENTRIES), bytearray(16 * _ENTRIES)]
        self._row_tables = [bytearray(8 * _ROW_COLUMNS * _ROWS), bytearray(8 * _SLOTS), bytearray(_SLOTS)]
        self._needed_table = bytearray(_ROWS)

    def scan(self, chunk: Any, start: int, size: int, file_position: int) -> bool:
        """Walk over ``chunk[start:size]``; byte 0 of ``chunk`` lies at ``file_position`` of the file.

        Returns True if a table is full: call it again from ``consumed`` on. False: no complete batch is left in the
        chunk or, with ``is_stopped``, the plain walk has to take the batch at ``consumed``.
        """
        held = words.hold(chunk)
        offsets = words.hold_writable(self._tables[0])
        times = words.hold_writable(self._tables[1])
        epochs = words.hold_writable(self._tables[2])
        rows = words.hold_writable(self._row_tables[0])
        with cython.nogil:
            is_full = self._walk(
                held.data, start, size, file_position, offsets.bytes, times.bytes, epochs.integers, rows.integers
            )
        words.release(rows)
        words.release(epochs)
        words.release(times)
        words.release(offsets)
        words.release(held)
        return is_full

    def offset_entries(self) -> bytes:
        """Return the offset index entries that the last call made."""
        return bytes(memoryview(self._tables[0])[: 8 * self._offset_count])

    def time_entries(self) -> bytes:
        """Return the time index entries that the last call made."""
        return bytes(memoryview(self._tables[1])[: 12 * self._time_count])

    def epochs(self) -> list[tuple[int, int]]:
        """Return the leader epochs that began in the last call, with their base offsets."""
        table = memoryview(self._tables[2]).cast("q")
        return [(table[2 * number], table[2 * number + 1]) for number in range(self._epoch_count)]

    def needed_rows(self) -> list[tuple[int, ...]]:
        """Return the rows of the last call, in order, from which the same producer state is rebuilt as from all rows.

        These are, of each producer, the first row, the last five data batches, all control batches, and the first
        batch of each transaction. So a log of one busy producer needs a handful of rows for each chunk.
        """
        if self._row_count == 0:
            return []
        rows = words.hold(self._row_tables[0])
        producers = words.hold_writable(self._row_tables[1])
        marks = words.hold_writable(self._row_tables[2])
        needed = words.hold_writable(self._needed_table)
        with cython.nogil:
            _mark_needed(rows.integers, self._row_count, producers.integers, marks.bytes, needed.bytes)
        words.release(needed)
        words.release(marks)
        words.release(producers)
        words.release(rows)
        table, chosen = memoryview(self._row_tables[0]).cast("q"), self._needed_table
        return [
            tuple(table[number * _ROW_COLUMNS : (number + 1) * _ROW_COLUMNS])
            for number in range(self._row_count)
            if chosen[number]
        ]

    def _walk(
        self,
        chunk: Integers,
        at: int,
        size: int,
        file_position: int,
        offsets: Integers,
        times: Integers,
        epochs: Integers,
        rows: Integers,
    ) -> bool:
        """Walk over the chunk as :meth:`scan` says; return whether a table is full."""
        self._offset_count = self._time_count = self._epoch_count = self._row_count = 0
        self.is_stopped = False
        is_full = True
        while self._has_room():
            batch = self._whole_batch(chunk, at, size)
            if batch <= 0 or not self._note_position(chunk, at, file_position + at, offsets, times):
                self.is_stopped = batch != 0
                is_full = False
                break
            epoch = words.load_be_i32(chunk, at + 12)
            if epoch > self.latest_epoch:
                self.latest_epoch = epoch
                epochs[2 * self._epoch_count] = epoch
                epochs[2 * self._epoch_count + 1] = words.load_be_i64(chunk, at)
                self._epoch_count += 1
            if words.load_be_i64(chunk, at + 43) >= 0:
                _write_row(chunk, at, batch, rows, self._row_count * _ROW_COLUMNS)
                self._row_count += 1
            self.next_offset = words.load_be_i64(chunk, at) + words.load_be_i32(chunk, at + 23) + 1
            at += batch
        self.consumed = at
        return is_full

    def _has_room(self) -> bool:
        """Return whether the tables have room for another batch."""
        if self._offset_count >= _ENTRIES or self._time_count >= _ENTRIES:
            return False
        return self._epoch_count < _ENTRIES and self._row_count < _ROWS

    def _whole_batch(self, chunk: Integers, at: int, size: int) -> int:
        """Return the size of the valid batch at ``at``; 0 if it ends after ``size``, -1 if it is damaged, of an old
        format, or has offsets that this segment cannot take next.
        """
        if at + _HEADER_BYTES > size:
            return 0
        if chunk[at + 16] != 2:
            return -1
        length = words.load_be_i32(chunk, at + 8)
        base = words.load_be_i64(chunk, at)
        delta = words.load_be_i32(chunk, at + 23)
        if length < _HEADER_BYTES - _LENGTH_OFFSET or base < self.next_offset or delta < 0:
            return -1
        if base - self.base_offset > _MAX_RELATIVE_OFFSET - delta:
            return -1
        if at + _LENGTH_OFFSET + length > size:
            return 0
        if words.load_be_u32(chunk, at + 17) != words.crc32c(chunk, at + 21, length + _LENGTH_OFFSET - 21):
            return -1
        return length + _LENGTH_OFFSET

    def _note_position(self, chunk: Integers, at: int, position: int, offsets: Integers, times: Integers) -> bool:
        """Note the largest timestamp, and index entries where they are due; return False if an index is full."""
        last_offset = words.load_be_i64(chunk, at) + words.load_be_i32(chunk, at + 23)
        timestamp = words.load_be_i64(chunk, at + 35)
        is_largest = timestamp > self.largest_timestamp
        if position - self.last_entry_position > self.interval_bytes:
            makes_time = (timestamp if is_largest else self.largest_timestamp) > self.last_entry_timestamp
            if self.offset_room <= 0 or (makes_time and self.time_room <= 0):
                return False
        if is_largest:
            self.largest_timestamp, self.largest_offset = timestamp, last_offset
        if position - self.last_entry_position > self.interval_bytes:
            self._add_entries(position, last_offset, offsets, times)
        return True

    def _add_entries(self, position: int, last_offset: int, offsets: Integers, times: Integers) -> None:
        at = 8 * self._offset_count
        words.store_be_u32(offsets, at, last_offset - self.base_offset)
        words.store_be_u32(offsets, at + 4, position)
        self._offset_count += 1
        self.offset_room -= 1
        self.last_entry_position = position
        if self.largest_timestamp > self.last_entry_timestamp:
            at = 12 * self._time_count
            words.store_be_u64(times, at, self.largest_timestamp)
            words.store_be_u32(times, at + 8, self.largest_offset - self.base_offset)
            self._time_count += 1
            self.time_room -= 1
            self.last_entry_timestamp = self.largest_timestamp


def _write_row(chunk: Integers, at: int, size: int, rows: Integers, row: int) -> None:
    rows[row] = at
    rows[row + 1] = size
    rows[row + 2] = words.load_be_i64(chunk, at)
    rows[row + 3] = words.load_be_i32(chunk, at + 23)
    rows[row + 4] = words.load_be_i64(chunk, at + 35)
    rows[row + 5] = words.load_be_i32(chunk, at + 12)
    rows[row + _ATTRIBUTES] = words.load_be_i16(chunk, at + 21)
    rows[row + _PRODUCER] = words.load_be_i64(chunk, at + 43)
    rows[row + 8] = words.load_be_i16(chunk, at + 51)
    rows[row + 9] = words.load_be_i32(chunk, at + 53)
    rows[row + 10] = words.load_be_i32(chunk, at + 57)


def _mask_for(count: int) -> int:
    """Return the mask of slots for ``count`` rows: at least twice as many slots, so that probes stay short."""
    slots = 16
    while slots < 2 * count:
        slots *= 2
    return slots - 1


def _slot(producers: Integers, producer: int, mask: int) -> int:
    """Find the producer's slot in the hash table, or the free slot for it."""
    slot = (((producer * _SPREAD) & words.MASK_64) >> 40) & mask
    while producers[slot] >= 0 and producers[slot] != producer:
        slot = (slot + 1) & mask
    return slot


def _mark_needed(rows: Integers, count: int, producers: Integers, marks: Integers, needed: Integers) -> None:
    """Mark the rows that ``needed_rows`` returns. ``producers`` and ``marks`` are working memory for _SLOTS items, of
    which few rows use, and clear, few."""
    mask = _mask_for(count)
    for slot in range(mask + 1):
        producers[slot] = -1
        marks[slot] = 0
    _mark_forwards(rows, count, producers, marks, needed, mask)
    for slot in range(mask + 1):
        marks[slot] = 0
    number = count - 1
    while number >= 0:
        slot = _slot(producers, rows[number * _ROW_COLUMNS + _PRODUCER], mask)
        if marks[slot] < _KEPT_BATCHES and not rows[number * _ROW_COLUMNS + _ATTRIBUTES] & _CONTROL:
            marks[slot] += 1
            needed[number] = 1
        number -= 1


def _mark_forwards(
    rows: Integers, count: int, producers: Integers, in_transaction: Integers, needed: Integers, mask: int
) -> None:
    """Mark each producer's first row, its control batches and the first batch of each transaction."""
    for number in range(count):
        producer = rows[number * _ROW_COLUMNS + _PRODUCER]
        attributes = rows[number * _ROW_COLUMNS + _ATTRIBUTES]
        slot = _slot(producers, producer, mask)
        needed[number] = 1 if producers[slot] < 0 or attributes & _CONTROL else 0
        producers[slot] = producer
        if attributes & _CONTROL:
            in_transaction[slot] = 0
        elif attributes & _TRANSACTIONAL and not in_transaction[slot]:
            in_transaction[slot] = 1
            needed[number] = 1
