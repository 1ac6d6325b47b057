# cython: wraparound=True, boundscheck=True
"""Record file of a segment (``.log``): append at the end, read by position, hand out slices to be sent, truncate.

Invariants:

- ``size`` is the end of the last complete append. Bytes after it are a failed append that could not be cut back, or a
  write in progress; no reader reads them.
- An append writes at ``size``: by ``pwrite``, or by ``copy_file_range`` from another segment. When it fails, the file
  is cut back to ``size``. When even that fails, the next ``append`` cuts it back before it writes.
- The descriptor is reference-counted. The segment holds one reference, each slice one more; the last release closes
  it. So its number cannot be given to another file while a ``sendfile`` still uses it (docs/internals/faults.md, F22).
  ``retain`` on a closed file reopens nothing: it raises, and the reader looks for the offset again in a newer segment
  list.
- Opening is lazy: ten thousand idle partitions hold no descriptor.
"""

from __future__ import annotations

import logging
import threading

from tidelog.log.system.file_system import FileSystem, LogStorageError, OpenFile
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.transferable import TransferableRecords

logger = logging.getLogger(__name__)


class SharedFile:
    """File descriptor with a count of its users (:class:`tidelog.protocol.transferable.RetainedFile`). Any thread."""

    __slots__ = ("_count", "_lock", "file")

    def __init__(self, file: OpenFile) -> None:
        self.file = file
        self._count = 1
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor; valid between ``retain`` and ``release``."""
        return self.file.fileno()

    def retain(self) -> None:
        """Keep the descriptor open for one more user.

        Raises KafkaStorageError when the last user has released it already.
        """
        with self._lock:
            if self._count == 0:
                raise KafkaStorageError(f"{self.file.path} is closed")
            self._count += 1

    def release(self) -> None:
        """Give back one ``retain``; the last one closes the descriptor."""
        with self._lock:
            self._count -= 1
            assert self._count >= 0, "released more often than retained"
            if self._count:
                return
        self.file.close()


class FileRecords:
    """The record file of one segment. One writer (under the log's lock); readers any number, any thread."""

    __slots__ = ("_broken", "_closed", "_file_system", "_open_lock", "_shared", "path", "size")

    def __init__(self, file_system: FileSystem, path: str, size: int) -> None:
        self._file_system = file_system
        self._open_lock = threading.Lock()
        self._shared: SharedFile | None = None
        self._closed = False
        self._broken = False
        self.path = path
        self.size = size

    @property
    def shared(self) -> SharedFile:
        """The open file, opened on first use.

        Raises KafkaStorageError if it cannot be opened, or was closed or sealed before.
        """
        shared = self._shared
        return shared if shared is not None else self._open()

    def _open(self) -> SharedFile:
        with self._open_lock:
            if self._shared is None:
                if self._closed:
                    raise KafkaStorageError(f"{self.path} is closed")
                self._shared = SharedFile(self._file_system.open_file(self.path))
            return self._shared

    def create(self) -> None:
        """Create the file, empty. Raises KafkaStorageError if it has content already or cannot be created."""
        file = self._file_system.open_file(self.path, create=True)
        size = file.size()
        file.close()
        if size:
            raise KafkaStorageError(f"{self.path} exists already and is not empty")

    def append(self, data: bytes | bytearray | memoryview) -> int:
        """Write ``data`` after the last append and return the byte position at which it begins.

        Raises KafkaStorageError; ``size`` is unchanged then.
        """
        position = self.size
        if self._broken:
            self.shared.file.truncate(position)
            self._broken = False
        try:
            (self._shared or self._open()).file.write_at(data, position)
        except LogStorageError:
            self._cut_back(position)
            raise
        self.size = position + len(data)
        return position

    def append_from(self, source: FileRecords, span: tuple[int, int]) -> int:
        """Append up to ``span[1]`` bytes of ``source``, from its byte ``span[0]`` on; return how many.

        Raises KafkaStorageError; ``size`` is unchanged then.
        """
        shared = source.shared
        shared.retain()
        try:
            copied = self.shared.file.copy_from(shared.file, span, self.size)
        except LogStorageError:
            self._cut_back(self.size)
            raise
        finally:
            shared.release()
        self.size += copied
        return copied

    def _cut_back(self, size: int) -> None:
        try:
            self.shared.file.truncate(size)
        except KafkaStorageError:
            self._broken = True
            logger.warning("%s holds a failed append after byte %d; the next append removes it first", self.path, size)

    def read_at(self, position: int, size: int) -> bytes:
        """Read up to ``size`` bytes from byte ``position``; fewer only where the file ends."""
        shared = self.shared
        shared.retain()
        try:
            return shared.file.read_at(position, size)
        finally:
            shared.release()

    def read_into(self, position: int, target: memoryview) -> int:
        """Fill ``target`` from byte ``position``; returns how many bytes, fewer only where the file ends."""
        shared = self.shared
        shared.retain()
        try:
            return shared.file.read_into(position, target)
        finally:
            shared.release()

    def slice(self, position: int, size: int) -> TransferableRecords:
        """Return a slice, to be sent later, of ``size`` bytes from byte ``position``. The descriptor stays open until
        the slice is released."""
        shared = self._shared or self._open()
        shared.retain()
        return TransferableRecords(shared, position, size)

    def truncate_to(self, size: int) -> int:
        """Cut the file to ``size`` bytes; returns how many bytes were removed. Raises KafkaStorageError."""
        file = self.shared.file
        removed = max(file.size(), self.size) - size
        # ``size`` is lowered first: a reader that comes now must not get a slice of bytes that are about to be cut.
        self.size = min(self.size, size)
        file.truncate(size)
        self._broken = False
        return removed

    def flush(self) -> None:
        """Make all appended bytes durable. Raises KafkaStorageError; then it is unknown what the disk holds."""
        shared = self.shared
        shared.retain()
        try:
            shared.file.sync()
        finally:
            shared.release()

    def seal(self) -> None:
        """Forbid opening the file from now on; if it is open already, it stays usable."""
        with self._open_lock:
            self._closed = True

    def close(self) -> None:
        """Release the segment's reference; the last reader's release closes the descriptor.

        A failed append is cut first, because no recovery follows a clean stop. Raises KafkaStorageError if that fails.
        """
        with self._open_lock:
            self._closed = True
            shared, self._shared = self._shared, None
        if shared is not None:
            try:
                if self._broken:
                    shared.file.truncate(self.size)
            finally:
                shared.release()

    def rename_to(self, path: str) -> None:
        """Rename the file; open descriptors stay valid. A reader that opens it meanwhile gets this file, never another
        one that takes over the old name.
        """
        with self._open_lock:
            self._file_system.rename(self.path, path)
            self.path = path
