"""Files that are read by position: on disk through a descriptor, in an object store through requests.

Both count the bytes read. An open descriptor keeps a file that was renamed or deleted. An object may be replaced
between two requests, so its reader asks after the last one (``was_replaced``), by the entity tag.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.files.read_count import ReadCount
from tidelog.pipeline.files.remote import is_remote

if TYPE_CHECKING:
    from tidelog.pipeline.files.remote_file import RemoteFile


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


class OpenSegment:
    """An open file that is read by position. One thread.

    A local file stays readable when it is renamed or deleted. Reading a deleted object raises ObjectGoneError.

    ``inode`` identifies the file; for an object of a store it is a number that identifies its version.
    """

    __slots__ = ("_source", "count", "ctime_ns", "inode", "path", "size")

    def __init__(self, path: str, count: ReadCount | None = None) -> None:
        """Raises FileNotFoundError when the file is gone, PipelineError when it cannot be opened."""
        self.path = path
        self.count = count or ReadCount()
        self._source = open_source(path, self.count)
        self.size = self._source.size
        self.inode = self._source.identity
        self.ctime_ns = self._source.ctime_ns

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def expect(self, start: int, end: int) -> None:
        """Prepare to read bytes ``start`` to ``end`` in order: those of an object store are fetched ahead."""
        self._source.expect(start, end)

    def was_replaced(self) -> bool:
        """Return whether the bytes read may come from two versions of an object, which may be replaced between two
        requests. Call it after the last read; it is False for a local file. Raises PipelineError when the store cannot
        be asked."""
        return self._source.was_replaced()

    def is_same(self, inode: int, ctime_ns: int, size: int) -> bool:
        """Return whether this is the file that had these values when it was planned.

        ``ctime_ns`` is 0 for an active segment, which only grows. A file system gives a deleted file's inode to the
        next one, so the inode alone does not tell a segment from the cleaner's new one.
        """
        return inode == self.inode and ctime_ns in (0, self.ctime_ns) and size <= self.size

    def read_at(self, position: int, size: int) -> bytes:
        """Read up to ``size`` bytes; fewer at the end of the file only. Raises PipelineError."""
        data = bytearray(size)
        return bytes(data[: self.read_into(position, memoryview(data))])

    def read_into(self, position: int, target: memoryview) -> int:
        """Fill ``target`` from byte ``position``; returns the bytes read, fewer at the end of the file only. Raises
        PipelineError.
        """
        return self._source.read_into(position, target)
