"""Count of what is read, so that tests and benchmarks can show how much a plan and its tasks read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReadCount:
    """Counts of reads from disk (or the page cache) and requests to a store, and their bytes."""

    bytes_read: int = 0
    reads: int = 0

    def add(self, size: int) -> None:
        self.bytes_read += size
        self.reads += 1
