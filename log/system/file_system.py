# cython: wraparound=True, boundscheck=True
"""The file system as the log uses it. In ``tidelog.log`` only this module opens, makes, renames, unlinks or lists files
of logs; ``tidelog.log.find`` also syncs and cuts its index files by descriptor.

Every ``OSError`` becomes a :class:`LogStorageError` that names the operation and the path. Its ``is_recoverable``
tells a full disk (the append is refused, reads go on) from a failed sync (the directory goes offline). Tests use
``tests/support/faulty_file_system.py`` instead, which drops unsynced bytes, cuts writes short and fails the N-th call.

Durability rules that callers rely on:

- bytes written are durable after ``OpenFile.sync`` of that file;
- a created, renamed or unlinked name is durable after ``sync_directory`` of its directory;
- ``replace_file`` does both in the order that leaves either the old or the new content, never a part.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from typing import NamedTuple, Protocol

from tidelog.protocol.errors import KafkaStorageError

#: Errors that leave everything written before intact: the operation is refused, the directory stays online.
RECOVERABLE_ERRNOS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.EFBIG,
     errno.ENOMEM}
)  # fmt: skip

#: No room is left, on the disk or in the user's quota; nothing else is wrong.
NO_ROOM_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})

#: The kernel cannot copy between these two files (other file system, old kernel): read and write instead.
_NOT_COPYABLE = frozenset({errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})


class LogStorageError(KafkaStorageError):
    """A file operation failed. ``os_errno`` is the system's error number, ``path`` the file, ``operation`` what was
    tried."""

    def __init__(self, operation: str, path: str, os_errno: int) -> None:
        super().__init__(f"{operation} of {path} failed: {os.strerror(os_errno)}")
        self.operation = operation
        self.path = path
        self.os_errno = os_errno

    @property
    def is_recoverable(self) -> bool:
        """True when the directory may stay online: a full or read-only disk, a limit of file sizes, no permission, no
        descriptors or memory left. It is never true of a failed sync."""
        return self.os_errno in RECOVERABLE_ERRNOS and self.operation != "sync"

    @property
    def lacks_room(self) -> bool:
        """True when the disk or the user's quota is full."""
        return self.os_errno in NO_ROOM_ERRNOS and self.is_recoverable

    @property
    def is_missing(self) -> bool:
        """True when there is no file of that name."""
        return self.os_errno == errno.ENOENT

    @property
    def is_read_only(self) -> bool:
        """True when the file system takes no writes: mounted so, or made so by the kernel after an error."""
        return self.os_errno == errno.EROFS and self.is_recoverable


class NotRegularFileError(LogStorageError):
    """A FIFO, a device, a socket or a directory stands where a file of a log must be."""

    def __init__(self, path: str) -> None:
        super().__init__("open", path, errno.EINVAL)
        self.args = (f"{path} is not a regular file",)


class FileEntry(NamedTuple):
    """One name in a directory listing; a symbolic link is neither file nor directory."""

    name: str
    is_directory: bool
    is_file: bool
    size: int
    modified_ms: int


