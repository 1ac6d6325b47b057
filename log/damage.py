"""Counts of damage found since the process started, for metrics; log lines say where it is (F5)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DamageCounts:
    """Damage counters of one broker. Not locked: an update lost among threads costs one count."""

    batches: int = 0
    """Batches below the recovery point that fail their CRC or have an impossible header; kept as bytes."""
    cut_bytes: int = 0
    """Bytes cut from unsynced tails."""
    indices: int = 0
    """Index files that contradicted their records and were rebuilt."""
    reads: int = 0
    """Fetches that met an impossible batch header."""
