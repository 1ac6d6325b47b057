"""IndexFile: a hash table in a file, from keys to offsets, in RocketMQ's layout (docs/internals/index-files.md).
Big-endian.

    header 40 bytes   begin_timestamp 8 | end_timestamp 8 | begin_offset 8 | end_offset 8 | hash_slot_count 4
                      | index_count 4
    slots             hash_slot_count x 4: number of the newest entry of that slot, 0 = none
    entries           20 bytes each: key_hash 4 | offset 8 | time_diff 4 | previous entry of the slot 4

Entry 0 is never used, so ``index_count`` (the number of the next entry) starts at 1. A new entry names the entry that
was the slot's newest, and the slot gets the new entry's number; the header is changed last. The entries of a slot, from
the newest on, are its *chain*.

Invariants:

- entries are written in offset order, so entry numbers and offsets strictly fall along a chain. A chain that does not
  is damaged: :class:`IndexDamagedError` is raised, and the index is rebuilt from the log;
- slots follow from entries: ``restore`` cuts a file to the entries known to be on disk and rebuilds its slots;
- ``time_diff`` is in seconds since ``begin_timestamp`` (the first entry's), limited to 0..2^31-1, and only serves to
  skip entries. ``min_timestamp`` is kept in the checkpoint, because a later record may have an earlier timestamp than
  ``begin_timestamp``;
- nothing is mapped: a full disk, a bad sector or a file that was cut while it is open is an error, never a SIGBUS. The
  file is sparse, but disk space for header and slots is allocated when it is created;
- while entries are put into a file, its header and slots (its *front*) are in memory until ``flush`` writes them: at a
  checkpoint and before the next file is begun. After a crash only the newest file of a checkpoint can have outdated
  slots, and it is restored.

One writer. Look-ups by any thread: only reading a slot takes the lock; an entry never changes once a slot names it.
The file is closed with its last reader.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.find.engine import engine
from tidelog.log.find.engine.reference import ChainQuery, Damage, FileLayout, RestoredSlots
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
"""Largest number of rows that are put while the file's lock is held, which takes 1 ms; look-ups read slots in between.
The indexer takes the interpreter lock once for each such part."""
_WRITE_BYTES = 160_000
"""Largest number of bytes written at a time. ext4 puts larger pieces into larger pages, which take longer: 6 ns for
each entry with this size, 13 ns with twice the size, up to 45 ns with a megabyte (Linux 6.18)."""
MAX_TIME_DIFF = 0x7FFFFFFF
_FIRST_OFFSETS, _MORE_OFFSETS = 16, 1024
"""Largest number of offsets taken from a chain at a time, at first and later: most look-ups need only the newest."""
_RESTORED_ENTRIES = 50_000
"""Largest number of entries read at a time while slots are rebuilt from them."""


class IndexDamagedError(KafkaStorageError):
    """An index file contradicts itself or its checkpoint, was cut or could not be synced. The index is rebuilt from the
    log."""


class IndexEntry(NamedTuple):
    """The fields of one entry."""

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
    """Compute the size in bytes of a file with ``entries`` entries, number 0 included."""
    return HEADER_BYTES + SLOT.size * slots + ENTRY_BYTES * entries


def open_descriptor(file_system: FileSystem, path: str, size: int, *, create: bool) -> int:
    """Open a descriptor of the file; with ``create`` it is made as a hole of ``size`` bytes. Raises
    KafkaStorageError."""
    file = file_system.open_file(path, create=create)
    try:
        if create:
            file.truncate(0)
            file.truncate(size)
        return os.dup(file.fileno())
    except OSError as error:
        raise LogStorageError("open", path, error.errno or errno.EIO) from error
    finally:
        file.close()


def read_exactly(descriptor: int, path: str, position: int, size: int) -> bytes:
    """Read exactly ``size`` bytes of an index file. Raises IndexDamagedError if it ends too early, LogStorageError."""
    try:
        data = os.pread(descriptor, size, position)
    except OSError as error:
        raise LogStorageError("read", path, error.errno or errno.EIO) from error
    if len(data) < size:
        raise IndexDamagedError(f"{path} ends before byte {position + size}")
    return data


def check_size(descriptor: int, path: str, size: int) -> None:
    """Raise IndexDamagedError if the file has another size: to write on would leave a hole in the entries. Raises
    LogStorageError."""
    try:
        found = os.fstat(descriptor).st_size
    except OSError as error:
        raise LogStorageError("stat", path, error.errno or errno.EIO) from error
    if found != size:
        raise IndexDamagedError(f"{path} was made with {size} bytes and has {found}")


def reserve(descriptor: int, path: str, position: int, size: int) -> None:
    """Allocate disk space for ``size`` bytes of a hole at ``position``. Raises LogStorageError if there is none."""
    try:
        os.posix_fallocate(descriptor, position, size)
    except OSError as error:
        raise LogStorageError("reserve", path, error.errno or errno.EIO) from error


def write_entries(descriptor: int, path: str, entries: memoryview, position: int) -> None:
    """Write whole entries at a byte of the file, without the interpreter lock. Raises LogStorageError."""
    written = engine.write_pieces(descriptor, entries, position, _WRITE_BYTES)
    try:
        while entries := entries[written:]:
            position += written
            written = os.pwrite(descriptor, entries[:_WRITE_BYTES], position)
    except OSError as error:
        raise LogStorageError("write", path, error.errno or errno.EIO) from error


def sync_error(path: str, error: OSError) -> IndexDamagedError:
    """Build the error for a file whose sync failed: the kernel may have dropped written bytes, and a second sync could
    wrongly succeed (docs/internals/faults.md, F9).
    """
    return IndexDamagedError(f"{path} could not be synced: {error.strerror}")


def _check_bounds(bounds: FileBounds, path: str, size: int) -> None:
    rest = size - HEADER_BYTES - SLOT.size * max(bounds.slots, 0)
    if bounds.slots < 1 or rest < 2 * ENTRY_BYTES or rest % ENTRY_BYTES:
        raise IndexDamagedError(f"{path} is not an index file: its header has {bounds.slots} slots in {size} bytes")
    if not 1 <= bounds.next_entry <= rest // ENTRY_BYTES:
        space = rest // ENTRY_BYTES
        raise IndexDamagedError(f"{path} has space for {space} entries, and its header counts {bounds.next_entry}")


class IndexFile:
    """One IndexFile: header, hash slots and entries."""

    __slots__ = ("_descriptor", "_front", "_lock", "_size", "bounds", "capacity", "min_timestamp", "path", "slots")

    def __init__(self, path: str, descriptor: int, size: int, bounds: FileBounds) -> None:
        self.path = path
        self.slots = bounds.slots
        self.capacity = (size - HEADER_BYTES - SLOT.size * self.slots) // ENTRY_BYTES
        self.bounds = bounds
        self.min_timestamp = bounds.begin_timestamp
        self._descriptor = descriptor
        self._size = size
        self._front: bytearray | None = None  # header and slots while they are newer than those of the file
        self._lock = threading.Lock()
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # look-ups read single pages far from each other

    _close = staticmethod(os.close)
    """Kept here because the module's names may be gone when the interpreter ends."""

    def __del__(self) -> None:
        self._close(self._descriptor)

    @classmethod
    def create(cls, file_system: FileSystem, path: str, slots: int, entries: int) -> IndexFile:
        """Create an empty file of fixed size. Raises KafkaStorageError."""
        size = file_bytes(slots, entries)
        descriptor = open_descriptor(file_system, path, size, create=True)
        bounds = FileBounds(0, 0, -1, -1, slots, 1)
        try:
            reserve(descriptor, path, 0, HEADER_BYTES + SLOT.size * slots)
            write_entries(descriptor, path, memoryview(HEADER.pack(*bounds)), 0)
        except LogStorageError:
            os.close(descriptor)
            raise
        return cls(path, descriptor, size, bounds)

    @classmethod
    def open(cls, file_system: FileSystem, path: str, size: int) -> IndexFile:
        """Open an existing file of ``size`` bytes. Raises IndexDamagedError if it is not an index file,
        LogStorageError."""
        if size < HEADER_BYTES + SLOT.size + 2 * ENTRY_BYTES:
            raise IndexDamagedError(f"{path} has only {size} bytes, too few for an index file")
        descriptor = open_descriptor(file_system, path, size, create=False)
        try:
            bounds = FileBounds(*HEADER.unpack(read_exactly(descriptor, path, 0, HEADER_BYTES)))
            _check_bounds(bounds, path, size)
        except KafkaStorageError:
            os.close(descriptor)
            raise
        return cls(path, descriptor, size, bounds)

    @property
    def count(self) -> int:
        """The number of the next entry: there are entries 1 to ``count - 1``."""
        return self.bounds.next_entry

    @property
    def is_full(self) -> bool:
        return self.bounds.next_entry >= self.capacity

    def entry(self, number: int) -> IndexEntry:
        """Read entry ``number``, which must be below ``count``. Raises KafkaStorageError."""
        return IndexEntry(*ENTRY.unpack(self._read(self._position(number), ENTRY_BYTES)))

    def _read(self, position: int, size: int) -> bytes:
        return read_exactly(self._descriptor, self.path, position, size)

    def _position(self, number: int) -> int:
        return HEADER_BYTES + SLOT.size * self.slots + ENTRY_BYTES * number

    # ---- put

    def put_rows(self, rows: Rows, start: int) -> int:
        """Write entries for the rows from ``start`` on that have a key; return the row after them, which is the end
        unless the file is full.

        Raises IndexDamagedError if the file was cut, and LogStorageError if it cannot be read or written. Rows are put
        in parts of _PUT_ROWS: those of the failed part have no entries then, those of the parts before have.
        """
        check_size(self._descriptor, self.path, self._size)
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
        if self._front is None:
            self._front = self._read_front()
        put = engine.put_entries(
            self._front, rows, FileLayout(self.slots, self.capacity, bounds.next_entry, begin), start, end
        )
        self._write(rows.entries, put.next_entry - bounds.next_entry)
        self.min_timestamp = min(self.min_timestamp, put.min_timestamp)
        end_timestamp = max(bounds.end_timestamp, put.max_timestamp)
        end_offset = max(bounds.end_offset, put.last_offset)
        self.bounds = FileBounds(begin, end_timestamp, bounds.begin_offset, end_offset, self.slots, put.next_entry)
        return put.next_row

    def _read_front(self) -> bytearray:
        size = HEADER_BYTES + SLOT.size * self.slots
        return bytearray(size) if self.bounds.next_entry == 1 else bytearray(self._read(0, size))

    def _write(self, entries: bytearray, count: int) -> None:
        """Write the next ``count`` entries, whose slots are set already; if that fails, restore the slots."""
        assert self._front is not None
        try:
            with memoryview(entries) as view:
                write_entries(
                    self._descriptor, self.path, view[: ENTRY_BYTES * count], self._position(self.bounds.next_entry)
                )
        except LogStorageError:
            for number in reversed(range(count)):
                hashed, _, _, previous = ENTRY.unpack_from(entries, ENTRY_BYTES * number)
                SLOT.pack_into(self._front, HEADER_BYTES + SLOT.size * (hashed % self.slots), previous)
            raise

    def flush(self) -> None:
        """Write header and slots, and drop them from memory. Raises KafkaStorageError."""
        if self._front is None:
            return
        check_size(self._descriptor, self.path, self._size)
        with self._lock:
            HEADER.pack_into(self._front, 0, *self.bounds)
            with memoryview(self._front) as view:
                write_entries(self._descriptor, self.path, view, 0)
            self._front = None

    # ---- select

    def touches(self, begin: int, end: int) -> bool:
        """Return whether the file may have a record with a timestamp from ``begin`` to ``end`` (ms, both included)."""
        return self.count > 1 and self.min_timestamp <= end and self.bounds.end_timestamp >= begin

    def select(self, key_hash: int, begin: int, end: int, min_offset: int = 0) -> Iterator[int]:
        """Yield the offsets of records with that hash, newest first, down to ``min_offset``, whose time may lie between
        ``begin`` and ``end`` (ms).

        Raises IndexDamagedError if entry numbers and offsets do not fall along the chain, LogStorageError.
        """
        with self._lock:
            number, bounds = self._slot(key_hash), self.bounds
        base = bounds.begin_timestamp
        # A time_diff of 0 may also stand for any earlier time, and the largest one for any later time.
        low = min((begin - base) // 1000, MAX_TIME_DIFF) if begin > base else 0
        high = min((end - base) // 1000, MAX_TIME_DIFF) if end > base else 0
        query = ChainQuery(self.slots, key_hash, low, high, max(min_offset, 0), bounds.begin_offset)
        chain = engine.Chain(self._descriptor, query, number, bounds.next_entry, bounds.end_offset + 1)
        count = _FIRST_OFFSETS
        while chain.number:
            yield from chain.next_offsets(count)
            count = _MORE_OFFSETS
            if chain.damage == Damage.OUT_OF_CHAIN:
                raise self._out_of_chain(chain.number, chain.limit)
            if chain.damage == Damage.BAD_ENTRY:
                raise self._bad_entry(chain.number, chain.last_offset)
            if chain.damage:
                self.entry(chain.number)  # raises the error that the walk met

    def _slot(self, key_hash: int) -> int:
        """Read the number of the newest entry of the hash's slot, 0 for none. Call it under the lock."""
        at = HEADER_BYTES + SLOT.size * (key_hash % self.slots)
        front = self._front
        number: int = SLOT.unpack_from(front, at)[0] if front is not None else SLOT.unpack(self._read(at, SLOT.size))[0]
        return number

    def _out_of_chain(self, number: int, limit: int) -> IndexDamagedError:
        return IndexDamagedError(f"{self.path}: entry {number} follows entry {limit} in its chain")

    def _bad_entry(self, number: int, offset: int) -> IndexDamagedError:
        return IndexDamagedError(f"{self.path}: entry {number} holds offset {offset}, outside of its chain")

    def prefetch(self, key_hash: int) -> None:
        """Ask the system to read the slot's page, so that several files' reads overlap."""
        if hasattr(os, "posix_fadvise"):
            position = HEADER_BYTES + SLOT.size * (key_hash % self.slots)
            os.posix_fadvise(self._descriptor, position, SLOT.size, os.POSIX_FADV_WILLNEED)

    # ---- durability

    def sync(self) -> None:
        """Make all bytes written so far durable, without the interpreter lock. Raises IndexDamagedError."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise sync_error(self.path, error) from error

    def restore(self, count: int, min_timestamp: int, max_timestamp: int) -> None:
        """Cut the file to its first ``count - 1`` entries, known to be on disk, and rebuild the slots from them.

        Call it before any put or look-up. Raises IndexDamagedError if an entry contradicts the others, LogStorageError.
        """
        if not 1 <= count <= self.capacity:
            raise IndexDamagedError(f"{self.path} has space for {self.capacity} entries, not for {count}")
        bounds = self.bounds
        front = bytearray(HEADER_BYTES + SLOT.size * self.slots)
        restored = RestoredSlots(0, 1, -1)
        while restored.next_entry < count:
            entries = min(_RESTORED_ENTRIES, count - restored.next_entry)
            stored = self._read(self._position(restored.next_entry), ENTRY_BYTES * entries)
            restored = engine.restore_slots(front, self.slots, stored, restored)
            if restored.damaged_entry:
                raise IndexDamagedError(f"{self.path}: entry {restored.damaged_entry} contradicts those before it")
        begin_offset = bounds.begin_offset if count > 1 else -1
        self.bounds = FileBounds(
            bounds.begin_timestamp, max_timestamp, begin_offset, restored.last_offset, self.slots, count
        )
        self.min_timestamp = min_timestamp
        self._front = front
        self.flush()
