"""A filter of records by time and key: the options ``minTimestamp``, ``maxTimestamp`` and ``key``."""

from __future__ import annotations

from dataclasses import dataclass

MIN_TIME, MAX_TIME = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Filter of records: first and last time in ms, both included, and one key (None: any)."""

    min_time: int = MIN_TIME
    max_time: int = MAX_TIME
    key: bytes | None = None

    def matches(self, timestamp: int, key: bytes | None) -> bool:
        """Return whether a record with that time and key passes the filter."""
        return self.min_time <= timestamp <= self.max_time and self.key in (None, key)
