"""Segment files as a reader beside a live broker sees them: a listing of one moment, and files that are only read.

The broker renames files meanwhile: retention and the cleaner give old files the ending ``.deleted``. The cleaner's new
files go from ``.cleaned`` to ``.swap`` to no ending (``tidelog.log.retention`` draws the steps). A listing in the
middle of that would miss a segment, and that looks like a gap that compaction left. So a listing counts only when the
next one is equal and no swap is under way; a swap that does not end (its broker died) is read as the broker's next
start would finish it.

Bytes read are counted, so that tests and benchmarks can show how much a plan and its tasks read.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from tidelog.pipeline.files.sources import open_source
from tidelog.pipeline.files.storage import names_in
from tidelog.protocol.errors import KafkaStorageError

_LOG_NAME = re.compile(r"(\d{20})\.log(\.swap|\.cleaned)?")
#: How long a swap may take before its broker counts as dead: renames of a few files.
SWAP_PATIENCE_S = 1.0
_POLL_S = 0.002


@dataclass(slots=True)
class ReadCount:
    """Counts of reads from disk (or the page cache) and requests to a store, and their bytes."""

    bytes_read: int = 0
    reads: int = 0

    def add(self, size: int) -> None:
        self.bytes_read += size
        self.reads += 1


class SegmentFile(NamedTuple):
    """A ``.log`` file of a listing: its base offset and path. Its index files have the same ending, such as
    ``.swap``."""

    base_offset: int
    path: str

    def sibling(self, suffix: str) -> str:
        """Return the path of the segment's file with ``suffix`` (``.index`` and so on)."""
        stem, _, ending = self.path.rpartition(".log")
        return stem + suffix + ending


class OpenSegment:
    """An open file that is read by position. Renames and deletion do not change what is read. One thread.

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


def list_segments(directory: str) -> list[SegmentFile]:
    """List the segments of a partition directory, by base offset, at one moment.

    Waits up to ``SWAP_PATIENCE_S`` for a swap of the cleaner to end. Raises FileNotFoundError, KafkaStorageError, and
    PipelineError when a file cannot be read.
    """
    deadline = time.monotonic() + SWAP_PATIENCE_S
    names = _names(directory)
    while True:
        again = _names(directory)
        is_swapping = any(name.endswith(".swap") for name in again)
        if again == names and (not is_swapping or time.monotonic() > deadline):
            return _resolve_swaps(directory, names)
        names = again
        if is_swapping:
            time.sleep(_POLL_S)


def _names(directory: str) -> list[str]:
    try:
        return sorted(name for name in names_in(directory) if _LOG_NAME.fullmatch(name))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise KafkaStorageError(f"{directory} cannot be listed: {error.strerror}") from error


def _resolve_swaps(directory: str, names: Sequence[str]) -> list[SegmentFile]:
    """Return the segments that a start of the broker would leave: a swap is completed, or undone while a ``.cleaned``
    file is there."""
    plain = [_file(directory, name) for name in names if name.endswith(".log")]
    swapped = [_file(directory, name) for name in names if name.endswith(".swap")]
    if not swapped or any(name.endswith(".cleaned") for name in names):
        return plain
    from tidelog.pipeline.files.batch_walk import next_offset_of

    spans = [(file.base_offset, next_offset_of(file.path, file.base_offset)) for file in swapped]
    kept = [file for file in plain if not any(base <= file.base_offset < end for base, end in spans)]
    return sorted(kept + swapped)


def _file(directory: str, name: str) -> SegmentFile:
    return SegmentFile(int(name[:20]), os.path.join(directory, name))
