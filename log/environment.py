"""Environment that the logs of a broker share: file system and clocks, deletion queue, state of each directory."""

from __future__ import annotations

import errno
import heapq
import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tidelog.log.damage import DamageCounts
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.producer.state import DEFAULT_PRODUCER_ID_EXPIRATION_MS
from tidelog.log.system.file_system import FileSystem, LogStorageError
from tidelog.log.system.reserve import Reserve, lacks_room
from tidelog.log.system.time import Time
from tidelog.protocol.errors import KafkaStorageError

logger = logging.getLogger(__name__)

MIN_FREE_BYTES = 64 * 1024
"""A disk with less free space counts as full: one or two more requests would fill it."""
T = TypeVar("T")
PROBE_FILE = ".probe"
"""Beginning of the name of a file that is written, synced, read and removed to see whether a directory works."""
_PROBE_BYTES = 4096


class DeletionQueue:
    """Files to unlink after ``file.delete.delay.ms``, by the monotonic clock. Any thread.

    A crash before the deadline loses only the queue: the next start removes directories whose names end in ``-delete``,
    and the next load of a log removes its ``.deleted`` files.
    """

    __slots__ = ("_heap", "_lock", "_sequence", "_time")

    def __init__(self, time: Time) -> None:
        self._time = time
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = itertools.count()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, delay_ms: float, delete: Callable[[], None]) -> None:
        """Queue ``delete`` to be called by the first :meth:`run` after ``delay_ms``."""
        with self._lock:
            heapq.heappush(self._heap, (self._time.monotonic_ms() + delay_ms, next(self._sequence), delete))

    def run(self, *, everything: bool = False) -> int:
        """Delete what is due, or everything; return the number of items. A failure is logged, and the next start tries
        again.
        """
        count = 0
        while (delete := self._pop(everything)) is not None:
            try:
                delete()
            except KafkaStorageError as error:
                logger.warning("files could not be deleted; the next start tries again: %s", error)
            count += 1
        return count

    def _pop(self, everything: bool) -> Callable[[], None] | None:
        with self._lock:
            if self._heap and (everything or self._heap[0][0] <= self._time.monotonic_ms()):
                return heapq.heappop(self._heap)[2]
            return None


