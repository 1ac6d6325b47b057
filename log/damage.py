"""Counts of damage found since the process started, for metrics; log lines name files and bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DamageCounts:
    """Damage counters of one broker. There is no lock: two threads that count at once may lose one count."""

    batches: int = 0
    """Batches below the recovery point with a wrong CRC or an impossible header, whose bytes are kept."""
    cut_bytes: int = 0
    """Bytes that recovery cut from the unsynced ends of segments."""
    indices: int = 0
    """Segments whose index files were missing or contradicted the records, and were rebuilt."""
    reads: int = 0
    """Reads (fetches, and those of look-ups and indexers) that failed at an impossible batch header."""
