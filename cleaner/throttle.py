"""Limit of bytes that all cleaner threads together read and write per second.

The limit is ``log.cleaner.io.max.bytes.per.second``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidelog.log.system.time import Time


class Throttle:
    """Limiter to ``rate`` bytes per second; ``rate`` may be changed at any time. ``wait(seconds)`` sleeps, and ends
    early when the cleaner stops. Any thread."""

    def __init__(self, rate: float, time: Time, wait: Callable[[float], object]) -> None:
        self.rate = rate
        self._time = time
        self._wait = wait
        self._lock = threading.Lock()
        self._allowed_at_ms = time.monotonic_ms()  # when the rate allows the bytes that are counted so far

    def take(self, size: int) -> None:
        """Count ``size`` bytes and wait until the rate allows them; a wait below 1 ms is left to the next call."""
        if size <= 0:
            return
        with self._lock:
            now = self._time.monotonic_ms()
            allowed_at = max(self._allowed_at_ms, now) + 1000.0 * size / self.rate
            self._allowed_at_ms = allowed_at
        if allowed_at - now >= 1.0:
            self._wait((allowed_at - now) / 1000.0)
