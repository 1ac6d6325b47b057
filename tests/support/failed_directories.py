"""A file system whose log directories can fail: at every call, at calls that write, or only when they are locked."""

from __future__ import annotations

import errno
import os

from tidelog.log.system.file_system import FileEntry, LogStorageError, OpenFile, OsFileSystem

UNREADABLE, READ_ONLY, UNLOCKABLE = "unreadable", "read-only", "unlockable"


class FailedDirectories(OsFileSystem):
    """The real file system, except below the directories in ``failed``: directory -> how it fails."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: dict[str, str] = {}

    def _check(self, operation: str, path: str, *, writes: bool = True) -> None:
        """Raise LogStorageError if the path is below a directory at which the operation fails."""
        for directory, how in self.failed.items():
            if os.path.commonpath([directory, path]) == directory:
                if how == UNREADABLE:
                    raise LogStorageError(operation, path, errno.EIO)
                if how == READ_ONLY and writes:
                    raise LogStorageError(operation, path, errno.EROFS)

    def exists(self, path: str) -> bool:
        """Return whether a path exists; False in an unreadable directory, as ``os.path.exists`` does."""
        try:
            self._check("stat", path, writes=False)
        except LogStorageError:
            return False
        return super().exists(path)

    def read_file(self, path: str) -> bytes:
        self._check("read", path, writes=False)
        return super().read_file(path)

    def open_file(self, path: str, *, create: bool = False, writable: bool = True) -> OpenFile:
        self._check("open", path, writes=create or writable)
        return super().open_file(path, create=create, writable=writable)

    def lock_file(self, path: str, *, shared: bool = False) -> OpenFile | None:
        self._check("lock", path)
        if UNLOCKABLE in (self.failed.get(os.path.dirname(path)),):
            raise LogStorageError("lock", path, errno.ENOLCK)
        return super().lock_file(path, shared=shared)

    def list_names(self, path: str) -> list[str]:
        self._check("list", path, writes=False)
        return super().list_names(path)

    def list_directory(self, path: str) -> list[FileEntry]:
        self._check("list", path, writes=False)
        return super().list_directory(path)

    def make_directory(self, path: str) -> None:
        self._check("make", path, writes=not os.path.isdir(path))
        super().make_directory(path)

    def replace_file(self, path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        self._check("write", path)
        super().replace_file(path, data, sync=sync)

    def rename(self, old: str, new: str) -> None:
        self._check("rename", old)
        super().rename(old, new)

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        self._check("remove", path)
        super().unlink(path, missing_ok=missing_ok)

    def sync_directory(self, path: str) -> None:
        self._check("sync", path, writes=False)
        super().sync_directory(path)
