"""Base of both sparse indices: fixed-size entries in a file, appended in order, searched through a read-only
mapping.

File: ``entry * n``, nothing else. While its segment is active the file is longer than its entries: it is extended by a
hole that doubles (4 KiB first), so that the mapping need not follow every entry; ``trim`` cuts the hole when the
segment rolls or closes, and that is the form Kafka leaves and expects. (Kafka extends to ``segment.index.bytes`` at
once; ten thousand idle partitions would then carry 200 GB of holes and as many mappings.)

Entries are written with ``pwrite``, not through the mapping: a full disk then gives an error instead of SIGBUS. Readers
map the file read-only and touch only slots below ``entries``, which is published after the entry is in the file;
``truncate_to`` lowers ``entries`` but leaves the file its length, so a reader with an older count never touches an
unmapped page.

A rebuild on a full disk goes on in memory, so that the log can be read: the file on the disk is emptied, which the next
load takes for an index to rebuild. ``save`` puts the entries back into the file once there is room.

Search is Kafka's (KAFKA-6432): the last 8192 bytes are the *warm section*. In-sync readers look there, so the pages a
binary search touches are always the same few, and never one that was evicted; only a look-up before it searches the
rest.
"""

from __future__ import annotations

import errno
import logging
import mmap
import threading
from struct import Struct
from typing import ClassVar

from tidelog.log.system.file_system import FileSystem, LogStorageError, OpenFile, open_in_memory
from tidelog.log.system.reserve import write_if_room
from tidelog.protocol.errors import KafkaStorageError

logger = logging.getLogger(__name__)

WARM_SECTION_BYTES = 8192
INITIAL_CAPACITY_BYTES = 4096


class IndexCorruptError(KafkaStorageError):
    """An index file contradicts itself or its segment; it is rebuilt from the records."""


