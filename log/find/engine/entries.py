"""Compiled routines for entries of index files: build entries, write them, follow a chain, rebuild slots.

The results are those of ``tidelog.log.find.engine.reference``, which has no ``Chain``. Files are read and written by
descriptor, so a cut or unreadable file is an error and never a signal. If a system call fails, the routine only ends;
the caller repeats the call in Python and gets the error. All routines run without the interpreter lock. C types are in
``entries.pxd``.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from tidelog.log.find.engine.reference import ChainQuery, FileLayout, PutResult, RestoredSlots
from tidelog.protocol.compiled import words
from tidelog.protocol.compiled.words import Buffer

try:
    import cython
except ImportError:
    from tidelog.protocol.compiled import uncompiled as cython

if TYPE_CHECKING:
    from tidelog.log.find.rows import Rows

IS_COMPILED = cython.compiled
"""Whether this module runs as machine code."""

Integers = memoryview
_NO_KEY = -1
_MAX_TIME_DIFF = 0x7FFFFFFF
_HEADER_BYTES = 40
_ENTRY_BYTES = 20
_PAGE_BYTES = 4096
_OUT_OF_CHAIN, _BAD_ENTRY, _UNREADABLE = 1, 2, 3


# ---- calls


def put_entries(front: bytearray, rows: Rows, layout: FileLayout, start: int, end: int) -> PutResult:
    """See :func:`tidelog.log.find.engine.reference.put_entries`."""
    number, capacity, begin, slots = layout.next_entry, layout.capacity, layout.begin_timestamp, layout.slots
    held, entries = words.hold_writable(front), words.hold_writable(rows.entries)
    keys, offsets = words.hold(rows.key_hashes), words.hold(rows.offsets)
    timestamps = words.hold(rows.timestamps)
    with cython.nogil:
        row, next_entry, low, high, last_offset = _put(
            held.bytes, slots, entries.bytes, number, capacity, begin,
            keys.integers, offsets.integers, timestamps.integers, start, end,
        )  # fmt: skip
    words.release(timestamps)
    words.release(offsets)
    words.release(keys)
    words.release(entries)
    words.release(held)
    return PutResult(next_entry, row, low, high, last_offset)


def put_tags(rows: Rows, start: int, end: int) -> None:
    """See :func:`tidelog.log.find.engine.reference.put_tags`."""
    entries, offsets = words.hold_writable(rows.entries), words.hold(rows.offsets)
    positions, sizes, tags = words.hold(rows.positions), words.hold(rows.sizes), words.hold(rows.tag_hashes)
    with cython.nogil:
        _put_tags(
            entries.bytes, entries.size, offsets.integers, positions.integers, sizes.integers, tags.integers, start, end
        )
    words.release(tags)
    words.release(sizes)
    words.release(positions)
    words.release(offsets)
    words.release(entries)


def restore_slots(front: bytearray, slots: int, entries: Buffer, restored: RestoredSlots) -> RestoredSlots:
    """See :func:`tidelog.log.find.engine.reference.restore_slots`."""
    number, last_offset = restored.next_entry, restored.last_offset
    held, found = words.hold_writable(front), words.hold(entries)
    with cython.nogil:
        damaged, number, last_offset = _restore(
            held.bytes, slots, found.data, found.size // _ENTRY_BYTES, number, last_offset
        )
    words.release(found)
    words.release(held)
    return RestoredSlots(damaged, number, last_offset)


def write_pieces(descriptor: int, data: Buffer, position: int, piece: int) -> int:
    """Write as much of ``data`` as the system takes, ``piece`` bytes at a time; return the number of bytes written."""
    held = words.hold(data)
    with cython.nogil:
        written = _write(descriptor, held.data, held.size, position, piece)
    words.release(held)
    return written


class Chain:
    """Walk along one chain of an index file, newest entry first, continued by each call. One thread at a time."""

    def __init__(self, descriptor: int, query: ChainQuery, number: int, limit: int, last_offset: int) -> None:
        """Begin at entry ``number``, below ``limit`` and with an offset below ``last_offset``."""
        self.descriptor = descriptor
        self.slots = query.slots
        self.key_hash = query.key_hash
        self.low, self.high = query.low, query.high
        self.min_offset, self.begin_offset = query.min_offset, query.begin_offset
        self.number, self.limit, self.last_offset = number, limit, last_offset
        self.damage = 0
        self._window_start = self._window_end = 0
        self._window = bytearray(_PAGE_BYTES + _ENTRY_BYTES)

    def next_offsets(self, count: int) -> list[int]:
        """Find up to ``count`` offsets that match. After the last one ``number`` is 0. If the chain cannot be followed,
        ``damage`` has the reason (:class:`tidelog.log.find.engine.reference.Damage`).
        """
        self.damage = 0
        found = array("q", bytes(8 * count))
        offsets, window = words.hold_writable(found), words.hold_writable(self._window)
        with cython.nogil:
            length = self._follow(offsets.integers, count, window.bytes)
        words.release(window)
        words.release(offsets)
        return found[:length].tolist()

    def _follow(self, offsets: Integers, count: int, window: Buffer) -> int:
        found = 0
        while self.number != 0 and found < count:
            if self.number < 0 or self.number >= self.limit:
                self.damage = _OUT_OF_CHAIN
                break
            at = self._entry_at(window)
            if at < 0:
                self.damage = _UNREADABLE
                break
            stored, offset = words.load_be_i32(window, at), words.load_be_i64(window, at + 4)
            diff = words.load_be_i32(window, at + 12)
            if not self._is_of_chain(stored, offset, diff):
                self.damage = _BAD_ENTRY
                self.last_offset = offset
                break
            if offset < self.min_offset:
                self.number = 0
                break
            if stored == self.key_hash and self.low <= diff and diff <= self.high:
                offsets[found] = offset
                found += 1
            self.limit, self.last_offset = self.number, offset
            self.number = words.load_be_i32(window, at + 16)
        return found

    def _is_of_chain(self, stored: int, offset: int, diff: int) -> bool:
        """Return whether entry ``number`` with these fields may be part of this chain. From one entry to the next,
        offsets rise by at least one."""
        if stored < 0 or diff < 0 or stored % self.slots != self.key_hash % self.slots:
            return False
        return self.begin_offset + self.number - 1 <= offset and offset < self.last_offset

    def _entry_at(self, window: Buffer) -> int:
        """Return the first byte of entry ``number`` in the window, -1 if it cannot be read.

        A read takes the entry's page up to the entry's end, because a chain goes backwards.
        """
        position = _HEADER_BYTES + 4 * self.slots + _ENTRY_BYTES * self.number
        if position < self._window_start or position + _ENTRY_BYTES > self._window_end:
            self._window_start = position // _PAGE_BYTES * _PAGE_BYTES
            size = position + _ENTRY_BYTES - self._window_start
            if words.read_at(self.descriptor, window, 0, size, self._window_start) < size:
                self._window_start = self._window_end = 0
                return -1
            self._window_end = self._window_start + size
        return position - self._window_start


# ---- loops


def _put(
    front: Buffer, slots: int, entries: Buffer, number: int, capacity: int, begin: int,
    keys: Integers, offsets: Integers, timestamps: Integers, row: int, end: int,
) -> tuple[int, int, int, int, int]:  # fmt: skip
    """Build entries for rows: (row after the last one, next entry, smallest and largest timestamp, last offset)."""
    low, high = words.MAX_INT_64, words.MIN_INT_64
    last_offset = -1
    entry = 0
    while row < end:
        hashed = keys[row]
        if hashed != _NO_KEY:
            if number >= capacity:
                break
            timestamp = timestamps[row]
            last_offset = offsets[row]
            slot = _slot(hashed, slots)
            words.store_be_u32(entries, entry, hashed)
            words.store_be_u64(entries, entry + 4, last_offset)
            words.store_be_u32(entries, entry + 12, _time_diff(timestamp, begin))
            words.store_be_u32(entries, entry + 16, words.load_be_u32(front, slot))
            words.store_be_u32(front, slot, number)
            entry += _ENTRY_BYTES
            number += 1
            low = timestamp if timestamp < low else low
            high = timestamp if timestamp > high else high
        row += 1
    return row, number, low, high, last_offset


def _slot(hashed: int, slots: int) -> int:
    """Return the byte at which the slot of a hash begins."""
    number = hashed % slots  # a remainder of 32-bit numbers takes a third of the time of one of 64-bit numbers
    return _HEADER_BYTES + 4 * number


def _time_diff(timestamp: int, begin: int) -> int:
    """Return the seconds from ``begin`` to ``timestamp`` (both in ms), limited to 0..2^31-1."""
    if timestamp <= begin:
        return 0
    difference = timestamp
    difference = ((difference - begin) & words.MASK_64) // 1000
    return difference if difference < _MAX_TIME_DIFF else _MAX_TIME_DIFF


def _put_tags(
    entries: Buffer, size: int, offsets: Integers, positions: Integers, sizes: Integers, tags: Integers, start: int,
    end: int,
) -> None:  # fmt: skip
    for row in range(start, end):
        number = offsets[row] - offsets[start]
        if number >= 0 and number < size // _ENTRY_BYTES:
            words.store_be_u64(entries, number * _ENTRY_BYTES, positions[row])
            words.store_be_u32(entries, number * _ENTRY_BYTES + 8, sizes[row])
            words.store_be_u64(entries, number * _ENTRY_BYTES + 12, tags[row])


def _restore(
    front: Buffer, slots: int, entries: Buffer, count: int, number: int, last_offset: int
) -> tuple[int, int, int]:
    """Restore the slots from entries: (number of a damaged entry or 0, the next number, last offset)."""
    at = 0
    while count > 0:
        count -= 1
        hashed, offset = words.load_be_i32(entries, at), words.load_be_i64(entries, at + 4)
        if hashed < 0 or words.load_be_i32(entries, at + 12) < 0 or offset <= last_offset:
            return number, number, last_offset
        slot = _slot(hashed, slots)
        if words.load_be_u32(entries, at + 16) != words.load_be_u32(front, slot):
            return number, number, last_offset
        words.store_be_u32(front, slot, number)
        last_offset = offset
        number += 1
        at += _ENTRY_BYTES
    return 0, number, last_offset


def _write(descriptor: int, data: Buffer, size: int, position: int, piece: int) -> int:
    """Write to the file, ``piece`` bytes at a time; return the number of bytes written."""
    written = 0
    while written < size:
        rest = size - written
        done = words.write_at(descriptor, data, written, rest if rest < piece else piece, position + written)
        if done <= 0:
            break
        written += done
    return written
