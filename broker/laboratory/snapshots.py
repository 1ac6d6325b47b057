"""Snapshots of data directories: a snapshot is one file, its archive, with the content of all files.

    keep       directories -> archive, and the place of each file in it
    lay_beside what is not there as it was -> ``.coming`` in each directory: all of it, or nothing
    take       what came since goes: files, directories, ends of files; what was laid beside takes its place

Files that are made and removed cost most: a restore that made the 190 of thirty partitions again waited 50 ms for the
file system. To read and compare them takes 4 ms. The broker is stopped meanwhile.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from tidelog.broker.startup import LOCK_FILE
from tidelog.log.system.reserve import RESERVE_FILE

COMING = ".coming"
"""Directory within a data directory: what will be there after a restore."""
STAYING = frozenset((COMING, LOCK_FILE, RESERVE_FILE))
"""Names that are no part of the state: the reserve's 8 MB were most of what there was to copy and to compare."""

CHUNK_BYTES = 1 << 20


class Kept(NamedTuple):
    """Place of a file's content in an archive."""

    start: int
    size: int


Tree: TypeAlias = "dict[str, Kept | Tree]"


class Snapshot:
    """Content of data directories, in their order, and the clock of that moment."""

    def __init__(self, archive: str, trees: list[Tree], ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms
        self._archive = archive
        self._trees = trees

    def lay_beside(self, directories: Sequence[str]) -> None:
        """Write what differs in data directories into a directory within each: all of it, or nothing. Raises
        OSError.
        """
        archive = os.open(self._archive, os.O_RDONLY)
        try:
            remove_laid(directories)
            for tree, directory in zip(self._trees, directories, strict=True):
                write_differences(archive, tree, directory, os.path.join(directory, COMING))
        except OSError:
            remove_laid(directories)
            raise
        finally:
            os.close(archive)

    def take(self, directories: Sequence[str]) -> None:
        """Have data directories be as they were, with what was laid beside. Raises OSError."""
        for tree, directory in zip(self._trees, directories, strict=True):
            coming = os.path.join(directory, COMING)
            remove_others(tree, directory, coming)
            move_tree(coming, directory)


def keep(directories: Sequence[str], archive: str, ahead_ms: int) -> Snapshot:
    """Copy data directories into a new archive: all of them, or none. Raises OSError."""
    target = os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        return Snapshot(archive, [keep_tree(directory, target) for directory in directories], ahead_ms)
    except OSError:
        os.unlink(archive)
        raise
    finally:
        os.close(target)


def keep_tree(directory: str, target: int) -> Tree:
    """Append the files of a directory to an archive, without owners and times. Raises OSError."""
    tree: Tree = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name not in STAYING:
                is_directory = entry.is_dir(follow_symlinks=False)
                tree[entry.name] = keep_tree(entry.path, target) if is_directory else keep_file(entry.path, target)
    return tree


def keep_file(path: str, target: int) -> Kept:
    """Append a file to an archive; returns its place there. Raises OSError."""
    source = os.open(path, os.O_RDONLY)
    try:
        kept = Kept(os.lseek(target, 0, os.SEEK_CUR), os.fstat(source).st_size)
        copy_range(source, Kept(0, kept.size), target)
        return kept
    finally:
        os.close(source)


def remove_laid(directories: Sequence[str]) -> None:
    """Remove what was laid beside: by a restore that failed, or by a process that was killed in one."""
    for directory in directories:
        shutil.rmtree(os.path.join(directory, COMING), ignore_errors=True)


def write_differences(archive: int, tree: Tree, live: str, coming: str) -> None:
    """Write the directories and files of a snapshot that a directory cannot get by removing. Raises OSError."""
    entries = read_entries(live)
    if entries is None:
        os.makedirs(coming, exist_ok=True)
        entries = {}
    for name, kept in tree.items():
        if isinstance(kept, dict):
            write_differences(archive, kept, os.path.join(live, name), os.path.join(coming, name))
        elif not (name in entries and begins_with(entries[name], archive, kept)):
            os.makedirs(coming, exist_ok=True)
            write_file(archive, kept, os.path.join(coming, name))


def read_entries(directory: str) -> dict[str, os.DirEntry[str]] | None:
    """Return what is in a directory, by name; None where there is no directory. Raises OSError."""
    try:
        with os.scandir(directory) as entries:
            return {entry.name: entry for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return None


def begins_with(entry: os.DirEntry[str], archive: int, kept: Kept) -> bool:
    """Return whether a file begins with the content that was kept: logs and indices become longer. Raises OSError."""
    if not entry.is_file(follow_symlinks=False) or entry.stat().st_size < kept.size:
        return False
    if not kept.size:
        return True
    file = os.open(entry.path, os.O_RDONLY)
    try:
        for start, length in chunks(kept.size):
            if os.pread(file, length, start) != os.pread(archive, length, kept.start + start):
                return False
        return True
    finally:
        os.close(file)


def write_file(archive: int, kept: Kept, path: str) -> None:
    """Write a new file with content that was kept. Raises OSError."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        copy_range(archive, kept, target)
    finally:
        os.close(target)


def copy_range(source: int, place: Kept, target: int) -> None:
    """Append a part of a file to another one. Raises OSError."""
    for start, length in chunks(place.size):
        data = memoryview(os.pread(source, length, place.start + start))
        while data:
            data = data[os.write(target, data) :]


def chunks(size: int) -> list[tuple[int, int]]:
    """Return start and length of each chunk of a content."""
    return [(start, min(CHUNK_BYTES, size - start)) for start in range(0, size, CHUNK_BYTES)]


def remove_others(tree: Tree, directory: str, coming: str) -> None:
    """Remove what a snapshot does not have in a directory, or has otherwise, and the ends of files. Raises OSError.

    A file is removed before another one takes its place: a rename onto it would start writing to the disk (ext4).
    """
    replaced = read_entries(coming) or {}
    for name, entry in (read_entries(directory) or {}).items():
        kept = tree.get(name)
        if name in STAYING:
            continue
        if entry.is_dir(follow_symlinks=False):
            if isinstance(kept, dict):
                remove_others(kept, entry.path, os.path.join(coming, name))
            else:
                shutil.rmtree(entry.path)
        elif not isinstance(kept, Kept) or name in replaced:
            os.unlink(entry.path)
        elif entry.stat().st_size > kept.size:
            os.truncate(entry.path, kept.size)


def move_tree(source: str, target: str) -> None:
    """Move what is in a directory into another one of its file system, and remove it. Raises OSError."""
    entries = read_entries(source)
    if entries is None:
        return
    for name, entry in entries.items():
        place = os.path.join(target, name)
        if entry.is_dir() and os.path.isdir(place):
            move_tree(entry.path, place)
        else:
            os.rename(entry.path, place)
    os.rmdir(source)
