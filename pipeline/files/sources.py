"""Files that are read by position: on disk through a descriptor, in an object store through requests.

Both count the bytes read, and neither mixes two files of one name: an open descriptor keeps a file that was renamed or
deleted, and the entity tag shows that an object was replaced.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.files.remote import is_remote

if TYPE_CHECKING:
    from tidelog.pipeline.files.remote_file import RemoteFile
    from tidelog.pipeline.files.segment_files import ReadCount


class LocalFile:
    """A local file that is open for reading. One thread."""

    __slots__ = ("_count", "_descriptor", "_path", "ctime_ns", "identity", "size")

    def __init__(self, path: str, count: ReadCount) -> None:
        """Raises FileNotFoundError when it is gone, PipelineError when it cannot be opened."""
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise PipelineError(f"{path} cannot be opened: {error.strerror}") from error
        status = os.fstat(self._descriptor)
        self._path = path
        self._count = count
        self.size = status.st_size
        self.identity = status.st_ino
        self.ctime_ns = status.st_ctime_ns

    def close(self) -> None:
        """Close the descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def expect(self, start: int, end: int) -> None:
        """Do nothing: the kernel reads ahead by itself."""

    def was_replaced(self) -> bool:
        """Return False: the descriptor stays with its file under renames and deletion."""
        return False

    def read_into(self, position: int, target: memoryview) -> int:
        """Fill ``target`` from byte ``position``; returns the bytes read, fewer at the end of the file only. Raises
        PipelineError."""
        done = 0
        try:
            while done < len(target) and (got := os.preadv(self._descriptor, [target[done:]], position + done)):
                done += got
        except OSError as error:
            raise PipelineError(f"{self._path} cannot be read at byte {position}: {error.strerror}") from error
        self._count.add(done)
        return done


def open_source(path: str, count: ReadCount) -> LocalFile | RemoteFile:
    """Open the file at a path. Raises FileNotFoundError, PipelineError."""
    if not is_remote(path):
        return LocalFile(path, count)
    from tidelog.pipeline.files.remote_file import RemoteFile

    return RemoteFile(path, count)
