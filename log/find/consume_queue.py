"""ConsumeQueue: one entry of fixed size per record, in RocketMQ's layout, for filtering by tag. Big-endian.

    entry 20 bytes    position 8 | size 4 | tag hash 8          entry number = record offset - first offset of the file

``position`` and ``size`` are those of the batch that held the record when it was indexed, in the segment of its offset.
The file is named by its first offset in 20 digits. An entry has 20 zero bytes before it is written. It keeps them if
the indexer found no record at its offset (a control batch, or the cleaner had removed the record). So ``size`` 0 means
that there is no record. A record without the tag header has tag hash 0, as has a record with an empty tag.

A look-up searches for the eight bytes of the hash by ``bytes.find``. Each entry found is a candidate, whose record's
header is then compared. The file is sparse, and is read and written by descriptor like an IndexFile
(``tidelog.log.find.index_file``). One writer; readers on any thread read only below the offset that the indexer has
published.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.find.engine import engine
from tidelog.log.find.index_file import (
    IndexDamagedError,
    check_size,
    open_descriptor,
    read_exactly,
    sync_error,
    write_entries,
)
from tidelog.log.system.file_system import FileSystem, LogStorageError

if TYPE_CHECKING:
    from tidelog.log.find.rows import Rows

ENTRY = Struct(">qiq")
ENTRY_BYTES = ENTRY.size
HASH = Struct(">q")
_HASH_AT = 12  # byte of an entry at which the tag hash begins
_SEARCH_ENTRIES = 65_536
"""Largest number of entries that a look-up or a checksum reads at a time."""


class TagEntry(NamedTuple):
    """The fields of one entry."""

    position: int
    size: int
    tag_hash: int


class ConsumeQueueFile:
    """One ConsumeQueue file: an entry per record, by offset."""

    __slots__ = ("_descriptor", "base_offset", "capacity", "path")

    def __init__(self, path: str, base_offset: int, descriptor: int, size: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.capacity = size // ENTRY_BYTES
        self._descriptor = descriptor

    _close = staticmethod(os.close)
    """Kept here because the module's names may be gone when the interpreter ends."""

    def __del__(self) -> None:
        self._close(self._descriptor)

    @classmethod
    def create(cls, file_system: FileSystem, path: str, base_offset: int, entries: int) -> ConsumeQueueFile:
        """Create a file for the offsets from ``base_offset`` on. Raises KafkaStorageError."""
        size = ENTRY_BYTES * entries
        return cls(path, base_offset, open_descriptor(file_system, path, size, create=True), size)

    @classmethod
    def open(cls, file_system: FileSystem, path: str, base_offset: int, size: int) -> ConsumeQueueFile:
        """Open an existing file of ``size`` bytes. Raises IndexDamagedError if no ConsumeQueue has that size,
        LogStorageError."""
        if size < ENTRY_BYTES or size % ENTRY_BYTES:
            raise IndexDamagedError(f"{path} has {size} bytes, which is not a whole number of entries")
        return cls(path, base_offset, open_descriptor(file_system, path, size, create=False), size)

    @property
    def end_offset(self) -> int:
        """The first offset after this file's."""
        return self.base_offset + self.capacity

    def entry(self, offset: int) -> TagEntry:
        """Read the entry of the record at ``offset``. Raises KafkaStorageError."""
        return TagEntry(*ENTRY.unpack(self._read(offset, offset + 1)))

    def _read(self, start: int, end: int) -> bytes:
        """Read the entries of the offsets from ``start`` to below ``end``, which must be in this file. Raises
        KafkaStorageError.
        """
        position = (start - self.base_offset) * ENTRY_BYTES
        return read_exactly(self._descriptor, self.path, position, (end - start) * ENTRY_BYTES)

    def put_rows(self, rows: Rows, start: int) -> int:
        """Write entries for the rows from ``start`` on, the first of which belongs to this file. Return the row after
        them: the end, the first of a later file, or one after a large gap of offsets.

        Raises IndexDamagedError if the file was cut, and LogStorageError if a write fails: the caller puts the same
        rows again later.
        """
        check_size(self._descriptor, self.path, self.capacity * ENTRY_BYTES)
        first = rows.offsets[start]
        end = rows.first_at(min(self.end_offset, first + len(rows.entries) // ENTRY_BYTES), start)
        size = ENTRY_BYTES * (rows.offsets[end - 1] - first + 1)
        if size > ENTRY_BYTES * (end - start):
            rows.entries[:size] = bytes(size)  # offsets without a record
        engine.put_tags(rows, start, end)
        with memoryview(rows.entries) as view:
            write_entries(self._descriptor, self.path, view[:size], (first - self.base_offset) * ENTRY_BYTES)
        return end

    def select(self, tag_hash: int, start: int, end: int) -> Iterator[int]:
        """Yield the offsets from ``start`` to below ``end`` whose entry has that tag hash, ascending.

        Raises IndexDamagedError if the file was cut, LogStorageError.
        """
        needle = HASH.pack(tag_hash)
        start, end = max(start, self.base_offset), min(end, self.end_offset)
        for first in range(start, end, _SEARCH_ENTRIES):
            last = min(first + _SEARCH_ENTRIES, end)
            chunk = self._read(first, last)
            at = chunk.find(needle, _HASH_AT)
            while at >= 0:
                if at % ENTRY_BYTES != _HASH_AT:
                    at = chunk.find(needle, at + 1)
                    continue
                if any(chunk[at - 4 : at]):  # size 0: no record
                    yield first + at // ENTRY_BYTES
                at = chunk.find(needle, at + ENTRY_BYTES)

    def checksum(self, offset: int) -> int:
        """Compute the CRC-32 of the entries below ``offset``, without the interpreter lock. Raises
        KafkaStorageError.
        """
        end, checksum = min(offset, self.end_offset), 0
        for first in range(self.base_offset, end, _SEARCH_ENTRIES):
            checksum = zlib.crc32(self._read(first, min(first + _SEARCH_ENTRIES, end)), checksum)
        return checksum

    def clear_from(self, offset: int) -> None:
        """Set the entries from ``offset`` on to zero: after a crash only some of them may be there. Raises
        LogStorageError."""
        position = max(0, offset - self.base_offset) * ENTRY_BYTES
        try:
            os.ftruncate(self._descriptor, position)
            os.ftruncate(self._descriptor, self.capacity * ENTRY_BYTES)
        except OSError as error:
            raise LogStorageError("truncate", self.path, error.errno or errno.EIO) from error

    def sync(self) -> None:
        """Make all entries written so far durable, without the interpreter lock. Raises IndexDamagedError."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise sync_error(self.path, error) from error
