"""Files of a laboratory: not synced, and on a disk that is full when a test says so.

A laboratory is a broker for tests. Its data are not needed after its process has ended, so they need not survive a
power loss: starting, stopping and creating topics wait for no disk. A full disk refuses writes that make a file longer,
as the kernel does. Copies between files (``copy_from``), and files that ``tidelog.log.find`` and the cleaner use by
descriptor, are as without a laboratory. Any thread.
"""

from __future__ import annotations

import errno

from tidelog.log.system.file_system import LogStorageError, OpenFile, OsFile, OsFileSystem, open_regular


class Disk:
    """The state of a laboratory's disk."""

    __slots__ = ("is_full",)

    def __init__(self) -> None:
        self.is_full = False


class LaboratoryFile(OsFile):
    """A file that is never synced, and that ``write_at`` makes no longer while the disk is full."""

    __slots__ = ("_disk",)

    def __init__(self, descriptor: int, path: str, disk: Disk) -> None:
        super().__init__(descriptor, path)
        self._disk = disk

    def write_at(self, data: bytes | bytearray | memoryview, position: int) -> None:
        if self._disk.is_full and position + len(data) > self.size():
            raise LogStorageError("write", self.path, errno.ENOSPC)
        super().write_at(data, position)

    def sync(self) -> None:
        """Do nothing: the data need not survive a power loss."""


class LaboratoryFileSystem(OsFileSystem):
    """The operating system's files, none of them synced."""

    __slots__ = ("disk",)

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()

    def open_file(self, path: str, *, create: bool = False, writable: bool = True) -> OpenFile:
        return LaboratoryFile(open_regular(path, create=create, writable=writable), path, self.disk)

    def sync_directory(self, path: str) -> None:
        """Do nothing: the data need not survive a power loss."""

    def disk_space(self, path: str) -> tuple[int, int]:
        total, usable = super().disk_space(path)
        return total, 0 if self.disk.is_full else usable
