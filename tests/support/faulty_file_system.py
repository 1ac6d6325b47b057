"""A file system that simulates failed writes and power losses: it tracks which bytes of a real directory are durable.

A file's bytes as of its last ``sync`` are durable, and a directory's names as of its last ``sync_directory``. ``crash``
puts the real directory into a state that a power loss may leave. Unsynced bytes are lost, or with ``torn`` any of the
written 512-byte sectors are kept. Unsynced names are lost or, with ``keep_names``, kept (a killed process, or a file
system with an ordered journal).

``fail_at`` makes the N-th mutating call fail with an errno. ``kill_at`` makes the N-th and every later call raise
:class:`Killed`; of a write a random part of the data is written before. ``calls`` lists the mutating calls so far, so
that a test can fail each of them in turn; with ``counts_reads`` it also lists calls that open, read and list.
``at_each_call`` gives what a kill at each call leaves, from one run.

``kill`` closes all open files, as the system does when a process ends; after each test this is done for all instances.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar
from weakref import WeakSet

from tidelog.log.system.file_system import FileEntry, LogStorageError, OpenFile, OsFileSystem, replace_by_rename

SECTOR = 512
Taken = TypeVar("Taken")


class Killed(BaseException):
    """The simulated death of the process. Not an Exception: no code under test may catch it."""


class _Inode:
    """A file's durable content."""

    def __init__(self, durable: bytes) -> None:
        self.durable = durable


class DiskImage(NamedTuple):
    """Directories, and files with their bytes, by their paths below a root."""

    directories: frozenset[str]
    files: frozenset[tuple[str, bytes]]

    def write(self, root: str | Path) -> None:
        """Make the directories and files below ``root``; files without their directory are lost."""
        os.makedirs(root, exist_ok=True)
        for directory in self.directories:
            os.makedirs(os.path.join(root, directory), exist_ok=True)
        for path, data in self.files:
            with contextlib.suppress(FileNotFoundError), open(os.path.join(root, path), "wb") as target:
                target.write(data)


class FaultyFile:
    """An :class:`tidelog.log.system.file_system.OpenFile` that reports its calls to its file system."""

    def __init__(self, owner: FaultyFileSystem, inner: OpenFile, inode: _Inode) -> None:
        self._owner = owner
        self._inner = inner
        self._inode = inode
        self.path = inner.path

    def fileno(self) -> int:
        return self._inner.fileno()

    def size(self) -> int:
        return self._inner.size()

    def read_at(self, position: int, size: int) -> bytes:
        self._owner.read("read", self.path)
        return self._inner.read_at(position, size)

    def read_into(self, position: int, target: memoryview) -> int:
        self._owner.read("read", self.path)
        return self._inner.read_into(position, target)

    def write_at(self, data: bytes | bytearray | memoryview, position: int) -> None:
        self._owner.step("write", self.path, lambda: self._write_part(data, position))
        self._inner.write_at(data, position)

    def _write_part(self, data: bytes | bytearray | memoryview, position: int) -> None:
        part = self._owner.random.randrange(len(data) + 1)
        if part:
            self._inner.write_at(memoryview(data)[:part], position)

    def copy_from(self, source: OpenFile, span: tuple[int, int], position: int) -> int:
        data = source.read_at(*span)
        self.write_at(data, position)
        return len(data)

    def truncate(self, size: int) -> None:
        self._owner.step("truncate", self.path)
        self._inner.truncate(size)

    def sync(self) -> None:
        self._owner.step("sync", self.path)
        self._inode.durable = self._inner.read_at(0, self._inner.size())

    def close(self) -> None:
        self._inner.close()


_ALIVE: WeakSet[FaultyFileSystem] = WeakSet()


def kill_all() -> None:
    """Close the open files of all faulty file systems of this process."""
    for file_system in list(_ALIVE):
        file_system.kill()


