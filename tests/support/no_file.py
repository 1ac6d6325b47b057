"""A file for slices of records that no test reads."""

from __future__ import annotations


class NoFile:
    """A file without bytes."""

    def fileno(self) -> int:
        return -1

    def retain(self) -> None:
        pass

    def release(self) -> None:
        pass
