"""Count of the threads that work on a log's files by name, for which a deletion waits.

    a thread without the log's lock   ``with log.files:`` around code that makes, renames, removes or syncs a file by
                                      its path: a flush, the cleaner or the indexer, for example
    deletion                          ``stop``: no thread may begin any more; wait until those inside have left
                                      -> rename

A new partition may get a directory of the same name right after the deletion. Without this rule a thread that still
works for the old log would write into the directory of the new one. Work under the log's lock, and the opening of a log
under the lock of its entry in the log manager, need no ``FileUse``: deletion takes these locks too.
"""

from __future__ import annotations

import threading

from tidelog.protocol.errors import KafkaStorageError, UnknownTopicOrPartitionError


class LogDeletedError(UnknownTopicOrPartitionError, KafkaStorageError):
    """The partition was deleted meanwhile. Clients get UNKNOWN_TOPIC_OR_PARTITION; nothing is wrong with the disk."""


class FileUse:
    """A count of the threads that work on a log's files. Any thread; may be entered again by the same thread."""

    __slots__ = ("_count", "_idle", "_is_over", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._is_over = False
        self._idle: threading.Event | None = None
        """Set when the last thread has left. ``stop`` creates it, so that ten thousand logs do without one."""

    def __enter__(self) -> None:
        """Begin to work on the files. Raises LogDeletedError once :meth:`stop` was called."""
        with self._lock:
            if self._is_over:
                raise LogDeletedError
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            if not self._count and self._idle is not None:
                self._idle.set()

    def stop(self) -> None:
        """Let no thread begin any more and wait for those inside. A thread inside must not call it."""
        with self._lock:
            self._is_over = True
            if not self._count:
                return
            if self._idle is None:
                self._idle = threading.Event()
        self._idle.wait()
