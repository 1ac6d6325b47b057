"""Leader epochs of a log and the offset at which each began (KIP-101, KIP-279).

Invariant: epochs strictly grow and start offsets do not decrease. The file is ``leader-epoch-checkpoint``. If it is
unreadable, or empty although the records have epochs, it is rebuilt from the epochs in the batches of magic 2. Each
change is written at once, except that a load writes its changes at its end, and a thread those of new leaders. The file
is synced later: by the next flush of the log, or when a follower makes a truncation durable.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from tidelog.log.files.checkpoints import LEADER_EPOCH_FILE, EpochEntry, encode_lines, read_leader_epochs
from tidelog.log.system.file_system import FileSystem
from tidelog.log.system.reserve import write_if_room

UNDEFINED_EPOCH = -1
UNDEFINED_EPOCH_OFFSET = -1


class LeaderEpochCache:
    """Leader epochs in memory and in their file. Changes under the log's lock; look-ups by any thread."""

    __slots__ = ("_dirty", "_entries", "_file_system", "_path", "_write_lock", "is_unsaved", "latest_epoch")

    def __init__(self, file_system: FileSystem, directory: str) -> None:
        self._file_system = file_system
        self._path = os.path.join(directory, LEADER_EPOCH_FILE)
        self._entries: tuple[EpochEntry, ...] = ()
        self._write_lock = threading.Lock()
        self._dirty = False  # whether the entries in memory may not be durable
        self.is_unsaved = False
        """True while the entries in the file differ from those in memory."""
        self.latest_epoch = UNDEFINED_EPOCH

    def load(self) -> None:
        """Read the file. Raises CheckpointCorruptError if it has to be rebuilt, LogStorageError if reading fails."""
        self._publish(_monotone(read_leader_epochs(self._file_system, self._path)))

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """All entries, oldest first."""
        return self._entries

    def _publish(self, entries: Iterable[EpochEntry]) -> None:
        self._entries = tuple(entries)
        self.latest_epoch = self._entries[-1].epoch if self._entries else UNDEFINED_EPOCH

    def _change(self, entries: Iterable[EpochEntry], *, write: bool = True) -> None:
        self._publish(entries)
        self._dirty = self.is_unsaved = True
        if write:
            write_if_room(lambda: self._write(sync=False), "leader epochs are written by the next flush")

    def _write(self, *, sync: bool) -> None:
        """Write the file, one thread at a time. With ``sync`` nothing is done if another thread has synced these
        entries meanwhile.
        """
        with self._write_lock:
            if sync and not self._dirty:
                return
            # Cleared before the entries are read, because another thread may change them from here on.
            self._dirty, self.is_unsaved = not sync, False
            lines = encode_lines(f"{entry.epoch} {entry.start_offset}" for entry in self._entries)
            try:
                self._file_system.replace_file(self._path, lines, sync=sync)
            except BaseException:
                self._dirty = self.is_unsaved = True
                raise

    def assign(self, epoch: int, start_offset: int, *, write: bool = True) -> None:
        """Add the entry that ``epoch`` begins at ``start_offset``, unless this or a later epoch is known. Raises
        KafkaStorageError."""
        if epoch > self.latest_epoch:
            kept = [entry for entry in self._entries if entry.start_offset < start_offset]
            self._change([*kept, EpochEntry(epoch, start_offset)], write=write)

    def save(self) -> None:
        """Write the file if its entries differ from those in memory and the disk is not full. Raises
        KafkaStorageError."""
        if self.is_unsaved:
            write_if_room(lambda: self._write(sync=False), "leader epochs are written by the next flush")

    def flush(self) -> None:
        """Make the file durable if it changed. Raises KafkaStorageError."""
        if self._dirty or self._write_lock.locked():  # another thread may not have synced it yet
            self._write(sync=True)

    def truncate_from_end(self, end_offset: int, *, write: bool = True) -> None:
        """Drop the epochs that begin at or after ``end_offset``."""
        if self._entries and self._entries[-1].start_offset >= end_offset:
            self._change((entry for entry in self._entries if entry.start_offset < end_offset), write=write)

    def truncate_from_start(self, start_offset: int, *, write: bool = True) -> None:
        """Drop the epochs that end at or before ``start_offset``; the epoch of that offset then begins there."""
        before = [entry for entry in self._entries if entry.start_offset <= start_offset]
        if before and (before[-1].start_offset < start_offset or len(before) > 1):
            after = self._entries[len(before) :]
            self._change([EpochEntry(before[-1].epoch, start_offset), *after], write=write)

    def clear(self, *, write: bool = True) -> None:
        """Drop all entries."""
        if self._entries:
            self._change((), write=write)

    def epoch_for_offset(self, offset: int) -> int:
        """Return the epoch in which ``offset`` was written; -1 when unknown."""
        found = UNDEFINED_EPOCH
        for entry in self._entries:
            if entry.start_offset > offset:
                break
            found = entry.epoch
        return found

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Find the largest known epoch up to ``epoch``; return it and its end offset.

        Returns ``epoch`` itself, with the start offset of the first known epoch, if all known epochs are later; (-1,
        -1) if ``epoch`` is later than all known ones, is -1, or no epoch is known. Source: OffsetForLeaderEpoch,
        KIP-279.
        """
        entries = self._entries
        if epoch == UNDEFINED_EPOCH or not entries:
            return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
        if epoch == entries[-1].epoch:
            return epoch, log_end_offset
        later = [entry for entry in entries if entry.epoch > epoch]
        if not later:
            return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
        floor = [entry.epoch for entry in entries if entry.epoch <= epoch]
        # If all known epochs are later, the log has no record of ``epoch``, which ended before the first of them began.
        return (floor[-1] if floor else epoch), later[0].start_offset


def _monotone(entries: list[EpochEntry]) -> list[EpochEntry]:
    """Return the entries without those that contradict later ones, which an older broker could leave (KAFKA-7415)."""
    kept: list[EpochEntry] = []
    for entry in entries:
        while kept and (entry.epoch <= kept[-1].epoch or entry.start_offset < kept[-1].start_offset):
            kept.pop()
        kept.append(entry)
    return kept
