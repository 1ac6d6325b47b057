"""Base of offset index and time index: fixed-size entries in a file, appended in order, searched in place.

File: ``entry * n``, nothing else. ``truncate_to`` lowers ``entries`` but leaves the file its length, so that a reader
with an older count still finds the entries. ``trim`` cuts the file to its entries when the segment rolls or closes.
Kafka leaves and expects that form. (Kafka extends the file of an active segment to ``segment.index.bytes`` at once.)

Entries are read with ``pread`` and written with ``pwrite``, never through a mapping. A full disk, a bad sector or a
file that was cut while it is open then gives an error; access to a mapped page would kill the process (SIGBUS).
The price: a look-up near the end takes 3.3 µs instead of 2.5, and one anywhere in 10 MB takes 12 instead of 5. Readers
that read on where they stopped make no look-up. Readers read only slots below ``entries``, which is published after the
entry is in the file. They hold the open file while they read. The file is closed with the last reference, so no reader
uses a descriptor that belongs to another file by then.

A rebuild on a full disk goes on in memory, so that the log can be read. The file on the disk is emptied, so that the
next start rebuilds it. ``save`` writes the entries to the file once the disk has room.

The search is Kafka's (KAFKA-6432): the last 8192 bytes are the *warm section*. Readers near the log's end look there,
so a binary search always touches the same few pages, which are not evicted. Only a look-up of an earlier entry searches
the entries before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from struct import Struct
from typing import ClassVar

from tidelog.log.system.file_system import FileSystem, LogStorageError, OpenFile, open_if_there, open_in_memory
from tidelog.log.system.reserve import write_if_room
from tidelog.protocol.errors import KafkaStorageError

logger = logging.getLogger(__name__)

WARM_SECTION_BYTES = 8192


#: Function that reads the bytes of entries; its arguments are the first slot and the number of entries.
ReadSlots = Callable[[int, int], bytes]


class IndexCorruptError(KafkaStorageError):
    """An index file contradicts itself or its segment; it is rebuilt from the records."""


def floor_slot(read: ReadSlots, key: Struct, at: int, entry_size: int, entries: int, target: int) -> int:
    """Find the last slot whose key (at byte ``at`` of an entry) is <= ``target``; -1 when there is none.

    ``read(slot, count)`` gives the bytes of entries, and raises KafkaStorageError.
    """
    in_warm = WARM_SECTION_BYTES // entry_size
    first, count = max(0, entries - in_warm), min(entries, in_warm)
    unpack = key.unpack_from
    section = read(first, count) if count else b""
    if count and first and unpack(section, at)[0] > target:
        first, count = _narrow(read, key, at, target, first, in_warm)
        section = read(first, count)
    # Invariant: the keys below ``low`` are <= target, those from ``high`` on are > target.
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if unpack(section, middle * entry_size + at)[0] <= target:
            low = middle + 1
        else:
            high = middle
    return first + low - 1


def _narrow(read: ReadSlots, key: Struct, at: int, target: int, end: int, max_slots: int) -> tuple[int, int]:
    """Find at most ``max_slots`` slots below ``end`` that hold the last key <= ``target``, if there is one; return the
    first slot and their number."""
    low = 0
    while end - low > max_slots:
        middle = (low + end) >> 1
        if key.unpack_from(read(middle, 1), at)[0] <= target:
            low = middle
        else:
            end = middle
    return low, end - low


class AbstractIndex:
    """Index file of fixed-size entries; subclasses define the entry.

    Writes under the log's lock; look-ups by any thread.
    """

    ENTRY: ClassVar[Struct]
    #: Slots that are still free when the index counts as full (the time index keeps one for the entry made on roll).
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
        "_memory",
        "base_offset",
        "max_entries",
        "path",
    )

    def __init__(self, file_system: FileSystem, path: str, base_offset: int, max_bytes: int) -> None:
        self._file_system = file_system
        self._load_lock = threading.Lock()
        self._file: OpenFile | None = None
        self._entries = -1  # not loaded
        self._last: tuple[int, int] | None = None  # the last entry's fields if ``_append_entry`` wrote it, else unknown
        self._capacity = 0  # the length of the file in bytes
        self._is_rebuilt = False  # true between ``reset`` and ``trim``: a rebuild from the records is under way
        self._memory: OpenFile | None = None  # replaces the file while the disk has no room for a rebuild
        self._is_sealed = False
        self.path = path
        self.base_offset = base_offset
        self.max_entries = max_bytes // self.ENTRY.size

    @property
    def entries(self) -> int:
        """Number of entries in the index; opens the file on first use."""
        entries = self._entries  # read once: another thread may close the file
        return entries if entries >= 0 else self._load()[0]

    @property
    def is_full(self) -> bool:
        """True when no slots below ``segment.index.bytes`` are free but the reserved ones: the segment has to roll."""
        entries = self._entries
        return (entries if entries >= 0 else self._load()[0]) >= self.max_entries - self.RESERVED_SLOTS

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
        """True when the file ends within an entry, which a finished index never does."""
        return self.entries * self.ENTRY.size != self._capacity and self._capacity % self.ENTRY.size != 0

    def _load(self) -> tuple[int, OpenFile | None]:
        """Open the file if it is not open; return the number of entries, and the file that holds them."""
        with self._load_lock:
            if self._entries < 0:
                if self._is_sealed:
                    raise KafkaStorageError(f"{self.path} is closed")
                file = open_if_there(self._file_system, self.path)
                self._capacity = 0 if file is None else file.size()
                entries = self._capacity // self.ENTRY.size
                self._file = file if entries else None
                self._entries = entries
            return self._entries, self._memory or self._file

    def _writable(self) -> OpenFile:
        """Return the file for a write. It is opened only now: an empty index holds no descriptor."""
        if self._memory is not None:
            return self._memory
        if self._file is None:
            self._file = self._file_system.open_file(self.path, create=True)
        return self._file

    def slots(self) -> tuple[int, ReadSlots]:
        """Return the number of entries, and a reader of their bytes, which works after the index is released, too.
        Any thread.

        Without a file there are no entries to be read: the look-up begins at the segment's first byte.
        """
        entries = self._entries
        file = self._memory or self._file
        if entries < 0 or (entries and file is None):  # closed, maybe between these two looks
            entries, file = self._load()
        return (0 if file is None else entries), lambda slot, count: self._read_from(file, slot, count)

    def _read_from(self, file: OpenFile | None, slot: int, count: int) -> bytes:
        size = count * self.ENTRY.size
        data = b"" if file is None else file.read_at(slot * self.ENTRY.size, size)
        if len(data) < size:
            raise IndexCorruptError(f"{self.path} ends before its entry {slot + count - 1}; the next start rebuilds it")
        return data

    def _entry_at(self, slot: int) -> tuple[int, ...]:
        entries, read = self.slots()
        if not 0 <= slot < entries:
            raise IndexError(f"slot {slot} of {entries} in {self.path}")
        return self.ENTRY.unpack(read(slot, 1))

    def _append_entry(self, entries: int, first: int, second: int) -> None:
        """Write an entry after the existing ones, whose number is ``entries``."""
        layout = self.ENTRY
        position = entries * layout.size
        file = self._file
        if file is None or self._is_rebuilt:
            self._write(layout.pack(first, second), position)
        else:
            file.write_at(layout.pack(first, second), position)  # the hot path: each large append adds an entry
            end = position + layout.size
            if end > self._capacity:
                self._capacity = end
        self._entries = entries + 1
        self._last = (first, second)

    def append_packed(self, packed: bytes) -> None:
        """Add entries in the form of the file. The caller ensures that they follow the last entry, and fit.

        Raises KafkaStorageError.
        """
        entries = self.entries
        self._write(packed, entries * self.ENTRY.size)
        self._last = None
        self._entries = entries + len(packed) // self.ENTRY.size

    def _write(self, packed: bytes, position: int) -> None:
        """Write entries at byte ``position``; a rebuild on a full disk goes on in memory."""
        try:
            file = self._writable()
            self._capacity = max(self._capacity, position + len(packed))  # even an error may leave some of the bytes
            file.write_at(packed, position)
        except LogStorageError as error:
            if not (self._is_rebuilt and error.lacks_room) or self._memory is not None:
                raise
            self._move_to_memory(position)
            self._write(packed, position)

    def _move_to_memory(self, size: int) -> None:
        """Copy the first ``size`` bytes into memory and empty the file, so that the next start rebuilds it."""
        logger.warning("%s is kept in memory until the disk has room", self.path)
        memory = open_in_memory(self.path)
        if self._file is not None:
            memory.write_at(self._file.read_at(0, size), 0)
            self._file.truncate(0)
        self._memory = memory
        self._capacity = size
        self._file = None

    def save(self) -> None:
        """Write the entries to the file if they are only in memory. Raises KafkaStorageError; then they stay in memory.

        No entry may be appended meanwhile: call it under the log's lock, or for a closed segment. Any thread.
        """
        with self._load_lock:
            memory = self._memory
            if memory is None or self._is_sealed:
                return
            self._file = _write_index(self._file_system, self.path, memory.read_at(0, self.size_bytes))
            self._capacity = self.size_bytes
            self._memory = None

    def create(self) -> None:
        """Create the empty file when its segment is created, as Kafka does; an old one of that name is emptied."""
        self._writable().truncate(0)
        self._last = self._file = None
        self._entries = self._capacity = 0

    def _truncate_to_entries(self, entries: int) -> None:
        # The stale entries after them stay in the file until they are overwritten or trimmed. After a crash before
        # that, the segment lies after the recovery point, so the index is rebuilt.
        self._last = None
        self._entries = entries

    def reset(self) -> None:
        """Drop every entry, before a rebuild. No reader may use the index meanwhile."""
        self._is_rebuilt = True
        self._last = None
        self._entries = 0
        self._capacity = 0
        try:
            self._writable().truncate(0)
        except LogStorageError as error:
            if not error.lacks_room:
                raise
            self._move_to_memory(0)

    def trim(self) -> None:
        """Cut the file to its entries, when the segment becomes inactive or a rebuild ends."""
        if self._entries >= 0 and self._capacity != self.size_bytes:
            self._writable().truncate(self.size_bytes)
            self._capacity = self.size_bytes
        self._is_rebuilt = False
        if not self._entries:
            self._file = None

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
            self._forget_file()

    def release(self) -> None:
        """Close the file as it is, for an index that is deleted."""
        with self._load_lock:
            self._forget_file()

    def _forget_file(self) -> None:
        """Close the file with its last reader. Under the load lock."""
        self._entries, self._capacity = -1, 0
        self._file = self._memory = self._last = None

    def rename_to(self, path: str) -> None:
        """Rename the file, if it exists. A reader that opens it meanwhile gets this file, never another one that takes
        over the old name.
        """
        with self._load_lock:
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
            file.truncate(0)  # a reader would take part of the entries for all
            file.close()
    return file


def note_empty(index: AbstractIndex) -> None:
    """Note that the file is empty or missing, as a directory listing shows: it is then not opened. Call this before any
    use of the index."""
    index._entries = index._capacity = 0


def close_until_lookup(index: AbstractIndex) -> None:
    """Close the file until the next look-up, if it is open and holds exactly the entries. Call it under the log's lock,
    as no entry may be appended meanwhile; readers go on."""
    with index._load_lock:
        is_trimmed = index._capacity == index._entries * index.ENTRY.size
        if index._file is not None and index._memory is None and not index._is_rebuilt and is_trimmed:
            index._forget_file()


def seal_index(index: AbstractIndex) -> None:
    """Forbid opening an index's file from now on; if it is open already, it stays usable. Any thread."""
    with index._load_lock:
        index._is_sealed = True
