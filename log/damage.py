"""What was found damaged since the process started: counts for metrics, beside the log lines that say where (F5)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DamageCounts:
    """Plain counters of one broker; a lost update among threads costs one count, nothing else."""

    batches: int = 0
    """Batches below the recovery point that fail their CRC or have an impossible header; kept as bytes."""
    cut_bytes: int = 0
    """Bytes cut from unsynced tails."""
    indices: int = 0
    """Index files that contradicted their records and were rebuilt."""
    reads: int = 0
    """Fetches that met an impossible batch header."""
