"""The reserve: a file of a few MB in a log directory that is deleted when the disk is full.

Deleting a topic needs some disk space itself (the metadata log records the deletion), and so do checkpoints. Records of
topics never get the space of the reserve: while it is given up, ``DirectoryState`` refuses appends to them. Once the
disk has enough space again, the file is allocated again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from tidelog.log.system.file_system import FileSystem, LogStorageError, allocate
from tidelog.protocol.errors import KafkaStorageError

logger = logging.getLogger(__name__)

RESERVE_FILE = ".reserve"
DEFAULT_RESERVE_BYTES = 8 * 1024 * 1024
#: The reserve takes at most a sixteenth of its file system.
_LARGEST_SHARE = 16


class Reserve:
    """The reserve of one directory; ``size_bytes`` 0 means none. One thread at a time, under ``DirectoryState``'s
    lock."""

    __slots__ = ("_file_system", "_path", "_size_bytes")

    def __init__(self, file_system: FileSystem, directory: str, size_bytes: int) -> None:
        self._file_system = file_system
        self._path = os.path.join(directory, RESERVE_FILE)
        self._size_bytes = size_bytes

    @property
    def exists(self) -> bool:
        """True while the file is there, so that it can be given up."""
        return self._file_system.exists(self._path)

    def make(self) -> None:
        """Allocate the file unless it is there with its size. Raises LogStorageError.

        A failed allocation leaves no file. A kill during one leaves a shorter file, which is extended here.
        """
        if self._size_bytes == 0:
            return
        total, _ = self._file_system.disk_space(os.path.dirname(self._path))
        wanted = min(self._size_bytes, total // _LARGEST_SHARE)
        file = self._file_system.open_file(self._path, create=True)
        made = False
        try:
            if file.size() < wanted:
                allocate(file, wanted)
            made = True
        finally:
            file.close()
            if not made:
                self._file_system.unlink(self._path)

    def give_up(self) -> bool:
        """Delete the file; return False if there was none or it could not be deleted."""
        if not self.exists:
            return False
        try:
            self._file_system.unlink(self._path)
        except KafkaStorageError:
            return False
        return True


def write_if_room(write: Callable[[], object], consequence: str) -> None:
    """Call ``write``; if the disk is full, log ``consequence`` instead. Raises KafkaStorageError for all else."""
    try:
        write()
    except LogStorageError as error:
        if not error.lacks_room:
            raise
        logger.warning("%s: %s", consequence, error)


def lacks_room(error: BaseException) -> bool:
    """Return whether an error says that the disk is full."""
    return isinstance(error, LogStorageError) and error.lacks_room
