"""One directory of ``log.dirs``: its state, and the offsets in its checkpoint files.

Any thread. The tables of offsets are changed under the log manager's lock, the files and the copies of their content
under ``_write_lock``.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable

from tidelog.log.environment import DirectoryState
from tidelog.log.files.checkpoints import (
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_OFFSET_FILE,
    CheckpointCorruptError,
    read_offset_checkpoint,
    take_clean_shutdown,
    write_clean_shutdown,
    write_offset_checkpoint,
)
from tidelog.log.files.index_digests import IndexDigests
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import FileSystem
from tidelog.log.system.reserve import lacks_room
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaStorageError

logger = logging.getLogger(__name__)

_OFFSET_FILES = (RECOVERY_POINT_FILE, LOG_START_OFFSET_FILE, REPLICATION_OFFSET_FILE)


class LogDirectory:
    """One directory of ``log.dirs``: its state and the offsets in its checkpoint files."""

    __slots__ = (
        "_write_lock", "_written", "directory_id", "high_watermarks", "index_digests", "path", "recovery_points",
        "start_offsets", "state", "was_clean",
    )  # fmt: skip

    def __init__(
        self, path: str, state: DirectoryState, file_system: FileSystem, directory_id: bytes | None = None
    ) -> None:
        self.path = path
        self.directory_id = directory_id
        """The ``directory.id`` in its meta.properties; None if that is not known (KIP-858)."""
        self.index_digests = IndexDigests(file_system, path)
        self.state = state
        self.was_clean = False
        """Whether :meth:`read` found the clean-shutdown marker, and no damaged checkpoint."""
        self.recovery_points: dict[TopicPartition, int] = {}
        self.start_offsets: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self._written: dict[str, dict[TopicPartition, int]] = {}
        """The offsets in each file, by file name. Under ``_write_lock``, like the files."""
        self._write_lock = threading.Lock()

    @property
    def is_online(self) -> bool:
        return self.state.failure is None

    def read(self, file_system: FileSystem) -> dict[str, TopicPartition]:
        """Read the checkpoints, and remove the clean-shutdown marker. If a checkpoint is damaged, the logs are
        recovered as after an unclean stop: from their start if it is that of the recovery points.

        Returns the partitions in the files by directory name. Raises KafkaStorageError.
        """
        known: dict[str, TopicPartition] = {}
        self.was_clean = take_clean_shutdown(file_system, self.path)
        self.recovery_points = self._read_file(file_system, RECOVERY_POINT_FILE, known)
        self.start_offsets = self._read_file(file_system, LOG_START_OFFSET_FILE, known)
        self.high_watermarks = self._read_file(file_system, REPLICATION_OFFSET_FILE, known)
        return known

    def _read_file(
        self, file_system: FileSystem, name: str, known: dict[str, TopicPartition]
    ) -> dict[TopicPartition, int]:
        try:
            offsets = read_offset_checkpoint(file_system, os.path.join(self.path, name), known)
        except CheckpointCorruptError as error:
            logger.error("%s; the logs of this directory are recovered", error)
            self.was_clean = False
            return {}
        self._written[name] = dict(offsets)
        return offsets

    def write(self, file_system: FileSystem, name: str) -> None:
        """Write a table's offsets to its checkpoint file, unless the file has them already or the directory is offline.
        If the disk fails, the directory goes offline. Raises KafkaStorageError."""
        with self._write_lock:
            offsets = dict(self._offsets(name))  # copied in one step: other threads change the tables
            if self._written.get(name) == offsets or not self.is_online:
                return
            path = os.path.join(self.path, name)
            try:
                self.state.with_reserve(lambda: write_offset_checkpoint(file_system, path, offsets))
            except KafkaStorageError as error:
                self.state.note_error(error, file_system)
                raise
            self._written[name] = offsets

    def _offsets(self, name: str) -> dict[TopicPartition, int]:
        return {
            RECOVERY_POINT_FILE: self.recovery_points,
            LOG_START_OFFSET_FILE: self.start_offsets,
            REPLICATION_OFFSET_FILE: self.high_watermarks,
        }[name]

    def note_offsets(self, partition: TopicPartition, log: UnifiedLog) -> None:
        """Copy an open log's offsets into the tables. Under the manager's lock.

        A log start offset is kept even if the first segment begins there. A power loss may bring back names of deleted
        segments, and offsets that are missing below the log start offset do not count as lost.
        """
        self.recovery_points[partition] = log.recovery_point
        self.high_watermarks[partition] = log.high_watermark
        if log.log_start_offset > 0:
            self.start_offsets[partition] = log.log_start_offset
        else:
            self.start_offsets.pop(partition, None)

    def finish(
        self, file_system: FileSystem, broker_epoch: int, partitions: Iterable[TopicPartition], *, clean: bool
    ) -> None:
        """Write all checkpoints, then the clean-shutdown marker if ``clean``: every log of the directory was closed
        cleanly. ``partitions`` are those that were not deleted."""
        try:
            for name in _OFFSET_FILES:
                self.write(file_system, name)
            if clean and self.is_online:
                self.write_proofs(partitions)
                self.state.with_reserve(lambda: write_clean_shutdown(file_system, self.path, broker_epoch))
        except KafkaStorageError as error:
            logger.error("%s was not shut down cleanly; the next start recovers its logs: %s", self.path, error)

    def write_proofs(self, partitions: Iterable[TopicPartition]) -> None:
        """Write the digests of transaction indices that agree with the markers, if they changed. ``partitions`` are
        those that were not deleted. Raises KafkaStorageError."""
        if self.is_online:
            self.state.with_reserve(lambda: self.index_digests.write(partitions))

    def forget(self, partition: TopicPartition) -> None:
        """Forget a deleted partition's offsets, which a new partition of that name must not get. Under the manager's
        lock.
        """
        for offsets in (self.recovery_points, self.start_offsets, self.high_watermarks):
            offsets.pop(partition, None)

    def erase(self, partition: TopicPartition, file_system: FileSystem) -> None:
        """Remove a deleted partition's offsets from the files, before a new log of that name takes records. Otherwise a
        killed broker would give the new log the old one's log start offset and recovery point. One write removes all
        partitions that were deleted since the write before. Raises KafkaStorageError.
        """
        for name in _OFFSET_FILES:
            with self._write_lock:  # waits for a write in progress, which may have offsets from before the deletion
                is_written = partition in self._written.get(name, ())
            if is_written:
                self.write(file_system, name)


def write_all(directories: Iterable[LogDirectory], name: str, file_system: FileSystem) -> None:
    """Write a checkpoint file in each directory, even if another directory failed.

    Raises the first KafkaStorageError, but that of a full disk only if there is no other.
    """
    failures = []
    for directory in directories:
        try:
            directory.write(file_system, name)
        except KafkaStorageError as error:
            failures.append(error)
    if failures:
        raise min(failures, key=lacks_room)
