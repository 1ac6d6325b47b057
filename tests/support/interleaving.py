"""A file system that starts a change in another thread at its N-th call: tests try each interleaving with a job.

That call of the job waits until the change is done, or for BLOCKED_S if the change waits for a lock that the job holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidelog.log.system.file_system import FileEntry, OpenFile, OsFileSystem

#: Seconds after which a change counts as waiting for the job. With too short a time less is interleaved, nothing else.
BLOCKED_S = 0.01
#: Much longer than a change takes: only a deadlock lasts so long.
PATIENCE_S = 60.0


class InterleavedFileSystem(OsFileSystem):
    """A file system that counts the calls with a path in the thread that armed it, and starts the change at one."""

    __slots__ = ("_at", "_change", "_count", "_failure", "_owner", "_thread")

    def __init__(self) -> None:
        self._owner = 0
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def arm(self, at: int, change: Callable[[], None]) -> None:
        """Count this thread's calls from now on, and start ``change`` at the call with the number ``at``, from 0 on."""
        self._at, self._change, self._count, self._failure = at, change, 0, None
        self._thread, self._owner = None, threading.get_ident()

    def disarm(self) -> bool:
        """Wait for the change; return whether its call was reached. Raises the change's error."""
        self._owner = 0
        if self._thread is None:
            return False
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the change and the job wait for each other"
        if self._failure is not None:
            raise self._failure
        return True

    def _step(self) -> None:
        if threading.get_ident() != self._owner:
            return
        self._count += 1
        if self._count - 1 == self._at:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
            self._thread.join(BLOCKED_S)

    def _run(self) -> None:
        try:
            self._change()
        except BaseException as error:  # noqa: BLE001 - raised by disarm
            self._failure = error

    def open_file(self, path: str, *, create: bool = False, writable: bool = True) -> OpenFile:
        self._step()
        return super().open_file(path, create=create, writable=writable)

    def rename(self, old: str, new: str) -> None:
        self._step()
        super().rename(old, new)

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        self._step()
        super().unlink(path, missing_ok=missing_ok)

    def list_directory(self, path: str) -> list[FileEntry]:
        self._step()
        return super().list_directory(path)

    def list_names(self, path: str) -> list[str]:
        self._step()
        return super().list_names(path)

    def make_directory(self, path: str) -> None:
        self._step()
        super().make_directory(path)

    def remove_directory(self, path: str) -> None:
        self._step()
        super().remove_directory(path)

    def sync_directory(self, path: str) -> None:
        self._step()
        super().sync_directory(path)

    def exists(self, path: str) -> bool:
        self._step()
        return super().exists(path)
