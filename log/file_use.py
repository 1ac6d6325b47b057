"""FileUse: who works on the files of a log by name, and the deletion that waits for them.

    flush, cleaner, indexer   ``with log.files:`` around what makes, renames, removes or syncs a file by its path
    deletion                  ``stop``: nobody comes in any more, then wait until those that are in have left -> rename

A partition's directory may be made again under the same name right after its deletion. Without this rule a thread that
still works for the old log would write into the directory of the new one. What is done under the log's lock, and what
opens a log under its entry's lock, needs no ``FileUse``: deletion takes these locks, too.
"""

from __future__ import annotations

import threading

from tidelog.protocol.errors import KafkaStorageError, UnknownTopicOrPartitionError


class LogDeletedError(UnknownTopicOrPartitionError, KafkaStorageError):
    """The partition was deleted meanwhile: clients are told that it is unknown, and it says nothing about the disk."""


class FileUse:
    """A count of the threads that work on a log's files. Any thread; may be entered again by the same thread."""

    __slots__ = ("_condition", "_count", "_is_over")

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        self._count = 0
        self._is_over = False

    def __enter__(self) -> None:
        """Begin to work on the files. Raises LogDeletedError when they are about to go."""
        with self._condition:
            if self._is_over:
                raise LogDeletedError
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._count -= 1
            if not self._count:
                self._condition.notify_all()

    def stop(self) -> None:
        """Let nobody in any more and wait for those that are in. Not from within."""
        with self._condition:
            self._is_over = True
            self._condition.wait_for(lambda: not self._count)
