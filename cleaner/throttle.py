"""Limit of bytes per second, shared by all cleaner threads: ``log.cleaner.io.max.bytes.per.second``."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidelog.log.system.time import Time


class Throttle:
    """Limiter of bytes per second to ``rate``, which may change. ``wait(seconds)`` sleeps and may end early. Any
    thread."""

    def __init__(self, rate: float, time: Time, wait: Callable[[float], object]) -> None:
        self.rate = rate
        self._time = time
        self._wait = wait
        self._lock = threading.Lock()
        self._paid_until_ms = time.monotonic_ms()

    def take(self, size: int) -> None:
        """Count ``size`` bytes and wait until the rate allows them."""
        if size <= 0:
            return
        with self._lock:
            now = self._time.monotonic_ms()
            owed_until = max(self._paid_until_ms, now) + 1000.0 * size / self.rate
            self._paid_until_ms = owed_until
        if owed_until - now >= 1.0:
            self._wait((owed_until - now) / 1000.0)