class FaultyFileSystem:
    """A :class:`tidelog.log.system.file_system.FileSystem` over ``root``, for one thread at a time."""

    def __init__(self, root: str, seed: int = 0) -> None:
        self._os = OsFileSystem()
        self._root = root
        self.random = random.Random(seed)
        self.calls: list[tuple[str, str]] = []
        self.fail_at: dict[int, int] = {}
        self.fail_operation: dict[str, int] = {}
        self.kill_at: int | None = None
        self.counts_reads = False
        """Whether reads and listings are counted and fail, too."""
        self._watch: Callable[[Callable[[], None] | None], None] | None = None
        self._inodes: dict[str, _Inode] = {}
        self._durable: dict[str, dict[str, _Inode | None]] = {}
        self._open: WeakSet[FaultyFile] = WeakSet()
        """Weak references, so that the files of a dropped log are closed at once."""
        _ALIVE.add(self)
        self.adopt()

    def adopt(self) -> None:
        """Take the current contents of ``root`` as durable."""
        self._inodes.clear()
        self._durable.clear()
        for directory, directories, files in os.walk(self._root):
            names: dict[str, _Inode | None] = dict.fromkeys(directories)
            for name in files:
                path = os.path.join(directory, name)
                with open(path, "rb") as file:
                    names[name] = self._inodes[path] = _Inode(file.read())
            self._durable[directory] = names

    # ---- faults

    def step(self, operation: str, path: str, partly: Callable[[], None] | None = None) -> None:
        """Count a mutating call; raise LogStorageError or Killed if the call is to fail."""
        number = len(self.calls)
        self.calls.append((operation, os.path.basename(path)))
        if self.kill_at is not None and number >= self.kill_at:
            if partly is not None and number == self.kill_at:
                partly()
            raise Killed(f"at call {number}: {operation} {path}")
        if self._watch is not None:
            self._watch(partly)
        code = self.fail_at.get(number, self.fail_operation.get(operation))
        if code is not None:
            if partly is not None:
                partly()
            raise LogStorageError(operation, path, code)

    def read(self, operation: str, path: str) -> None:
        """Count a call that changes nothing, with ``counts_reads``."""
        if self.counts_reads:
            self.step(operation, path)

    def kill(self) -> None:
        """Close all files, as the system does when a process ends; written bytes stay."""
        for file in list(self._open):
            file.close()
        self._open.clear()

    def crash(self, *, torn: bool = False, keep_names: bool = False) -> None:
        """Close all files, and leave in ``root`` what a power loss may leave. With ``keep_names`` all names survive."""
        self.kill()
        image = self.image(torn=torn, keep_names=keep_names)
        for name in os.listdir(self._root):
            path = os.path.join(self._root, name)
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        image.write(self._root)
        self.kill_at = None
        self.fail_at.clear()
        self.fail_operation.clear()
        self.calls.clear()
        self.adopt()

    def at_each_call(self, work: Callable[[], object], take: Callable[[], Taken]) -> list[Taken]:
        """Do ``work``; return what ``take`` gives before each of its mutating calls.

        An image that is taken then is what a kill at this call, with its number as seed, leaves: of a write a random
        part is written first. So one run gives the disks of all kills.
        """
        taken: list[Taken] = []

        def watch(partly: Callable[[], None] | None) -> None:
            self.random = random.Random(len(taken))
            if partly is not None:
                partly()
            taken.append(take())

        self._watch = watch
        try:
            work()
        finally:
            self._watch = None
        return taken

    def image(self, *, torn: bool = False, keep_names: bool = False) -> DiskImage:
        """Return what a power loss may leave of ``root`` now."""
        if keep_names:
            images = {
                path: self._image(path, inode, torn)
                for path, inode in self._inodes.items()
                if self._is_below(path) and os.path.exists(path)
            }
        else:
            images = {}
            for directory, names in self._durable.items():
                for name, inode in names.items():
                    if inode is not None:
                        images[os.path.join(directory, name)] = self._image(self._path_of(inode), inode, torn)
        is_kept = os.path.isdir if keep_names else self._is_durable
        return self._image_of([path for path in self._durable if is_kept(path)], images)

    def page_cache(self) -> DiskImage:
        """Return what a kill of the process leaves of ``root`` now: all names, and all bytes that were written."""
        directories: list[str] = []
        files: dict[str, bytes] = {}
        for directory, _, names in os.walk(self._root):
            directories.append(directory)
            for name in names:
                path = os.path.join(directory, name)
                files[path] = self._os.read_file(path)
        return self._image_of(directories, files)

    def _image_of(self, directories: list[str], files: dict[str, bytes]) -> DiskImage:
        start = len(self._root) + 1
        return DiskImage(
            frozenset(path[start:] for path in directories if self._is_below(path)),
            frozenset((path[start:], data) for path, data in files.items() if self._is_below(path)),
        )

    def _is_below(self, path: str) -> bool:
        return path.startswith(self._root + os.sep)

    def _is_durable(self, directory: str) -> bool:
        parent, name = os.path.split(directory)
        return directory == self._root or (name in self._durable.get(parent, {}) and self._is_durable(parent))

    def _path_of(self, inode: _Inode) -> str | None:
        return next((path for path, other in self._inodes.items() if other is inode), None)

    def _image(self, path: str | None, inode: _Inode, torn: bool) -> bytes:
        """Build a file's bytes after a power loss: the durable ones, with ``torn`` also some sectors written since."""
        if not torn or path is None or not os.path.exists(path):
            return inode.durable
        with open(path, "rb") as file:
            current = file.read()
        image = bytearray(inode.durable)
        size = self.random.randrange(min(len(image), len(current)), max(len(image), len(current)) + 1)
        image[size:] = b""
        image.extend(bytes(size - len(image)))
        for start in range(0, size, SECTOR):
            end = min(start + SECTOR, size, len(current))
            if start < end and self.random.random() < 0.5:
                image[start:end] = current[start:end]
        return bytes(image)

    # ---- the interface

    def open_file(self, path: str, *, create: bool = False, writable: bool = True) -> OpenFile:
        is_new = create and not os.path.exists(path)
        if is_new:
            self.step("create", path)
        else:
            self.read("open", path)
        inner = self._os.open_file(path, create=create, writable=writable)
        return self._opened(inner, path)

    def _opened(self, inner: OpenFile, path: str) -> OpenFile:
        file = FaultyFile(self, inner, self._inodes.setdefault(path, _Inode(b"")))
        self._open.add(file)
        return file

    def read_file(self, path: str) -> bytes:
        self.read("read", path)
        return self._os.read_file(path)

    def replace_file(self, path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        replace_by_rename(self, path, data, sync=sync)

    def rename(self, old: str, new: str) -> None:
        self.step("rename", old)
        self._os.rename(old, new)
        if old in self._inodes:
            self._inodes[new] = self._inodes.pop(old)
            return
        for path in [path for path in self._inodes if path.startswith(old + os.sep)]:
            self._inodes[new + path[len(old) :]] = self._inodes.pop(path)
        for directory in [path for path in self._durable if path == old or path.startswith(old + os.sep)]:
            self._durable[new + directory[len(old) :]] = self._durable.pop(directory)

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        self.step("unlink", path)
        self._os.unlink(path, missing_ok=missing_ok)
        self._inodes.pop(path, None)

    def list_directory(self, path: str) -> list[FileEntry]:
        self.read("list", path)
        return self._os.list_directory(path)

    def list_names(self, path: str) -> list[str]:
        self.read("list", path)
        return self._os.list_names(path)

    def make_directory(self, path: str) -> None:
        if not os.path.isdir(path):
            self.step("mkdir", path)
        self._os.make_directory(path)
        self._durable.setdefault(path, {})

    def remove_directory(self, path: str) -> None:
        self.step("rmdir", path)
        self._os.remove_directory(path)

    def sync_directory(self, path: str) -> None:
        self.step("sync", path)
        names: dict[str, _Inode | None] = {}
        with os.scandir(path) as entries:
            for entry in entries:
                names[entry.name] = None if entry.is_dir() else self._inodes.setdefault(entry.path, _Inode(b""))
        self._durable[path] = names

    def exists(self, path: str) -> bool:
        return self._os.exists(path)

    def disk_space(self, path: str) -> tuple[int, int]:
        return self._os.disk_space(path)

    def link_file(self, path: str, new: str) -> None:
        self.step("link", new)
        self._os.link_file(path, new)

    def lock_file(self, path: str, *, shared: bool = False) -> OpenFile | None:
        inner = self._os.lock_file(path, shared=shared)
        return None if inner is None else self._opened(inner, path)
