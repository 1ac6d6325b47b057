"""The key index of one partition: IndexFiles in ``keys/``, each named by its first offset.

    open         files of the checkpoint are opened, others removed, and the newest one is cut to the checkpoint
    put          entries are added to the newest file; when it is full, the next one is begun
    checkpoint   files that have changed since the last checkpoint are synced first
    select       newest file first
    trim         files whose last offset is below the log start offset are removed, but not the newest

A file that contradicts the checkpoint, or is not an IndexFile, raises :class:`IndexDamagedError`, and the caller
rebuilds the index. One writer; look-ups by any thread over the published tuple of files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tidelog.log.find.index_checkpoint import (
    CHECKPOINT_FILE,
    KEYS_DIRECTORY,
    Checkpoint,
    FileState,
    keep_known_files,
    write_checkpoint,
)
from tidelog.log.find.index_file import IndexDamagedError, IndexFile
from tidelog.log.system.file_system import FileSystem

if TYPE_CHECKING:
    from tidelog.log.find.rows import Rows

SUFFIX = ".keys"
MADE_FOR = "keys"


class IndexSizes(NamedTuple):
    """Sizes of new files: numbers of slots and entries of an IndexFile, and of entries of a ConsumeQueue."""

    slots: int
    entries: int
    tag_entries: int


class KeyIndex:
    """Key index of one partition, as a list of IndexFiles."""

    def __init__(self, file_system: FileSystem, log_directory: str, sizes: IndexSizes) -> None:
        self._file_system = file_system
        self.directory = os.path.join(log_directory, KEYS_DIRECTORY)
        self._sizes = sizes
        self._bases: list[int] = []
        self.files: tuple[IndexFile, ...] = ()
        self._begun = 0
        """Number of files begun since the last sync."""
        self.next_offset = -1
        self.restarts = 0
        """Number of times that all files were removed. Offsets found before may be those of other records now, and a
        look-up during which it grows may have found none."""

    def open(self) -> int:
        """Open the files as of the last checkpoint; return the next offset to index, -1 if there is no
        checkpoint for this setting.

        Raises IndexDamagedError, KafkaStorageError.
        """
        known = keep_known_files(self._file_system, self.directory, MADE_FOR, self._name)
        if known is None:
            return -1
        checkpoint, sizes = known
        states = [FileState._make(state) for state in checkpoint.files]
        files = [self._open_file(state, sizes) for state in states]
        if files:
            newest = states[-1]
            files[-1].restore(newest.next_entry, newest.min_timestamp, newest.max_timestamp)
        self._bases = [state.base_offset for state in states]
        self.files = tuple(files)
        self.next_offset = checkpoint.next_offset
        return self.next_offset

    def _open_file(self, state: FileState, sizes: dict[str, int]) -> IndexFile:
        name = self._name(state.base_offset)
        file = IndexFile.open(self._file_system, os.path.join(self.directory, name), sizes.get(name, 0))
        if file.count < state.next_entry:
            raise IndexDamagedError(f"{file.path} has {file.count - 1} entries, its checkpoint {state.next_entry - 1}")
        file.min_timestamp = state.min_timestamp
        return file

    def restart_at(self, offset: int) -> None:
        """Remove all files; the next offset to index is ``offset``. Raises KafkaStorageError."""
        # In this order: a reader that has read the old ``next_offset`` and then finds no files sees that ``restarts``
        # has grown. And before the directory is removed: if that fails, records must not count as indexed.
        self.next_offset = offset
        self.restarts += 1
        self.files, self._bases, self._begun = (), [], 0
        self._file_system.remove_directory(self.directory)
        self._file_system.make_directory(self.directory)

    def put(self, rows: Rows, row: int, next_offset: int) -> None:
        """Index the rows from ``row`` on; all records below ``next_offset`` are indexed then. Raises
        KafkaStorageError."""
        row = max(row, rows.first_at(self._reached))
        while True:
            if not self.files or self.files[-1].is_full:
                if rows.first_keyed(row, rows.count) < 0:
                    break
                self._begin_file(rows.offsets[rows.first_keyed(row, rows.count)])
            row = self.files[-1].put_rows(rows, row)
            if row >= rows.count:
                break
        self.next_offset = next_offset

    @property
    def _reached(self) -> int:
        """Offset from which on no record has an entry. It lies above ``next_offset`` after a put that failed, which may
        have indexed some of its rows, and have begun a file that is still empty."""
        return 1 + max((file.bounds.end_offset for file in self.files[-2:]), default=-1)

    def _begin_file(self, base_offset: int) -> None:
        if self.files:
            self.files[-1].flush()
        path = os.path.join(self.directory, self._name(base_offset))
        file = IndexFile.create(self._file_system, path, self._sizes.slots, self._sizes.entries)
        self.files = (*self.files, file)
        self._begun += 1
        self._bases.append(base_offset)

    def select(self, key_hash: int, begin: int, end: int, min_offset: int = 0) -> Iterator[int]:
        """Yield the offsets of records with that hash, newest first, down to ``min_offset``, whose time may lie between
        ``begin`` and ``end`` (ms). Raises IndexDamagedError, LogStorageError.
        """
        files = [file for file in self.files if file.touches(begin, end) and file.bounds.end_offset >= min_offset]
        for file in files:
            file.prefetch(key_hash)
        for file in reversed(files):
            yield from file.select(key_hash, begin, end, min_offset)

    def checkpoint(self, *, sync: bool = True) -> None:
        """Make the entries durable, unless ``sync`` is false, and write the checkpoint. Raises KafkaStorageError.

        After a put that failed the last checkpoint stays: a new one would name entries above ``next_offset``. After a
        truncation to that offset and a restart, the records appended there would count as indexed.
        """
        if self._reached > self.next_offset:
            return
        if self.files:
            self.files[-1].flush()
        if sync:
            self._sync()
        states = tuple(
            FileState(base, file.count, file.min_timestamp, file.bounds.end_timestamp)
            for base, file in zip(self._bases, self.files, strict=True)
        )
        path = os.path.join(self.directory, CHECKPOINT_FILE)
        write_checkpoint(self._file_system, path, Checkpoint(MADE_FOR, self.next_offset, states), sync=sync)

    def _sync(self) -> None:
        """Sync the files that have changed since the last sync: those begun since then, and the newest before them."""
        for file in self.files[-1 - self._begun :]:
            file.sync()
        self._begun = 0

    def trim(self, log_start_offset: int) -> bool:
        """Remove the files without offsets from ``log_start_offset`` on, but not the newest; return whether any was
        removed. None is removed after a put that failed. Raises KafkaStorageError."""
        gone = 0
        while gone < len(self.files) - 1 and self.files[gone].bounds.end_offset < log_start_offset:
            gone += 1
        if not gone or self._reached > self.next_offset:  # the last checkpoint names the files
            return False
        removed, self.files = self.files[:gone], self.files[gone:]
        del self._bases[:gone]
        self.checkpoint()
        for file in removed:
            self._file_system.unlink(file.path, missing_ok=True)
        return True

    @staticmethod
    def _name(base_offset: int) -> str:
        return f"{base_offset:020d}{SUFFIX}"
