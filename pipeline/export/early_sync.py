"""Syncs of a growing file while more of it is written, so that the last sync is short.

A thread of the file's own calls ``fdatasync``, one call at a time. Linux reports a failed write only once, to the
descriptors that are open. So all calls are made on one descriptor, and a failure of any is raised by the next
``begin_sync`` or ``end``.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol


class FileSync(Protocol):
    """The syncs of one file."""

    def begin_sync(self) -> None:
        """Begin a sync of the bytes written so far, if none is under way. Raises OSError."""

    def end(self) -> None:
        """Wait until the whole file is on disk. Raises OSError."""

    def give_up(self) -> None:
        """Stop syncing."""


class EarlySync:
    """The syncs of a file in a mounted directory. The thread that writes the file calls it."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._pool = ThreadPoolExecutor(1, "file sync")
        self._running: Future[None] | None = None

    def begin_sync(self) -> None:
        """Begin a sync of the bytes written so far, if none is under way. Raises OSError."""
        if self._running is None or self._running.done():
            self._raise_failure()
            self._running = self._pool.submit(os.fdatasync, self._descriptor)

    def end(self) -> None:
        """Wait until the whole file is on disk. Raises OSError."""
        try:
            self._raise_failure()
            os.fsync(self._descriptor)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Stop syncing, and release thread and descriptor."""
        self._pool.shutdown()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _raise_failure(self) -> None:
        if self._running is not None:
            self._running.result()


class NoSync:
    """The syncs of an object in a store, which do nothing: the object is durable once it is closed."""

    def begin_sync(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def give_up(self) -> None:
        """Do nothing."""
