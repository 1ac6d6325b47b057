"""Slice of a file in a response; sent by ``sendfile``, without reading it, if it is large and there is no TLS.

A :class:`TransferableRecords` is a part of a response, in place of record bytes. Its file is reference-counted. Code
that makes a slice retains the file for it first; sending or dropping the slice releases the file once. So a
descriptor is closed only when its last reader has released it, and its number is never reused under a reader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class SliceCutShortError(Exception):
    """A file ended before the end of a slice of it: the response can never be completed."""


class ColdSliceError(Exception):
    """Bytes of a slice are not in the page cache: reading them would wait for the disk."""


class RetainedFile(Protocol):
    """An open file whose descriptor stays open as long as it is retained."""

    def fileno(self) -> int:
        """Return the descriptor; valid between ``retain`` and ``release``."""
        ...

    def retain(self) -> None:
        """Keep the descriptor open for one more reader."""
        ...

    def release(self) -> None:
        """Undo one ``retain``; the last one closes the descriptor if the file was closed or deleted meanwhile."""
        ...


class TransferableRecords:
    """``size`` bytes of ``file`` from byte ``position`` on. Owns one ``retain`` of the file, which the caller
    of the constructor has made. The slice is not changed once it is in a response. Any thread."""

    __slots__ = ("file", "in_memory", "position", "size")

    def __init__(self, file: RetainedFile, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size
        self.in_memory = False
        """True if both ends of the slice were found in the page cache: it may be sent without another check."""

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"TransferableRecords(position={self.position}, size={self.size})"

    def release(self) -> None:
        """Release the file: the slice was sent completely, or will not be."""
        self.file.release()


def release_slices(frame: Iterable[object] | None) -> None:
    """Release the files of a frame (bytes or a list of parts) that will not be sent."""
    if isinstance(frame, list):
        for part in frame:
            if isinstance(part, TransferableRecords):
                part.release()
