"""A file system that runs a test's function, such as one that replaces files, while a reader opens a file."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidelog.log.system.file_system import OpenFile, OsFileSystem

WAIT_S = 0.01
END_LIMIT_S = 60.0


class SwappingFileSystem(OsFileSystem):
    """Runs ``swap`` in another thread when the thread that made this object opens a file, and then opens the file.

    Opening waits for the end of ``swap``, but only WAIT_S: correct code makes the swap wait until the reader is done.
    """

    def __init__(self) -> None:
        super().__init__()
        self.swap: Callable[[], None] = lambda: None
        self._reader = threading.current_thread()
        self._swapped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.swap()
        self._swapped.set()

    def open_file(self, path: str, *, create: bool = False, writable: bool = True) -> OpenFile:
        """Start the swap, wait for it for WAIT_S, and open the file."""
        if threading.current_thread() is self._reader:
            self._thread.start()
            self._swapped.wait(WAIT_S)
        return super().open_file(path, create=create, writable=writable)

    def join(self) -> None:
        """Wait for the end of the swap."""
        self._thread.join(END_LIMIT_S)
        assert self._swapped.is_set()
