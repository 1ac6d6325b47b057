"""What may end a cleaning round before its end."""

from __future__ import annotations


class CleaningAbortedError(Exception):
    """The log is about to be truncated, deleted or moved, or the broker stops: the round ends, nothing is lost."""


class UnframedSegmentError(Exception):
    """A length field in the middle of a segment leads nowhere, so what follows cannot be read as batches."""

    def __init__(self, base_offset: int, position: int) -> None:
        super().__init__(f"segment {base_offset}: no batch begins at byte {position}")
        self.base_offset = base_offset
        self.position = position
