"""Watch on disk space: checks each second which log directories are full or have space again, and retries refused logs.

A log that could not be loaded because disk space, a permission or descriptors were missing is tried again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import LogStorageError
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaError, KafkaStorageError

logger = logging.getLogger(__name__)


class Directory(Protocol):
    """The part of a log directory that `RoomWatch` needs."""

    @property
    def state(self) -> DirectoryState: ...


class Entry(Protocol):
    """The part of a partition's entry that `RoomWatch` needs (``tidelog.log.manager`` says what ``lock`` guards)."""

    path: str
    log: UnifiedLog | None
    error: KafkaError | None
    lock: threading.Lock
    is_gone: bool
    is_deleted_unrenamed: bool

    @property
    def directory(self) -> Directory: ...


class RoomWatch:
    """Watch over full disks and refused logs. ``run`` and ``try_refused_again`` block on disks: call them in a worker
    thread.
    """

    __slots__ = ("_directories", "_entries", "_environment", "_open_log")

    def __init__(
        self,
        environment: LogEnvironment,
        directories: Sequence[Directory],
        entries: Mapping[TopicPartition, Entry],
        open_log: Callable[[TopicPartition], UnifiedLog],
    ) -> None:
        self._environment = environment
        self._directories = directories
        self._entries = entries
        self._open_log = open_log

    def run(self) -> None:
        """Check the space of every directory once, and try refused logs again. Call it each second."""
        for directory in self._directories:
            was_short = directory.state.shortage is not None
            directory.state.check_room(self._environment.file_system)
            if was_short and directory.state.shortage is None:
                self._save_indices()
        self.try_refused_again(every=False)

    def _save_indices(self) -> None:
        """Write the indices that were kept in memory while a disk was full."""
        for entry in list(self._entries.values()):
            if entry.log is not None and entry.log.is_serving:
                try:
                    entry.log.save_indices()
                except KafkaStorageError as error:
                    logger.warning("indices of %s could not be written and stay in memory: %s", entry.path, error)

    def try_refused_again(self, *, every: bool = True) -> None:
        """Load the refused logs of online directories again; without ``every``, only those whose error may have
        passed."""
        for partition, entry in list(self._entries.items()):
            if entry.directory.state.failure is not None:
                continue
            if entry.error is not None and (every or _may_have_passed(entry.error)):
                with entry.lock:
                    if not entry.is_gone and not entry.is_deleted_unrenamed and entry.log is None:
                        self._load(partition, entry)

    def _load(self, partition: TopicPartition, entry: Entry) -> None:
        """Open a refused log; until it is open, other callers still get its error. Under the entry's lock."""
        try:
            entry.log = self._open_log(partition)
        except KafkaError as error:
            if str(error) != str(entry.error):
                logger.error("%s is still refused: %s", entry.path, error)
            entry.error = error
            return
        entry.error = None
        self._environment.service_changes.append(partition)
        logger.info("%s is served from now on", entry.path)


def _may_have_passed(error: KafkaError) -> bool:
    """Return whether an error may be over by now, such as a full disk, no permission, no descriptors left."""
    return isinstance(error, LogStorageError) and error.is_recoverable
