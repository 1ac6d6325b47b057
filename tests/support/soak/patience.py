"""Limits of the soak's waits. They grow with the bytes written, and no wait ends as long as it makes progress.

A loaded machine takes long to read what it wrote in an hour, and the soak must still end with a result.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 120.0
"""Seconds that a client waits for one answer at most, restarts of the broker included."""
SLOWEST_BYTES_PER_S = 1e6
"""Bytes of a data directory that a command reads per second, at least, on a machine with much other work."""


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
    for root, _, names in os.walk(directory):  # walk() skips a directory that the broker removes meanwhile
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += os.stat(os.path.join(root, name)).st_size
    return PATIENCE_S + size / SLOWEST_BYTES_PER_S
