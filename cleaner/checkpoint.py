"""``cleaner-offset-checkpoint``: the first dirty offsets of a log directory's cleaned partitions, in Kafka's form.

A log is clean below its first dirty offset (``tidelog.cleaner.log_to_clean``). An offset belongs to one log, not to a
partition name: a new partition does not get the offset of a deleted one with the same name. If the file is damaged,
every log of the directory counts as dirty from its start, which costs only a round.

After a truncation new records may get the offsets of clean ones. So a saved offset is valid only up to the log's
``clean_bound``, which each truncation lowers, even while a round runs. When a log is opened, its bound is the log end:
recovery may have dropped clean records. ``lower``, ``get`` and ``begin_round`` lower the offset in the file: a later
start could not know the bound, as the log may have grown beyond it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable

from tidelog.log.files.checkpoints import (
    CLEANER_OFFSET_FILE,
    CheckpointCorruptError,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import FileSystem
from tidelog.log.unified_log import UNBOUND, UnifiedLog
from tidelog.protocol.errors import KafkaStorageError

logger = logging.getLogger(__name__)


class CleanerCheckpoint:
    """The checkpoint files of all log directories, each read at its first use.

    Any thread; a lock is held during reads and writes.
    """

    def __init__(self, file_system: FileSystem) -> None:
        self._file_system = file_system
        self._lock = threading.RLock()
        self._offsets: dict[str, dict[TopicPartition, int]] = {}
        self._incarnations: dict[TopicPartition, UnifiedLog] = {}  # the logs that the saved offsets belong to

    def get(self, log: UnifiedLog) -> int | None:
        """Return the first dirty offset; None if none was saved for this log. A saved offset above ``clean_bound`` is
        lowered.

        Raises KafkaStorageError.
        """
        with self._lock:
            self.lower(log)
            offset = self._find_saved(log)
            return None if offset is None else min(offset, log.clean_bound)

    def _find_saved(self, log: UnifiedLog) -> int | None:
        """Return the offset in the file if it belongs to this log, else None. Call it under the lock."""
        partition = log.topic_partition
        known = self._incarnations.setdefault(partition, log)
        offsets = self._offsets_of(log)
        if known is not log:
            self._incarnations[partition] = log
            if offsets.pop(partition, None) is not None:
                self._write(os.path.dirname(log.directory), offsets)
        return offsets.get(partition)

    def begin_round(self, log: UnifiedLog) -> None:
        """Lower the saved offset to ``clean_bound``, and set ``clean_bound`` to UNBOUND, so that a lower value shows a
        truncation during the round. Raises KafkaStorageError."""
        while True:
            bound = log.clean_bound
            self.lower(log)
            with log.lock:
                if log.clean_bound == bound:
                    log.clean_bound = UNBOUND
                    return

    def lower(self, log: UnifiedLog) -> None:
        """Lower the saved offset to ``clean_bound``, if it is higher. Raises KafkaStorageError."""
        with self._lock:
            offset = self._find_saved(log)
            if offset is not None and offset > log.clean_bound:
                self.save(log, offset)

    def save(self, log: UnifiedLog, offset: int) -> None:
        """Save that the log is clean below ``offset``, or below ``clean_bound`` if that is lower. Raises
        KafkaStorageError."""
        with self._lock:
            if log.is_closed:
                return  # the log was deleted: a new log of this partition must not get its offset
            self._incarnations[log.topic_partition] = log
            offsets = {**self._offsets_of(log), log.topic_partition: min(offset, log.clean_bound)}
            self._write(os.path.dirname(log.directory), offsets)

    def forget(self, partition: TopicPartition, directories: Iterable[str]) -> None:
        """Remove the offset of a deleted partition from all directories. Raises the KafkaStorageError of the first that
        fails, after the others."""
        failure: KafkaStorageError | None = None
        with self._lock:
            self._incarnations.pop(partition, None)
            for directory in directories:
                try:
                    offsets = self._offsets_in(directory)
                    if offsets.pop(partition, None) is not None:
                        self._write(directory, offsets)
                except KafkaStorageError as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    def _offsets_of(self, log: UnifiedLog) -> dict[TopicPartition, int]:
        return self._offsets_in(os.path.dirname(log.directory))

    def _offsets_in(self, directory: str) -> dict[TopicPartition, int]:
        offsets = self._offsets.get(directory)
        if offsets is None:
            path = os.path.join(directory, CLEANER_OFFSET_FILE)
            try:
                offsets = read_offset_checkpoint(self._file_system, path)
            except CheckpointCorruptError as error:
                logger.error("%s; every log of the directory counts as dirty from its start", error)
                offsets = {}
            self._offsets[directory] = offsets
        return offsets

    def _write(self, directory: str, offsets: dict[TopicPartition, int]) -> None:
        """Write the file, and then keep these offsets in memory: after an error ``lower`` has to try again."""
        write_offset_checkpoint(self._file_system, os.path.join(directory, CLEANER_OFFSET_FILE), offsets)
        self._offsets[directory] = offsets
