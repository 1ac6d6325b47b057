"""Limits of the soak's waits. They grow with what was written, and no wait ends while something comes.

A loaded machine takes long to read what it wrote in an hour, and the soak must still end with a result.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 120.0
"""The longest a client waits for one answer, the broker's restarts included."""
SLOWEST_BYTES_PER_S = 1e6
"""Bytes of a data directory that a command gets through on a machine that does much else."""


class Patience:
    """The limit of a wait: over when ``seconds`` have passed without progress."""

    def __init__(self, seconds: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._progress: object = None
        self._since = clock()

    def is_over(self, progress: object) -> bool:
        """Return whether ``progress``, any value that changes with it, has been the same for too long."""
        now = self._clock()
        if progress != self._progress:
            self._progress, self._since = progress, now
        return now - self._since > self._seconds


def patience_for(directory: Path) -> float:
    """Return the seconds that a command may take which reads all of a data directory."""
    size = 0
    for root, _, names in os.walk(directory):  # which goes on where the broker removes a directory meanwhile
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += os.stat(os.path.join(root, name)).st_size
    return PATIENCE_S + size / SLOWEST_BYTES_PER_S