class DirectoryState:
    """State of one directory of ``log.dirs``. ``failure`` is the error that took it offline; it is never cleared, and
    is read without a lock.

    ``shortage`` is the error while the disk is full or read-only: reads go on, and on a full disk deletions too.
    ``append_refusal`` is the failure, or a full disk while the reserve is given up: records must not take the space
    that deletions need. The reserve is a file that keeps disk space free for this (``tidelog.log.system.reserve``).
    """

    __slots__ = (
        "_listeners",
        "_logged_errnos",
        "_names_lock",
        "_names_seen",
        "_names_synced",
        "_reserve",
        "_room_lock",
        "append_refusal",
        "failure",
        "path",
        "shortage",
    )

    def __init__(self, path: str, reserve: Reserve | None = None) -> None:
        self.path = path
        self.failure: KafkaStorageError | None = None
        self.shortage: KafkaStorageError | None = None
        self.append_refusal: KafkaStorageError | None = None
        self._reserve = reserve
        self._room_lock = threading.Lock()
        self._listeners: list[Callable[[DirectoryState], None]] = []
        self._logged_errnos: set[int] = set()
        self._names_lock = threading.Lock()
        self._names_seen = 0
        self._names_synced = 0

    def note_directory_name(self) -> int:
        """Note that a partition's directory was made, found or renamed; return a number for :meth:`sync_names`."""
        with self._names_lock:
            self._names_seen += 1
            return self._names_seen

    def sync_names(self, file_system: FileSystem, number: int) -> None:
        """Make the name with that number durable; one sync covers all names that were noted before it.

        Raises KafkaStorageError.
        """
        if number <= self._names_synced:
            return
        with self._names_lock:
            if number <= self._names_synced:
                return
            seen = self._names_seen
            file_system.sync_directory(self.path)
            self._names_synced = seen

    def sync_all_names(self, file_system: FileSystem) -> None:
        """Make the names of all partitions' directories durable. Raises KafkaStorageError; the directory may be offline
        then."""
        try:
            self.sync_names(file_system, self._names_seen)
        except KafkaStorageError as error:
            self.note_error(error, file_system)
            raise

    def add_listener(self, listener: Callable[[DirectoryState], None]) -> None:
        """Register ``listener``, which is called when the directory goes offline, in the thread that met the error."""
        self._listeners.append(listener)

    def mark_offline(self, error: KafkaStorageError) -> None:
        """Take the directory out of service for good: it is not known what its disk holds."""
        with self._room_lock:  # else ``check_room`` could clear ``append_refusal``
            if self.failure is not None:
                return
            self.failure = self.append_refusal = error
        logger.error("log directory %s goes offline: %s", self.path, error)
        for listener in self._listeners:
            listener(self)

    def note_error(self, error: KafkaStorageError, file_system: FileSystem) -> None:
        """Take the directory offline if the error shows that its disk does not work.

        A failed sync shows that the disk does not work. A recoverable error, such as a full disk or a lack of
        descriptors or permission, does not: no file has changed. Any other error may concern one file only (it was
        removed, a bad sector), so the directory is probed. Blocks on disk.
        """
        if isinstance(error, LogStorageError) and (error.lacks_room or error.is_read_only):
            self._begin_shortage(error)
        if self.failure is not None or not isinstance(error, LogStorageError):
            return
        if error.is_recoverable:
            self._log_refusal(error)
            return
        if error.operation == "sync" or not probe_directory(file_system, self.path):
            self.mark_offline(error)
        else:
            logger.error("%s; log directory %s stays online, because a probe file could be written", error, self.path)

    def _log_refusal(self, error: LogStorageError) -> None:
        """Log that operations are refused: one line for each kind of error between two calls of :meth:`check_room`."""
        if self.shortage is None and error.os_errno not in self._logged_errnos:
            self._logged_errnos.add(error.os_errno)
            logger.error("log directory %s stays online, but refuses some requests: %s", self.path, error)

    # ---- disk space

    def give_up_reserve(self) -> bool:
        """Free the disk space that is kept for deletions and metadata; return False if there is none, or if its file
        cannot be deleted. Any thread."""
        with self._room_lock:
            if self._reserve is None or not self._reserve.give_up():
                return False
            self.append_refusal = self.failure or self._disk_full_error()
        self._begin_shortage(self._disk_full_error())
        logger.warning(
            "log directory %s: the reserve file is deleted; deletions and metadata need its space", self.path
        )
        return True

    def with_reserve(self, write: Callable[[], T]) -> T:
        """Call ``write``; if the disk is full, give up the reserve and call it once more.

        Raises KafkaStorageError.
        """
        try:
            return write()
        except LogStorageError as error:
            if not (error.lacks_room and self.give_up_reserve()):
                raise
            return write()

    def check_room(self, file_system: FileSystem) -> None:
        """Check whether the disk is full or still read-only, and allocate the reserve again if there is space. Blocks
        on disk.
        """
        self._logged_errnos.clear()
        if self.failure is not None:
            return
        try:
            if isinstance(self.shortage, LogStorageError) and self.shortage.is_read_only:
                try_to_write(file_system, self.path)
            with self._room_lock:
                if self._reserve is not None:
                    self._reserve.make()
                self.append_refusal = self.failure
            if file_system.disk_space(self.path)[1] < MIN_FREE_BYTES:
                raise self._disk_full_error()
        except LogStorageError as error:
            if error.lacks_room or error.is_read_only:
                self._begin_shortage(error)
            else:
                logger.debug("log directory %s has no reserve: %s", self.path, error)
            return
        self._end_shortage()

    def _disk_full_error(self) -> LogStorageError:
        return LogStorageError("write", self.path, errno.ENOSPC)

    def _begin_shortage(self, error: KafkaStorageError) -> None:
        if self.shortage is None:
            self.shortage = error
            state = "full" if lacks_room(error) else "read-only"
            logger.warning("log directory %s is %s and takes no records for now: %s", self.path, state, error)

    def _end_shortage(self) -> None:
        if self.shortage is not None:
            self.shortage = None
            logger.info("log directory %s takes records again", self.path)

    # ---- failures

    def ensure_online(self) -> None:
        """Raise KafkaStorageError when the directory is offline."""
        if self.failure is not None:
            raise KafkaStorageError(f"log directory {self.path} is offline: {self.failure}")


def probe_directory(file_system: FileSystem, path: str) -> bool:
    """Return whether a file can be written, synced and read in the directory.

    It also returns True after a recoverable error, such as a full disk: that does not show a failed disk.
    """
    try:
        return try_to_write(file_system, path)
    except LogStorageError as error:
        return error.is_recoverable


def try_to_write(file_system: FileSystem, path: str) -> bool:
    """Write and sync a file in the directory, and return whether the same bytes are read. Raises LogStorageError."""
    probe, data = os.path.join(path, f"{PROBE_FILE}-{os.urandom(8).hex()}"), os.urandom(_PROBE_BYTES)
    file = file_system.open_file(probe, create=True)
    try:
        file.write_at(data, 0)
        file.sync()
        return file.read_at(0, len(data)) == data
    finally:
        file.close()
        file_system.unlink(probe, missing_ok=True)


@dataclass(slots=True)
class LogEnvironment:
    """File system, clocks, deletion queue and settings that all logs of one manager share."""

    file_system: FileSystem
    time: Time
    deletions: DeletionQueue = field(init=False)
    damage: DamageCounts = field(default_factory=DamageCounts)
    producer_id_expiration_ms: int = DEFAULT_PRODUCER_ID_EXPIRATION_MS
    max_decompressed_bytes: int = 64 * 1024 * 1024
    service_changes: deque[TopicPartition] = field(default_factory=deque)
    """Partitions whose logs were taken out of service, refused or are served again, since this was last emptied, for
    the caller that reports their log directories."""
    failed_logs: int = 0
    """Number of logs that were taken out of service. There is no lock: of several that fail at once, one may not be
    counted."""

    def __post_init__(self) -> None:
        self.deletions = DeletionQueue(self.time)

    def note_failed_log(self, partition: TopicPartition) -> None:
        """Note that a log was taken out of service. Any thread."""
        self.failed_logs += 1
        self.service_changes.append(partition)
