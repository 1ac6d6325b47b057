"""Errors that end a cleaning round early."""

from __future__ import annotations


class CleaningAbortedError(Exception):
    """The log was truncated, deleted or moved, retention removed segments of the round, or the broker stops. The round
    ends without any loss of records."""


class UnframedSegmentError(Exception):
    """A length field in a segment is wrong, so the bytes from its batch on cannot be read as batches."""

    def __init__(self, base_offset: int, position: int) -> None:
        super().__init__(f"segment {base_offset}: no batch begins at byte {position}")
        self.base_offset = base_offset
        self.position = position