class OpenFile(Protocol):
    """An open file, without a lock of its own: one writer, any number of positional readers."""

    path: str

    def fileno(self) -> int:
        """Return the descriptor, for system calls that have no method here, such as ``sendfile``."""
        ...

    def size(self) -> int:
        """Return the file's length in bytes."""
        ...

    def read_at(self, position: int, size: int) -> bytes:
        """Read up to ``size`` bytes from byte ``position``; fewer only at the end of the file."""
        ...

    def read_into(self, position: int, target: memoryview) -> int:
        """Fill ``target`` from byte ``position``; returns how many bytes, fewer only at the end of the file."""
        ...

    def write_at(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of ``data`` at byte ``position``. After an error any part of it may be in the file."""
        ...

    def copy_from(self, source: OpenFile, span: tuple[int, int], position: int) -> int:
        """Copy up to ``span[1]`` bytes from byte ``span[0]`` of ``source`` to byte ``position``, in the kernel if
        possible; returns how many, 0 only past the end of ``source``. After an error any part may be in the file."""
        ...

    def truncate(self, size: int) -> None:
        """Cut or extend (with a hole) the file to ``size`` bytes."""
        ...

    def sync(self) -> None:
        """Make all bytes written so far durable (fdatasync)."""
        ...

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        ...


class ReadableFiles(Protocol):
    """The calls that read a small file as a whole: enough for checkpoints, wherever they lie."""

    def exists(self, path: str) -> bool: ...

    def read_file(self, path: str) -> bytes: ...


class FileSystem(ReadableFiles, Protocol):
    """The file system calls that the log makes. Safe for use by any thread."""

    def open_file(self, path: str, *, create: bool = False, writable: bool = True) -> OpenFile: ...

    def replace_file(self, path: str, data: bytes | bytearray, *, sync: bool = True) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, path: str, *, missing_ok: bool = False) -> None: ...

    def list_directory(self, path: str) -> list[FileEntry]: ...

    def list_names(self, path: str) -> list[str]: ...

    def make_directory(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def disk_space(self, path: str) -> tuple[int, int]: ...

    def link_file(self, path: str, new: str) -> None: ...

    def lock_file(self, path: str, *, shared: bool = False) -> OpenFile | None: ...


class _TranslatedErrors:
    """Context manager that turns an ``OSError`` of its block into a LogStorageError. Opening a log enters it fourteen
    times; a generator under ``contextlib.contextmanager`` would take three times as long."""

    __slots__ = ("_operation", "_path")

    def __init__(self, operation: str, path: str) -> None:
        self._operation = operation
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, OSError):
            raise LogStorageError(self._operation, self._path, error.errno or errno.EIO) from error


class OsFile:
    """:class:`OpenFile` over a descriptor of the operating system."""

    __slots__ = ("_fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        with _TranslatedErrors("stat", self.path):
            return os.fstat(self._fd).st_size

    def read_at(self, position: int, size: int) -> bytes:
        try:
            data = os.pread(self._fd, size, position)
            if len(data) == size or not data:
                return data
            return data + self._read_rest(position + len(data), size - len(data))
        except OSError as error:
            raise LogStorageError("read", self.path, error.errno or errno.EIO) from error

    def _read_rest(self, position: int, size: int) -> bytes:
        # A signal or the 2 GiB limit of one read leaves a short count; only the end of the file gives none.
        parts = []
        while size > 0 and (part := os.pread(self._fd, size, position)):
            parts.append(part)
            position += len(part)
            size -= len(part)
        return b"".join(parts)

    def read_into(self, position: int, target: memoryview) -> int:
        with _TranslatedErrors("read", self.path):
            done = 0
            while done < len(target) and (count := os.preadv(self._fd, [target[done:]], position + done)):
                done += count
            return done

    def write_at(self, data: bytes | bytearray | memoryview, position: int) -> None:
        # No context manager here: each append calls this method, and a context manager would slow it down.
        try:
            size = len(data)
            written = os.pwrite(self._fd, data, position)
            while written < size:
                count = os.pwrite(self._fd, memoryview(data)[written:], position + written)
                if count == 0:
                    raise OSError(errno.EIO, "nothing written")
                written += count
        except OSError as error:
            raise LogStorageError("write", self.path, error.errno or errno.EIO) from error

    def copy_from(self, source: OpenFile, span: tuple[int, int], position: int) -> int:
        start, size = span
        try:
            return os.copy_file_range(source.fileno(), self._fd, size, start, position)
        except OSError as error:
            if error.errno not in _NOT_COPYABLE:
                raise LogStorageError("write", self.path, error.errno or errno.EIO) from error
        data = source.read_at(start, size)
        self.write_at(data, position)
        return len(data)

    def truncate(self, size: int) -> None:
        with _TranslatedErrors("truncate", self.path):
            os.ftruncate(self._fd, size)

    def sync(self) -> None:
        with _TranslatedErrors("sync", self.path):
            os.fdatasync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with _TranslatedErrors("close", self.path):
                os.close(fd)

    _close = staticmethod(os.close)
    """``os.close``, kept here for ``__del__``: when the interpreter ends, the module's names may be gone already."""

    def __del__(self) -> None:
        # A log that was dropped without being closed (failed start, offline directory) leaks no descriptor.
        if self._fd >= 0:
            self._close(self._fd)


def allocate(file: OpenFile, size: int) -> None:
    """Reserve disk blocks for ``size`` bytes of ``file``, which are written only where the file system cannot reserve.
    Raises LogStorageError."""
    with _TranslatedErrors("write", file.path):
        os.posix_fallocate(file.fileno(), 0, size)


def open_if_there(file_system: FileSystem, path: str) -> OpenFile | None:
    """Open a file; None when there is none. Raises LogStorageError."""
    try:
        return file_system.open_file(path)
    except LogStorageError as error:
        if error.is_missing:
            return None
        raise


def open_in_memory(path: str) -> OpenFile:
    """Open an empty file in memory, for data that the full disk cannot take; ``path`` only names it in errors."""
    with _TranslatedErrors("open", path):
        return OsFile(os.memfd_create(os.path.basename(path)), path)


def open_regular(path: str, *, create: bool, writable: bool) -> int:
    """Return a descriptor of the regular file ``path``. Raises LogStorageError, NotRegularFileError."""
    return _open_sized(path, create=create, writable=writable)[0]


def _open_sized(path: str, *, create: bool, writable: bool) -> tuple[int, int]:
    """Return the descriptor of :func:`open_regular`, and the file's length in bytes."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_RDWR if writable else os.O_RDONLY)
    with _TranslatedErrors("open", path):
        descriptor = os.open(path, flags | (os.O_CREAT if create else 0), 0o644)
        try:
            status = os.fstat(descriptor)
        except OSError:
            os.close(descriptor)
            raise
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise NotRegularFileError(path)
    return descriptor, status.st_size


def replace_by_rename(files: FileSystem, path: str, data: bytes | bytearray, *, sync: bool) -> None:
    """Replace a file's content in the steps of :meth:`OsFileSystem.replace_file`, each by ``files``."""
    temporary = path + ".tmp"
    file = files.open_file(temporary, create=True)
    try:
        file.truncate(0)
        file.write_at(data, 0)
        if sync:
            file.sync()
    finally:
        file.close()
    files.rename(temporary, path)
    if sync:
        files.sync_directory(os.path.dirname(path))


class OsFileSystem:
    """:class:`FileSystem` over the operating system's calls."""

    __slots__ = ()

    def open_file(self, path: str, *, create: bool = False, writable: bool = True) -> OpenFile:
        """Open the regular file ``path``; anything else is refused.

        A stray link must not lead an append out of the directory, and the open of a FIFO would wait for its writer.
        """
        return OsFile(open_regular(path, create=create, writable=writable), path)

    def read_file(self, path: str) -> bytes:
        """Read the whole content of a small file."""
        descriptor, size = _open_sized(path, create=False, writable=False)
        file = OsFile(descriptor, path)
        try:
            return file.read_at(0, size)
        finally:
            file.close()

    def replace_file(self, path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        """Replace the content of ``path`` by ``data``, by way of ``path.tmp``: a crash leaves the old or the new one.

        With ``sync=False`` that holds for a crash of the process, but not for a power loss.
        """
        replace_by_rename(self, path, data, sync=sync)

    def rename(self, old: str, new: str) -> None:
        with _TranslatedErrors("rename", old):
            os.rename(old, new)

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        with _TranslatedErrors("unlink", path):
            try:
                os.unlink(path)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def list_directory(self, path: str) -> list[FileEntry]:
        """List all entries, sorted by name."""
        with _TranslatedErrors("list", path), os.scandir(path) as entries:
            listing = []
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                mode, modified_ms = status.st_mode, status.st_mtime_ns // 1_000_000
                listing.append(
                    FileEntry(entry.name, stat.S_ISDIR(mode), stat.S_ISREG(mode), status.st_size, modified_ms)
                )
        listing.sort()
        return listing

    def list_names(self, path: str) -> list[str]:
        """List the names of a directory, sorted, without a system call for each entry: ten thousand partitions must
        be listed in milliseconds.
        """
        with _TranslatedErrors("list", path):
            return sorted(os.listdir(path))

    def make_directory(self, path: str) -> None:
        """Make ``path`` and its missing parents; ``path`` may exist already."""
        with _TranslatedErrors("mkdir", path):
            os.makedirs(path, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        """Remove ``path`` and everything below it; it may be missing. No link is followed, not even ``path`` itself.

        The first error is raised after all entries were tried: the others are removed even if one cannot be.
        """
        with _TranslatedErrors("remove", path):
            if os.path.islink(path):
                os.unlink(path)
                return
            errors: list[OSError] = []
            for root, directories, files in os.walk(path, topdown=False):
                for name in (*files, *directories):
                    self._remove_below(os.path.join(root, name), errors)
            if errors:
                raise errors[0]
            if os.path.isdir(path):
                os.rmdir(path)

    @staticmethod
    def _remove_below(path: str, errors: list[OSError]) -> None:
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                os.rmdir(path)
            else:
                os.unlink(path)
        except OSError as error:
            errors.append(error)

    def sync_directory(self, path: str) -> None:
        # The operation is "open", not "sync": a lack of descriptors says nothing about what the disk holds.
        with _TranslatedErrors("open", path):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _TranslatedErrors("sync", path):
                os.fsync(fd)
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def disk_space(self, path: str) -> tuple[int, int]:
        """Return (total, usable) bytes of the file system that holds ``path``."""
        with _TranslatedErrors("stat", path):
            space = os.statvfs(path)
        return space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize

    def link_file(self, path: str, new: str) -> None:
        """Give the file at ``path`` a second name, on the same file system."""
        with _TranslatedErrors("link", path):
            os.link(path, new, follow_symlinks=False)

    def lock_file(self, path: str, *, shared: bool = False) -> OpenFile | None:
        """Lock ``path`` for this process; None when another process holds it. Closing the file releases it.

        Two locks of the operating system are taken. ``flock`` also excludes a second broker in the same process. The
        record lock (``fcntl``) is the one that a JVM takes, so that Apache Kafka and this broker exclude each other.
        With ``shared`` the file is neither made nor changed, and only callers without ``shared`` are excluded.
        """
        file = self.open_file(path, create=not shared, writable=not shared)
        operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
        try:
            fcntl.flock(file.fileno(), operation)
            fcntl.lockf(file.fileno(), operation)
        except OSError as error:
            file.close()
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            raise LogStorageError("lock", path, error.errno or errno.EIO) from error
        return file
