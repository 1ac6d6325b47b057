"""File system of a test that gives a file's name to another file while a reader opens it by that name."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidelog.log.system.file_system import OpenFile, OsFileSystem

WAIT_S = 0.01
END_LIMIT_S = 60.0


class SwappingFileSystem(OsFileSystem):
    """Runs ``swap`` in a thread of its own when the thread that made this opens a file, and opens the file after it.

    A swap that waits for the reader, as it has to, is not waited for: the file is opened before it then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.swap: Callable[[], None] = lambda: None
        self._reader = threading.current_thread()
        self._swapped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.swap()
        self._swapped.set()

    def open_file(self, path: str, *, create: bool = False, writable: bool = True) -> OpenFile:
        """Open the file, after the swap where that does not wait for it."""
        if threading.current_thread() is self._reader:
            self._thread.start()
            self._swapped.wait(WAIT_S)
        return super().open_file(path, create=create, writable=writable)

    def join(self) -> None:
        """Wait for the end of the swap."""
        self._thread.join(END_LIMIT_S)
        assert self._swapped.is_set()
