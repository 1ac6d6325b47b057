"""IndexFile: a hash file from keys to offsets, in RocketMQ's layout (docs/internals/index-files.md). Big-endian.

    header 40 bytes   begin_timestamp 8 | end_timestamp 8 | begin_offset 8 | end_offset 8 | hash_slot_count 4
                      | index_count 4
    slots             hash_slot_count x 4: number of the newest entry of that slot, 0 = none
    entries           20 bytes each: key_hash 4 | offset 8 | time_diff 4 | previous entry of the slot 4

Entry 0 is never used, so ``index_count`` (the number the next entry gets) starts at 1. A new entry points to the slot's
old newest; the slot takes the new number; the header comes last.

Invariants:

- entries are put in offset order, so along a chain entry numbers and offsets strictly fall. A chain that does not is
  damage: :class:`IndexDamagedError`; none of its entries is used, and the index is rebuilt from the log;
- slots follow from entries: ``restore`` cuts a file to entries known to be on disk and rebuilds its slots;
- ``time_diff`` is seconds since ``begin_timestamp`` (the first entry's), clamped to 0..2^31-1: a pre-selection only.
  ``min_timestamp`` is kept beside the file, because a late record lies before ``begin_timestamp``;
- the file is sparse; header and slots, which are written through the mapping, are reserved when it is made, entries are
  written with ``pwrite``: a full disk is an error of ``put_rows``, never a SIGBUS. (A first write to a mapped page is a
  fault of up to 20 us of the file system's, one for 200 entries; a write of many pages costs one a tenth of that.)

One writer. Look-ups by any thread: only reading a slot takes the lock, an entry never changes once a slot names it.
The mapping is closed with its last reader.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from array import array
from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.find.engine.engine import ENGINE
from tidelog.log.system.file_system import FileSystem, LogStorageError
from tidelog.protocol.errors import KafkaStorageError

if TYPE_CHECKING:
    from tidelog.log.find.rows import Rows

HEADER = Struct(">qqqqii")
SLOT = Struct(">i")
ENTRY = Struct(">iqii")
HEADER_BYTES = HEADER.size
ENTRY_BYTES = ENTRY.size
_PUT_ROWS = 32_768
"""Rows put between two chances for a look-up to read a slot: 1 ms. The indexer waits for the interpreter lock, and
producers for the indexer, as often as there are such parts."""
_WRITE_BYTES = 160_000
"""Written at a time. ext4 takes larger pieces into larger pages, and more of them cost more: 6 ns an entry, 13 at twice
the size, up to 45 at a megabyte (Linux 6.18)."""
MAX_TIME_DIFF = 0x7FFFFFFF
MAX_INT64 = (1 << 63) - 1
_PLAIN_STEPS = 32
"""A chain longer than this is walked by a kernel, which takes 10 µs to call and 50 ns an entry in place of 1 µs."""


class IndexDamagedError(KafkaStorageError):
    """An index file contradicts itself; it is reported and rebuilt from the log."""


class IndexEntry(NamedTuple):
    """One entry as stored."""

    key_hash: int
    offset: int
    time_diff: int
    previous: int


class FileBounds(NamedTuple):
    """Header fields of an index file."""

    begin_timestamp: int
    end_timestamp: int
    begin_offset: int
    end_offset: int
    slots: int
    next_entry: int


def file_bytes(slots: int, entries: int) -> int:
    """The size of a file with room for ``entries`` entries, number 0 included."""
    return HEADER_BYTES + SLOT.size * slots + ENTRY_BYTES * entries


def map_file(file_system: FileSystem, path: str, size: int, *, create: bool) -> tuple[mmap.mmap, int]:
    """A shared mapping of the file, made ``size`` bytes long (a hole) with ``create``; and its descriptor's duplicate.

    Raises KafkaStorageError.
    """
    file = file_system.open_file(path, create=create)
    try:
        if create:
            file.truncate(0)
            file.truncate(size)
        return mmap.mmap(file.fileno(), size), os.dup(file.fileno())
    except (OSError, ValueError) as error:
        raise LogStorageError("map", path, getattr(error, "errno", None) or errno.EIO) from error
    finally:
        file.close()


def reserve(descriptor: int, path: str, position: int, size: int) -> None:
    """Allocate disk space for the hole at ``position``. Raises LogStorageError when there is none."""
    try:
        os.posix_fallocate(descriptor, position, size)
    except OSError as error:
        raise LogStorageError("reserve", path, error.errno or errno.EIO) from error


def write_entries(descriptor: int, path: str, entries: memoryview, position: int) -> None:
    """Write whole entries at a byte of the file. Raises LogStorageError. Releases the interpreter."""
    written = ENGINE.write_pieces(descriptor, entries, position, _WRITE_BYTES)
    try:
        while entries := entries[written:]:
            position += written
            written = os.pwrite(descriptor, entries[:_WRITE_BYTES], position)
    except OSError as error:
        raise LogStorageError("write", path, error.errno or errno.EIO) from error


class IndexFile:
    """One IndexFile: header, hash slots and entries."""

    __slots__ = ("_descriptor", "_lock", "bounds", "capacity", "data", "min_timestamp", "path", "slots")

    def __init__(self, path: str, data: mmap.mmap, descriptor: int, slots: int) -> None:
        self.path = path
        self.data = data
        self.slots = slots
        self.capacity = (len(data) - HEADER_BYTES - SLOT.size * slots) // ENTRY_BYTES
        self.bounds = FileBounds(*HEADER.unpack_from(data))
        self.min_timestamp = self.bounds.begin_timestamp
        self._descriptor = descriptor
        self._lock = threading.Lock()
        if hasattr(mmap, "MADV_RANDOM"):
            data.madvise(mmap.MADV_RANDOM)  # no read-around: each look-up touches single, distant pages

    def __del__(self) -> None:
        os.close(self._descriptor)

    @classmethod
    def create(cls, file_system: FileSystem, path: str, slots: int, entries: int) -> IndexFile:
        """Create an empty file of fixed size. Raises KafkaStorageError."""
        data, descriptor = map_file(file_system, path, file_bytes(slots, entries), create=True)
        try:
            reserve(descriptor, path, 0, HEADER_BYTES + SLOT.size * slots)
        except LogStorageError:
            os.close(descriptor)
            raise
        HEADER.pack_into(data, 0, 0, 0, -1, -1, slots, 1)
        return cls(path, data, descriptor, slots)

    @classmethod
    def open(cls, file_system: FileSystem, path: str, size: int) -> IndexFile:
        """Open an existing file of ``size`` bytes. Raises IndexDamagedError when it is no index file."""
        if size < HEADER_BYTES + SLOT.size + 2 * ENTRY_BYTES:
            raise IndexDamagedError(f"{path} has {size} bytes, too few for an index file")
        data, descriptor = map_file(file_system, path, size, create=False)
        bounds = FileBounds(*HEADER.unpack_from(data))
        room = size - HEADER_BYTES - SLOT.size * max(bounds.slots, 0)
        if bounds.slots < 1 or room < 2 * ENTRY_BYTES or room % ENTRY_BYTES:
            os.close(descriptor)
            raise IndexDamagedError(f"{path} is no index file: {bounds.slots} slots in {size} bytes")
        if not 1 <= bounds.next_entry <= room // ENTRY_BYTES:
            os.close(descriptor)
            raise IndexDamagedError(f"{path} has room for {room // ENTRY_BYTES} entries and claims {bounds.next_entry}")
        return cls(path, data, descriptor, bounds.slots)

    @property
    def count(self) -> int:
        """The number the next entry gets: entries are 1 to ``count - 1``."""
        return self.bounds.next_entry

    @property
    def is_full(self) -> bool:
        return self.bounds.next_entry >= self.capacity

    def entry(self, number: int) -> IndexEntry:
        """Entry ``number``, which must be below ``count``."""
        return IndexEntry(*ENTRY.unpack_from(self.data, self._position(number)))

    def _position(self, number: int) -> int:
        return HEADER_BYTES + SLOT.size * self.slots + ENTRY_BYTES * number

    # ---- put

    def put_rows(self, rows: Rows, start: int) -> int:
        """Put the rows from ``start`` on that have a key; returns the row it stopped at: the end, or a full file.

        Raises LogStorageError when the disk is full; then nothing of the last part is in.
        """
        while start < rows.count and not self.is_full:
            end = min(start + _PUT_ROWS, rows.count)
            with self._lock:
                start = self._put_part(rows, start, end)
        return start

    def _put_part(self, rows: Rows, start: int, end: int) -> int:
        bounds = self.bounds
        begin = bounds.begin_timestamp
        if bounds.next_entry == 1:
            first = rows.first_keyed(start, end)
            if first < 0:
                return end
            begin = self.min_timestamp = rows.timestamps[first]
            bounds = bounds._replace(begin_timestamp=begin, end_timestamp=begin, begin_offset=rows.offsets[first])
            self.bounds = bounds
            HEADER.pack_into(self.data, 0, *bounds)
        put = ENGINE.put_entries(self, rows, start, end)
        self._write(rows.entries, put.next_entry - bounds.next_entry)
        self.min_timestamp = min(self.min_timestamp, put.min_timestamp)
        end_timestamp = max(bounds.end_timestamp, put.max_timestamp)
        end_offset = max(bounds.end_offset, put.last_offset)
        self.bounds = FileBounds(begin, end_timestamp, bounds.begin_offset, end_offset, self.slots, put.next_entry)
        HEADER.pack_into(self.data, 0, *self.bounds)
        return put.next_row

    def _write(self, entries: bytearray, count: int) -> None:
        """Write the next ``count`` entries, whose slots are set; where that fails the slots are as they were."""
        try:
            with memoryview(entries) as view:
                write_entries(
                    self._descriptor, self.path, view[: ENTRY_BYTES * count], self._position(self.bounds.next_entry)
                )
        except LogStorageError:
            for number in reversed(range(count)):
                hashed, _, _, previous = ENTRY.unpack_from(entries, ENTRY_BYTES * number)
                SLOT.pack_into(self.data, HEADER_BYTES + SLOT.size * (hashed % self.slots), previous)
            raise

    # ---- select

    def touches(self, begin: int, end: int) -> bool:
        """True when a record with a timestamp from ``begin`` to ``end`` (ms, both included) may be in this file."""
        return self.count > 1 and self.min_timestamp <= end and self.bounds.end_timestamp >= begin

    def select(self, key_hash: int, begin: int, end: int, min_offset: int = 0) -> Iterator[int]:
        """Offsets with that hash, newest first, whose time may lie in ``begin`` to ``end`` (ms), from ``min_offset``.

        Raises IndexDamagedError at a chain that does not strictly go back.
        """
        with self._lock:
            number = SLOT.unpack_from(self.data, HEADER_BYTES + SLOT.size * (key_hash % self.slots))[0]
            bounds = self.bounds
        base = bounds.begin_timestamp
        # A diff of 0 may be any time before base, the largest diff any time after it.
        low = min((begin - base) // 1000, MAX_TIME_DIFF) if begin > base else 0
        high = (end - base) // 1000 if end > base else 0
        limit, last_offset = bounds.next_entry, bounds.end_offset + 1
        high = MAX_INT64 if high >= MAX_TIME_DIFF else high
        steps = 0
        while number:
            if not 0 < number < limit:
                raise self._out_of_chain(number, limit)
            stored, offset, diff, previous = ENTRY.unpack_from(self.data, self._position(number))
            if not bounds.begin_offset <= offset < last_offset or stored < 0 or diff < 0:
                raise self._bad_entry(number, offset)
            if offset < min_offset:
                return
            if stored == key_hash and low <= diff <= high:
                yield offset
            limit, last_offset, number = number, offset, previous
            steps += 1
            if steps == _PLAIN_STEPS and ENGINE.kernels is not None:
                wanted = (key_hash, low, high, min_offset, bounds.begin_offset)
                yield from self._walk_chain(wanted, array("q", (number, limit, last_offset, 0)))
                return

    def _walk_chain(self, wanted: tuple[int, int, int, int, int], state: array[int]) -> Iterator[int]:
        """Walk the rest of a long chain with a kernel. Raises IndexDamagedError."""
        assert ENGINE.kernels is not None
        for offsets in ENGINE.kernels.walk_chain(self, wanted, state):
            yield from offsets
        number, limit, offset, damage = state
        if damage:
            raise self._out_of_chain(number, limit) if damage == 1 else self._bad_entry(number, offset)

    def _out_of_chain(self, number: int, limit: int) -> IndexDamagedError:
        return IndexDamagedError(f"{self.path}: entry {number} follows entry {limit} in its chain")

    def _bad_entry(self, number: int, offset: int) -> IndexDamagedError:
        return IndexDamagedError(f"{self.path}: entry {number} holds offset {offset}, outside of its chain")

    def prefetch(self, key_hash: int) -> None:
        """Ask the system to read the slot's page, so that several files' reads overlap."""
        position = HEADER_BYTES + SLOT.size * (key_hash % self.slots)
        page = position // mmap.PAGESIZE * mmap.PAGESIZE
        self.data.madvise(mmap.MADV_WILLNEED, page, min(mmap.PAGESIZE, len(self.data) - page))

    # ---- durability

    def sync(self) -> None:
        """Make everything put so far durable. Raises LogStorageError. Releases the interpreter while it waits."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise LogStorageError("sync", self.path, error.errno or errno.EIO) from error

    def restore(self, count: int, min_timestamp: int, max_timestamp: int) -> None:
        """Cut the file to its first ``count - 1`` entries, known to be on disk, and rebuild the slots from them.

        Raises IndexDamagedError when they are not what was put.
        """
        if not 1 <= count <= self.capacity:
            raise IndexDamagedError(f"{self.path} has room for {self.capacity} entries, not for {count}")
        bounds = self.bounds
        with self._lock:
            first_slot = HEADER_BYTES
            self.data[first_slot : first_slot + SLOT.size * self.slots] = bytes(SLOT.size * self.slots)
            restored = ENGINE.restore_slots(self, count)
            if restored.damaged_entry:
                raise IndexDamagedError(f"{self.path}: entry {restored.damaged_entry} is not what was put")
            begin_offset = bounds.begin_offset if count > 1 else -1
            self.bounds = FileBounds(
                bounds.begin_timestamp, max_timestamp, begin_offset, restored.last_offset, self.slots, count
            )
            HEADER.pack_into(self.data, 0, *self.bounds)
        self.min_timestamp = min_timestamp
