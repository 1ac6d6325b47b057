"""The tag index of one partition: ConsumeQueues in ``tags/``, each named by its first offset.

It works like :class:`tidelog.log.find.key_index.KeyIndex`, but has other entries. An index is made for one header name,
the topic's ``index.tag.header``; if that changes, the index is rebuilt. One writer; look-ups by any thread over the
published tuple of files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidelog.log.find.consume_queue import ConsumeQueueFile
from tidelog.log.find.index_checkpoint import (
    CHECKPOINT_FILE,
    TAGS_DIRECTORY,
    Checkpoint,
    QueueState,
    keep_known_files,
    write_checkpoint,
)
from tidelog.log.find.index_file import IndexDamagedError
from tidelog.log.system.file_system import FileSystem

if TYPE_CHECKING:
    from tidelog.log.find.key_index import IndexSizes
    from tidelog.log.find.rows import Rows

SUFFIX = ".tags"


class TagIndex:
    """Tag index of one partition, as a list of ConsumeQueues."""

    def __init__(self, file_system: FileSystem, log_directory: str, sizes: IndexSizes, header: str) -> None:
        self._file_system = file_system
        self.directory = os.path.join(log_directory, TAGS_DIRECTORY)
        self._sizes = sizes
        self._made_for = "tags " + header.encode().hex()
        self.files: tuple[ConsumeQueueFile, ...] = ()
        self._checksums: dict[int, int] = {}
        self._begun = 0
        """Number of files begun since the last sync."""
        self.next_offset = -1
        self.restarts = 0
        """Number of times that all files were removed. A look-up during which it grows may have found nothing."""

    def open(self) -> int:
        """Open the files as of the last checkpoint; return the next offset to index, -1 if there is no
        checkpoint for this setting.

        Raises IndexDamagedError, KafkaStorageError.
        """
        known = keep_known_files(self._file_system, self.directory, self._made_for, self._name)
        if known is None:
            return -1
        checkpoint, sizes = known
        files = []
        for state in map(QueueState._make, checkpoint.files):
            name = self._name(state.base_offset)
            path = os.path.join(self.directory, name)
            file = ConsumeQueueFile.open(self._file_system, path, state.base_offset, sizes.get(name, 0))
            if file.capacity != state.capacity or file.checksum(checkpoint.next_offset) != state.checksum:
                raise IndexDamagedError(f"{path} has another size or checksum than its checkpoint")
            files.append(file)
        if files:
            files[-1].clear_from(checkpoint.next_offset)
        self.files = tuple(files)
        self.next_offset = checkpoint.next_offset
        return self.next_offset

    def restart_at(self, offset: int) -> None:
        """Remove all files; the next offset to index is ``offset``. Raises KafkaStorageError."""
        self.next_offset = offset  # in this order, as in KeyIndex
        self.restarts += 1
        self.files, self._begun = (), 0
        self._checksums = {}
        self._file_system.remove_directory(self.directory)
        self._file_system.make_directory(self.directory)

    def put(self, rows: Rows, row: int, next_offset: int) -> None:
        """Index the rows from ``row`` on; all records below ``next_offset`` are indexed then. Raises
        KafkaStorageError."""
        while row < rows.count:
            row = self._file_for(rows.offsets[row]).put_rows(rows, row)
        self.next_offset = next_offset

    def _file_for(self, offset: int) -> ConsumeQueueFile:
        """Return the file for a record's entry, after beginning it if it is the next one. Raises KafkaStorageError."""
        # Mostly that is the newest one, but a former put that failed may have begun files after it.
        file = next((file for file in reversed(self.files) if file.base_offset <= offset), None)
        return file if file is not None and offset < file.end_offset else self._begin_file(offset)

    def _begin_file(self, base_offset: int) -> ConsumeQueueFile:
        path = os.path.join(self.directory, self._name(base_offset))
        file = ConsumeQueueFile.create(self._file_system, path, base_offset, self._sizes.tag_entries)
        self.files = (*self.files, file)
        self._begun += 1
        return file

    def select(self, tag_hash: int, start: int, end: int) -> Iterator[int]:
        """Iterate over the offsets from ``start`` to below ``end``, which is at most ``next_offset``, of records with
        that tag hash, ascending, in the files of this moment."""
        files = [file for file in self.files if file.end_offset > start and file.base_offset < end]
        return (offset for file in files for offset in file.select(tag_hash, start, end))

    def select_newest(self, tag_hash: int, start: int, end: int) -> Iterator[int]:
        """Yield the offsets from ``start`` to below ``end`` of records with that tag hash, highest first."""
        end = min(end, self.next_offset)
        for file in reversed(self.files):
            last = min(end, file.end_offset)
            while last > max(start, file.base_offset):
                first = max(start, file.base_offset, last - _WINDOW)
                yield from reversed(list(file.select(tag_hash, first, last)))
                last = first

    def checkpoint(self, *, sync: bool = True) -> None:
        """Make the entries durable, unless ``sync`` is false, and write the checkpoint. Raises KafkaStorageError.

        If a put that failed has begun files above ``next_offset``, the last checkpoint stays, as that of a KeyIndex.
        """
        if self._has_early_file:
            return
        if sync:
            self._sync()
        states = []
        for file in self.files:
            checksum = self._checksums.get(file.base_offset)
            if checksum is None:
                checksum = file.checksum(self.next_offset)
                if self.next_offset >= file.end_offset:
                    self._checksums[file.base_offset] = checksum  # the file does not change any more
            states.append(QueueState(file.base_offset, file.capacity, checksum))
        path = os.path.join(self.directory, CHECKPOINT_FILE)
        write_checkpoint(
            self._file_system, path, Checkpoint(self._made_for, self.next_offset, tuple(states)), sync=sync
        )

    @property
    def _has_early_file(self) -> bool:
        return bool(self.files) and self.files[-1].base_offset > self.next_offset

    def _sync(self) -> None:
        """Sync the files that have changed since the last sync: those begun since then, and the newest before them."""
        for file in self.files[-1 - self._begun :]:
            file.sync()
        self._begun = 0

    def trim(self, log_start_offset: int) -> bool:
        """Remove the files without offsets from ``log_start_offset`` on, but not the newest; return whether any was
        removed. None is removed while a file that a failed put has begun lies above ``next_offset``. Raises
        KafkaStorageError."""
        removed = [file for file in self.files[:-1] if file.end_offset <= log_start_offset]
        if not removed or self._has_early_file:  # the last checkpoint names the files
            return False
        self.files = self.files[len(removed) :]
        self.checkpoint()
        for file in removed:
            self._file_system.unlink(file.path, missing_ok=True)
        return True

    @staticmethod
    def _name(base_offset: int) -> str:
        return f"{base_offset:020d}{SUFFIX}"


_WINDOW = 65_536
"""Largest number of entries that ``select_newest`` searches at a time."""
