"""The transaction index (``.txnindex``) of a segment: the aborted transactions whose marker lies in it (KIP-98).

Entry, 34 bytes big-endian::

    version 2 (0) | producer id 8 | first offset 8 | last offset 8 | last stable offset 8

The last offset is the marker's; the last stable offset is the one after the marker was appended.

Last offsets strictly grow. A reader of offsets [from, to) under read_committed needs each transaction with
``last offset >= from and first offset < to``; it may stop at an entry whose last stable offset is >= ``to``. The file
is made with the first entry.

A rebuild is made in memory and replaces the file as a whole at its end: a file with part of the entries would look
complete. An entry that cannot be written because of a recoverable error, such as a full disk, stays in memory too: its
marker is in the log already. ``save`` writes it later, and until then no recovery point passes its segment.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from tidelog.log.index.abstract_index import IndexCorruptError
from tidelog.log.system.file_system import FileSystem, LogStorageError, OpenFile
from tidelog.protocol.errors import KafkaStorageError

logger = logging.getLogger(__name__)

ENTRY = Struct(">hqqqq")
_CHUNK_ENTRIES = 512


class AbortedTxn(NamedTuple):
    """One aborted transaction, with the fields of an entry."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Transaction index file of one segment.

    Appends under the log's lock; reads by any thread (``pread`` below the published count).
    """

    __slots__ = (
        "_entries", "_file", "_file_lock", "_file_system", "_is_sealed", "_last_offset", "_memory", "digest",
        "is_proven", "is_settled", "is_unsynced", "path", "start_offset",
    )  # fmt: skip

    def __init__(self, file_system: FileSystem, path: str, start_offset: int) -> None:
        self._file_system = file_system
        self._file: OpenFile | None = None
        #: Held while the file is read, opened for that, renamed or closed. A reader must not miss the file between two
        #: names, as it would take aborted records for committed ones. Nor may it read from a descriptor that is another
        #: file's by now.
        self._file_lock = threading.RLock()
        self._entries = -1
        self._last_offset: int | None = None
        self._memory: bytearray | None = None  # all entries, while the file does not have them
        self._is_sealed = False
        self.is_unsynced = False
        """Whether entries were added, or all were replaced, since the last flush."""
        #: False after the load of a segment with records that neither rebuilt the index nor found a matching digest,
        #: until ``tidelog.log.index_proof`` has compared the entries with the markers.
        self.is_proven = True
        #: True if it is known that no transaction is open at the end of the segment; only a proof learns that.
        self.is_settled = False
        #: Size of the segment's records, and the digest for that size; None until ``index_proof`` has computed it for
        #: the present entries.
        self.digest: tuple[int, str] | None = None
        self.path = path
        self.start_offset = start_offset

    @property
    def entries(self) -> int:
        """Number of entries in the index; looks at the file on first use."""
        if self._entries < 0:
            with self._file_lock:
                self._load()
        return self._entries

    def _load(self) -> None:
        if self._entries >= 0:
            return
        if self._is_sealed:  # a reader must not take aborted records for committed ones
            raise KafkaStorageError(f"{self.path} is closed")
        count = 0
        if self._file_system.exists(self.path):
            self._file = self._file_system.open_file(self.path)
            count = self._file.size() // ENTRY.size
        self._entries = count
        for entry in self._iterate(max(0, count - 1)):
            self._last_offset = entry.last_offset

    def _iterate(self, slot: int = 0) -> Iterator[AbortedTxn]:
        entries = self.entries
        while slot < entries:
            data = self._read(slot, min(_CHUNK_ENTRIES, entries - slot))
            data = data[: len(data) // ENTRY.size * ENTRY.size]
            if not data:
                return
            for version, *fields in ENTRY.iter_unpack(data):
                if version != 0:
                    raise IndexCorruptError(f"{self.path} has an entry of unknown version {version}")
                yield AbortedTxn(*fields)
            slot += len(data) // ENTRY.size

    def _read(self, slot: int, count: int) -> bytes:
        with self._file_lock:
            self._load()
            if self._memory is not None:
                return bytes(self._memory[slot * ENTRY.size : (slot + count) * ENTRY.size])
            if self._file is None:
                raise KafkaStorageError(f"{self.path} is gone")
            return self._file.read_at(slot * ENTRY.size, count * ENTRY.size)

    def __iter__(self) -> Iterator[AbortedTxn]:
        return self._iterate()

    def content(self) -> bytes:
        """Read the bytes of all entries. Raises KafkaStorageError."""
        return self._read(0, self.entries) if self.entries else b""

    def append(self, transaction: AbortedTxn) -> None:
        """Add an aborted transaction. Raises KafkaStorageError."""
        entries = self.entries
        assert self._last_offset is None or transaction.last_offset > self._last_offset
        self.is_unsynced = True
        self.digest = None
        self._write(ENTRY.pack(0, *transaction), entries)
        self._last_offset = transaction.last_offset
        self._entries = entries + 1

    def _write(self, packed: bytes, entries: int) -> None:
        """Write an entry after the existing ones, whose number is ``entries``; in memory if the disk refuses it."""
        if self._memory is None:
            try:
                if self._file is None:
                    self._file = self._file_system.open_file(self.path, create=True)
                self._file.write_at(packed, entries * ENTRY.size)
                return
            except LogStorageError as error:
                if not error.is_recoverable:
                    raise
                logger.warning("%s is kept in memory until it can be written: %s", self.path, error)
            present = b"" if self._file is None else self._file.read_at(0, entries * ENTRY.size)
            self._memory = bytearray(present)
        self._memory += packed

    def save(self) -> None:
        """Write the entries to the file if they are only in memory. Raises KafkaStorageError; then they stay in memory.

        Call it under the log's lock, or for a closed segment.
        """
        with self._file_lock:
            memory = self._memory
            if memory is None or self._is_sealed:
                return
            if memory or self._file_system.exists(self.path):
                self._file_system.replace_file(self.path, bytes(memory))
                old, self._file = self._file, self._file_system.open_file(self.path)
                if old is not None:
                    old.close()
            self._memory = None

    def collect(self, fetch_offset: int, upper_bound_offset: int) -> tuple[list[AbortedTxn], bool]:
        """Collect transactions that overlap [``fetch_offset``, ``upper_bound_offset``). Return them, and True if later
        segments need not be searched.
        """
        found = []
        for entry in self._iterate():
            if entry.last_offset >= fetch_offset and entry.first_offset < upper_bound_offset:
                found.append(entry)
            if entry.last_stable_offset >= upper_bound_offset:
                return found, True
        return found, False

    def sanity_check(self) -> None:
        """Raise IndexCorruptError if an entry has an unknown version, or a last offset before the segment. Raises
        KafkaStorageError if the file cannot be read."""
        if self._entries and self._file_system.exists(self.path):
            for entry in self._iterate():
                if entry.last_offset < self.start_offset:
                    raise IndexCorruptError(f"{self.path} has a marker of an earlier segment, {entry.last_offset}")

    def truncate_to(self, offset: int) -> None:
        """Drop the transactions whose marker is at or above ``offset``. Transactions may be open at the segment's new
        end, so ``is_settled`` becomes false."""
        self.is_settled = False
        kept = 0
        last = None
        for entry in self._iterate():
            if entry.last_offset >= offset:
                break
            kept, last = kept + 1, entry.last_offset
        if kept == self._entries:
            return
        self._entries, self._last_offset = kept, last
        self.digest = None
        if self._memory is not None:
            del self._memory[kept * ENTRY.size :]
        elif self._file is not None:
            self._file.truncate(kept * ENTRY.size)

    def reset(self) -> None:
        """Begin a rebuild without entries, in memory: the file stays as it is until ``save`` replaces it."""
        self._entries, self._last_offset = 0, None
        self._memory = bytearray()
        self.digest = None
        self.is_unsynced = True

    def flush(self) -> None:
        """Make the entries durable, also those of a closed index. Raises KafkaStorageError."""
        self.save()
        self.is_unsynced = False
        file = self._file
        if file is not None:
            file.sync()
        elif self._file_system.exists(self.path):
            file = self._file_system.open_file(self.path)
            try:
                file.sync()
            finally:
                file.close()

    def seal(self) -> None:
        """Forbid opening the file from now on; if it is open already, it stays usable."""
        with self._file_lock:
            self._is_sealed = True

    def close(self) -> None:
        """Save and close the file; a later read opens it again. Raises KafkaStorageError; then entries may be missing
        from the file, and the log must not count as closed cleanly."""
        try:
            self.save()
        finally:
            self.release()

    def release(self) -> None:
        """Close the file as it is, for an index that is deleted."""
        with self._file_lock:
            if self._file is not None:
                self._file.close()
            self._file, self._memory, self._entries, self._last_offset = None, None, -1, None

    def rename_to(self, path: str) -> None:
        """Rename the file, if it exists."""
        with self._file_lock:
            if self._file_system.exists(self.path):
                self._file_system.rename(self.path, path)
            self.path = path


def note_absent(index: TransactionIndex) -> None:
    """Note that there is no file, as a directory listing shows: it is then not looked for. Call this before any use of
    the index."""
    index._entries = 0