def floor_slot(buffer: mmap.mmap | bytes, key: Struct, at: int, entry_size: int, entries: int, target: int) -> int:
    """The last slot whose key (at byte ``at`` of an entry) is <= ``target``; -1 when there is none."""
    if entries == 0:
        return -1
    warm = max(0, entries - WARM_SECTION_BYTES // entry_size)
    unpack = key.unpack_from
    if unpack(buffer, warm * entry_size + at)[0] <= target:
        low, high = warm, entries - 1
    elif warm == 0:
        return -1
    else:
        low, high = 0, warm - 1
        if unpack(buffer, at)[0] > target:
            return -1
    # Invariant: the key of low is <= target, the key of high + 1 is > target (or there is none).
    while low < high:
        middle = (low + high + 1) >> 1
        if unpack(buffer, middle * entry_size + at)[0] <= target:
            low = middle
        else:
            high = middle - 1
    return low


class AbstractIndex:
    """Index file of fixed-size entries; subclasses define the entry.

    Writes under the log's lock; look-ups by any thread.
    """

    ENTRY: ClassVar[Struct]
    #: Slots kept free when the index counts as full (the time index keeps one for the entry made on roll).
    RESERVED_SLOTS: ClassVar[int] = 0

    __slots__ = (
        "_capacity",
        "_entries",
        "_file",
        "_file_system",
        "_is_rebuilt",
        "_is_sealed",
        "_last",
        "_load_lock",
        "_map",
        "_memory",
        "base_offset",
        "max_entries",
        "path",
    )

    def __init__(self, file_system: FileSystem, path: str, base_offset: int, max_bytes: int) -> None:
        self._file_system = file_system
        self._load_lock = threading.Lock()
        self._file: OpenFile | None = None
        self._map: mmap.mmap | None = None
        self._entries = -1  # not loaded
        self._last: tuple[int, int] | None = None  # the last entry while it is the one written last, for the next one
        self._capacity = 0
        self._is_rebuilt = False  # between ``reset`` and ``trim``: the entries can be made again from the records
        self._memory: OpenFile | None = None  # replaces the file while the disk has no room for a rebuild
        self._is_sealed = False
        self.path = path
        self.base_offset = base_offset
        self.max_entries = max_bytes // self.ENTRY.size

    @property
    def entries(self) -> int:
        """Number of entries in the index; opens the file on first use."""
        return self._entries if self._entries >= 0 else self._load()

    @property
    def is_full(self) -> bool:
        """True when the next entry would not fit ``segment.index.bytes``: time to roll."""
        entries = self._entries
        return (entries if entries >= 0 else self._load()) >= self.max_entries - self.RESERVED_SLOTS

    @property
    def room(self) -> int:
        """Number of entries that still fit, the reserved ones not counted."""
        return self.max_entries - self.RESERVED_SLOTS - self.entries

    @property
    def size_bytes(self) -> int:
        """Bytes of the entries, as the file has them after :meth:`trim`."""
        return self.entries * self.ENTRY.size

    @property
    def has_partial_entry(self) -> bool:
        """True when the file ends within an entry: no finished index does."""
        return self.entries * self.ENTRY.size != self._capacity and self._capacity % self.ENTRY.size != 0

    def _load(self) -> int:
        with self._load_lock:
            if self._entries < 0:
                if self._is_sealed:
                    raise KafkaStorageError(f"{self.path} is closed")
                entries = 0
                if self._file_system.exists(self.path):
                    file = self._file_system.open_file(self.path)
                    self._capacity = file.size()
                    entries = self._capacity // self.ENTRY.size
                    self._remap(file)
                    file.close()
                self._entries = entries
            return self._entries

    def _remap(self, file: OpenFile) -> None:
        size = self._capacity
        try:
            self._map = mmap.mmap(file.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ) if size else None
        except OSError as error:
            raise LogStorageError("map", self.path, error.errno or errno.EIO) from error

    def _writable(self) -> OpenFile:
        """Open the file on the first write: an idle index holds no descriptor but its mapping's."""
        if self._memory is not None:
            return self._memory
        if self._file is None:
            self._file = self._file_system.open_file(self.path, create=True)
        return self._file

    def _entry_bytes(self, slot: int) -> tuple[int, ...]:
        mapped = self._map
        if not 0 <= slot < self._entries or mapped is None:
            raise IndexError(f"slot {slot} of {self._entries} in {self.path}")
        return self.ENTRY.unpack_from(mapped, slot * self.ENTRY.size)

    def _append_entry(self, first: int, second: int) -> None:
        entries = self.entries
        position = entries * self.ENTRY.size
        file = self._file
        if file is None or self._is_rebuilt or position + self.ENTRY.size > self._capacity:
            self._write(self.ENTRY.pack(first, second), position)
        else:
            file.write_at(self.ENTRY.pack(first, second), position)  # each large append comes here
        self._entries = entries + 1
        self._last = (first, second)

    def append_packed(self, packed: bytes) -> None:
        """Add whole entries as the file holds them; the caller (recovery) ensures that they follow and fit.

        Raises KafkaStorageError.
        """
        entries = self.entries
        self._write(packed, entries * self.ENTRY.size)
        self._last = None
        self._entries = entries + len(packed) // self.ENTRY.size

    def _write(self, packed: bytes, position: int) -> None:
        """Write entries after the last one; a rebuild on a full disk goes on in memory."""
        try:
            file = self._file or self._writable()
            if position + len(packed) > self._capacity:
                self._grow(file, position + len(packed))
            file.write_at(packed, position)
        except LogStorageError as error:
            if not (self._is_rebuilt and error.lacks_room) or self._memory is not None:
                raise
            self._move_to_memory(position)
            self._write(packed, position)

    def _move_to_memory(self, size: int) -> None:
        """Take the first ``size`` bytes into memory and empty the file, so that the next load rebuilds it."""
        logger.warning("%s is kept in memory until the disk has room", self.path)
        memory = open_in_memory(self.path)
        if self._file is not None:
            memory.write_at(self._file.read_at(0, size), 0)
            self._file.truncate(0)
            self._close_file()
        self._memory = memory
        self._capacity = size
        self._remap(memory)

    def save(self) -> None:
        """Write the entries to the file if they are in memory alone. Raises KafkaStorageError; then they stay there.

        Not while entries are appended (under the log's lock, or for an index whose segment is closed). Any thread.
        """
        with self._load_lock:
            memory = self._memory
            if memory is None or self._is_sealed:
                return
            file = _write_index(self._file_system, self.path, memory.read_at(0, self.size_bytes))
            self._capacity = self.size_bytes
            self._remap(file)
            file.close()
            self._memory = None
            memory.close()

    def _grow(self, file: OpenFile, needed: int = 0) -> None:
        limit = max(self.max_entries, self._entries + 1) * self.ENTRY.size
        wanted = max(INITIAL_CAPACITY_BYTES, self._capacity * 2) // self.ENTRY.size * self.ENTRY.size
        capacity = max(min(wanted, limit), self._entries * self.ENTRY.size + self.ENTRY.size, needed)
        file.truncate(capacity)
        before, self._capacity = self._capacity, capacity
        try:
            self._remap(file)
        except LogStorageError:
            self._capacity = before  # the mapping is the old one: the next entry tries again
            raise

    def create(self) -> None:
        """Create the empty file, as Kafka does with its segment; an old one of that name is emptied."""
        self._writable().truncate(0)
        self._map = self._last = None
        self._entries = self._capacity = 0
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _truncate_to_entries(self, entries: int) -> None:
        # The stale entries after them stay in the file until overwritten or trimmed; a crash before that leaves an
        # index
        # whose segment is past the recovery point, so it is rebuilt.
        self._last = None
        self._entries = entries

    def reset(self) -> None:
        """Drop every entry (before a rebuild). Not while readers look."""
        self._is_rebuilt = True
        self._map = self._last = None
        self._entries = 0
        self._capacity = 0
        try:
            self._writable().truncate(0)
        except LogStorageError as error:
            if not error.lacks_room:
                raise
            self._move_to_memory(0)

    def trim(self) -> None:
        """Cut the file to its entries, when the segment becomes inactive, and close its descriptor."""
        if self._entries >= 0 and self._capacity != self.size_bytes:
            file = self._writable()
            file.truncate(self.size_bytes)
            self._capacity = self.size_bytes
            self._remap(file)
        self._is_rebuilt = False
        self._close_file()

    def flush(self) -> None:
        """Make the entries durable. Raises KafkaStorageError. Any thread."""
        self.save()
        if self._file_system.exists(self.path):
            file = self._file_system.open_file(self.path)
            try:
                file.sync()
            finally:
                file.close()

    def close(self) -> None:
        """Trim and close the file; a later look-up opens it again."""
        write_if_room(self.save, "an index is rebuilt at the next start")
        with self._load_lock:
            if self._entries >= 0 and self._capacity != self._entries * self.ENTRY.size:
                self._writable().truncate(self._entries * self.ENTRY.size)
            self._close_file()
            self._memory = None
            self._map, self._last, self._entries, self._capacity = None, None, -1, 0

    def release(self) -> None:
        """Close the file as it is, for an index that is deleted."""
        with self._load_lock:
            self._close_file()
            self._memory = None
            self._map, self._last, self._entries, self._capacity = None, None, -1, 0

    def rename_to(self, path: str) -> None:
        """Give the file another name, when it exists."""
        if self._file_system.exists(self.path):
            self._file_system.rename(self.path, path)
        self.path = path


def _write_index(file_system: FileSystem, path: str, entries: bytes) -> OpenFile:
    """Create the file with ``entries`` as its content. Raises KafkaStorageError; the file is empty then."""
    file = file_system.open_file(path, create=True)
    written = False
    try:
        file.truncate(0)
        file.write_at(entries, 0)
        written = True
    finally:
        if not written:
            file.truncate(0)  # a reader would take half an index for a whole one
            file.close()
    return file


def seal_index(index: AbstractIndex) -> None:
    """Forbid opening an index's file, if it is not open. Any thread."""
    with index._load_lock:
        index._is_sealed = True
