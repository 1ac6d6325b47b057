"""Snapshots of a laboratory's data directories. A snapshot's archive is one file with the contents of all their files.

    take_snapshot     directories -> archive, and the byte range of each file in it
    Snapshot.stage    files that are missing or differ are written to ``.staged`` in each directory: all, or none
    Snapshot.install  files and directories that the snapshot lacks are removed, longer files are cut, and staged files
                      are moved to their directories

Creating and removing files takes most of the time: in a restore, creating the 190 files of thirty partitions takes
50 ms, reading and comparing them takes 4 ms. The broker is stopped meanwhile.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from tidelog.broker.startup import LOCK_FILE
from tidelog.log.system.reserve import RESERVE_FILE

STAGED = ".staged"
"""Directory within a data directory for files that a restore is going to put there."""
EXCLUDED = frozenset((STAGED, LOCK_FILE, RESERVE_FILE))
"""Names that a snapshot does not have. The 8 MB of the reserve file would be most of the bytes to copy and compare."""

CHUNK_BYTES = 1 << 20


class ByteRange(NamedTuple):
    """Range of bytes in a file; in an archive, the content of one file."""

    start: int
    size: int


Tree: TypeAlias = "dict[str, ByteRange | Tree]"
"""Files of a directory by name, each with its range in the archive; directories are trees of their own."""


class Snapshot:
    """Contents of data directories, in the order of ``log.dirs``, and how far the laboratory's clock was ahead."""

    def __init__(self, archive: str, trees: list[Tree], ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms
        self._archive = archive
        self._trees = trees

    def stage(self, directories: Sequence[str]) -> None:
        """Write files that are missing or differ in data directories to ``.staged`` in each: all, or none. Raises
        OSError.
        """
        archive = os.open(self._archive, os.O_RDONLY)
        try:
            remove_staged(directories)
            for tree, directory in zip(self._trees, directories, strict=True):
                write_differences(archive, tree, directory, os.path.join(directory, STAGED))
        except OSError:
            remove_staged(directories)
            raise
        finally:
            os.close(archive)

    def install(self, directories: Sequence[str]) -> None:
        """Restore data directories to this snapshot, after ``stage``. Raises OSError."""
        for tree, directory in zip(self._trees, directories, strict=True):
            staged = os.path.join(directory, STAGED)
            remove_others(tree, directory, staged)
            move_tree(staged, directory)


def take_snapshot(directories: Sequence[str], archive: str, ahead_ms: int) -> Snapshot:
    """Copy data directories into a new archive: all of them, or none. Raises OSError."""
    target = os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        return Snapshot(archive, [append_tree(directory, target) for directory in directories], ahead_ms)
    except OSError:
        os.unlink(archive)
        raise
    finally:
        os.close(target)


def append_tree(directory: str, target: int) -> Tree:
    """Append the files of a directory to an archive, without owners and times. Raises OSError."""
    tree: Tree = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name not in EXCLUDED:
                is_directory = entry.is_dir(follow_symlinks=False)
                tree[entry.name] = append_tree(entry.path, target) if is_directory else append_file(entry.path, target)
    return tree


def append_file(path: str, target: int) -> ByteRange:
    """Append a file to an archive; return the range that its content has there. Raises OSError."""
    source = os.open(path, os.O_RDONLY)
    try:
        content = ByteRange(os.lseek(target, 0, os.SEEK_CUR), os.fstat(source).st_size)
        copy_range(source, ByteRange(0, content.size), target)
        return content
    finally:
        os.close(source)


def remove_staged(directories: Sequence[str]) -> None:
    """Remove files that were staged by a restore that failed, or whose process was killed."""
    for directory in directories:
        shutil.rmtree(os.path.join(directory, STAGED), ignore_errors=True)


def write_differences(archive: int, tree: Tree, live: str, staged: str) -> None:
    """Write to ``staged`` the files and directories that ``live`` lacks or has with other content, except files that
    need only be cut. Raises OSError."""
    entries = read_entries(live)
    if entries is None:
        os.makedirs(staged, exist_ok=True)
        entries = {}
    for name, content in tree.items():
        if isinstance(content, dict):
            write_differences(archive, content, os.path.join(live, name), os.path.join(staged, name))
        elif not (name in entries and has_prefix(entries[name], archive, content)):
            os.makedirs(staged, exist_ok=True)
            write_file(archive, content, os.path.join(staged, name))


def read_entries(directory: str) -> dict[str, os.DirEntry[str]] | None:
    """Return the entries of a directory by name, or None if it is not a directory. Raises OSError."""
    try:
        with os.scandir(directory) as entries:
            return {entry.name: entry for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return None


def has_prefix(entry: os.DirEntry[str], archive: int, content: ByteRange) -> bool:
    """Return whether a file begins with a file's content in the archive, as a log does that has grown. Raises
    OSError."""
    if not entry.is_file(follow_symlinks=False) or entry.stat().st_size < content.size:
        return False
    if not content.size:
        return True
    file = os.open(entry.path, os.O_RDONLY)
    try:
        for start, length in chunks(content.size):
            if os.pread(file, length, start) != os.pread(archive, length, content.start + start):
                return False
        return True
    finally:
        os.close(file)


def write_file(archive: int, content: ByteRange, path: str) -> None:
    """Write a new file with a file's content in the archive. Raises OSError."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        copy_range(archive, content, target)
    finally:
        os.close(target)


def copy_range(source: int, content: ByteRange, target: int) -> None:
    """Append a range of one file to another file. Raises OSError."""
    for start, length in chunks(content.size):
        data = memoryview(os.pread(source, length, content.start + start))
        while data:
            data = data[os.write(target, data) :]


def chunks(size: int) -> list[tuple[int, int]]:
    """Return start and length of each chunk of ``size`` bytes."""
    return [(start, min(CHUNK_BYTES, size - start)) for start in range(0, size, CHUNK_BYTES)]


def remove_others(tree: Tree, directory: str, staged: str) -> None:
    """Remove files and directories that a snapshot lacks or that a staged file replaces, and cut longer files. Raises
    OSError.

    A replaced file is removed before the staged one is moved: a rename onto it would start writing to the disk (ext4).
    """
    replaced = read_entries(staged) or {}
    for name, entry in (read_entries(directory) or {}).items():
        content = tree.get(name)
        if name in EXCLUDED:
            continue
        if entry.is_dir(follow_symlinks=False):
            if isinstance(content, dict):
                remove_others(content, entry.path, os.path.join(staged, name))
            else:
                shutil.rmtree(entry.path)
        elif not isinstance(content, ByteRange) or name in replaced:
            os.unlink(entry.path)
        elif entry.stat().st_size > content.size:
            os.truncate(entry.path, content.size)


def move_tree(source: str, target: str) -> None:
    """Move the contents of ``source`` to ``target`` on the same file system, and remove ``source``. Raises OSError."""
    entries = read_entries(source)
    if entries is None:
        return
    for name, entry in entries.items():
        destination = os.path.join(target, name)
        if entry.is_dir() and os.path.isdir(destination):
            move_tree(entry.path, destination)
        else:
            os.rename(entry.path, destination)
    os.rmdir(source)
