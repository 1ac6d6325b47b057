"""Checkpoint of an index directory: the entries known to be on disk, and the setting the index was made for.

    tidelog-index 1            format
    made-for keys              content of the index: "keys", or "tags " and the header's name in hexadecimal
    next-offset 4711           all records below this offset are indexed
    file 0 1000001 1700000000000 1700000360000     an IndexFile: begin offset in its name, next entry number, smallest
                                                   and largest timestamp
    file 0 300000 99887766 0   a ConsumeQueue: its first offset, its entries, CRC-32 of those that are indexed
    crc 1a2b3c4d               of the lines above

It is written after the files were synced, and replaced as a whole. When the index is opened, the newest file that the
checkpoint names is cut to the checkpoint's state, and files that it does not name are removed. So a crash at any time
costs only the work since the last checkpoint. The index is rebuilt if the checkpoint is missing, damaged or made for
another setting.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import NamedTuple

from tidelog.log.system.file_system import FileSystem, ReadableFiles
from tidelog.protocol.errors import KafkaStorageError

KEYS_DIRECTORY = "keys"
TAGS_DIRECTORY = "tags"
CHECKPOINT_FILE = "index-checkpoint"
_FORMAT = "tidelog-index 1"


class FileState(NamedTuple):
    """One ``file`` line, by the fields of an IndexFile."""

    base_offset: int
    next_entry: int = 0
    min_timestamp: int = 0
    max_timestamp: int = 0


class QueueState(NamedTuple):
    """One ``file`` line, by the fields of a ConsumeQueue: ``capacity`` entries fit into the file, and those that are
    indexed have the CRC-32 ``checksum``."""

    base_offset: int
    capacity: int
    checksum: int
    unused: int = 0


class Checkpoint(NamedTuple):
    """Content of a checkpoint file."""

    made_for: str
    next_offset: int
    files: tuple[FileState | QueueState, ...]
    """``read_checkpoint`` returns each line as a FileState."""


def write_checkpoint(file_system: FileSystem, path: str, checkpoint: Checkpoint, *, sync: bool) -> None:
    """Replace the file at ``path``. Raises KafkaStorageError."""
    lines = [_FORMAT, f"made-for {checkpoint.made_for}", f"next-offset {checkpoint.next_offset}"]
    lines += ["file " + " ".join(map(str, state)) for state in checkpoint.files]
    text = "\n".join(lines) + "\n"
    file_system.replace_file(path, f"{text}crc {zlib.crc32(text.encode()):08x}\n".encode(), sync=sync)


def read_checkpoint(file_system: ReadableFiles, path: str) -> Checkpoint | None:
    """Read the checkpoint file; None if it is missing, unreadable, damaged or has another format."""
    try:
        data = file_system.read_file(path) if file_system.exists(path) else b""
        text, _, crc = data.decode().rpartition("crc ")
        if zlib.crc32(text.encode()) != int(crc, 16):
            return None
        first, made_for, next_offset, *files = text.splitlines()
        states = tuple(FileState(*map(int, line.split()[1:])) for line in files)
    except (KafkaStorageError, ValueError, TypeError):
        return None
    if first != _FORMAT:
        return None
    return Checkpoint(made_for.removeprefix("made-for "), int(next_offset.split()[-1]), states)


def remove_checkpoints_beyond(file_system: FileSystem, log_directory: str, end: int) -> None:
    """Remove the checkpoints of a log's indices that have entries for offsets from ``end`` on, after a truncation to
    there.

    A running index is rebuilt with its next step. This is for a kill before that step, when the log may have grown
    beyond the index again, and for an index that is not in use. Raises KafkaStorageError.
    """
    for name in (KEYS_DIRECTORY, TAGS_DIRECTORY):
        directory = os.path.join(log_directory, name)
        path = os.path.join(directory, CHECKPOINT_FILE)
        checkpoint = read_checkpoint(file_system, path)
        if checkpoint is not None and checkpoint.next_offset > end:
            file_system.unlink(path, missing_ok=True)
            file_system.sync_directory(directory)


def keep_known_files(
    file_system: FileSystem, directory: str, made_for: str, name_of: Callable[[int], str]
) -> tuple[Checkpoint, dict[str, int]] | None:
    """Read a directory's checkpoint and remove the files that it does not name. Raises KafkaStorageError.

    Returns the checkpoint and the size of each file by name; None if there is none or it was made for another setting.
    """
    file_system.make_directory(directory)
    checkpoint = read_checkpoint(file_system, os.path.join(directory, CHECKPOINT_FILE))
    if checkpoint is None or checkpoint.made_for != made_for:
        return None
    sizes = {entry.name: entry.size for entry in file_system.list_directory(directory)}
    known = {name_of(state.base_offset) for state in checkpoint.files}
    for name in sizes.keys() - known - {CHECKPOINT_FILE}:
        file_system.unlink(os.path.join(directory, name))
    return checkpoint, sizes
