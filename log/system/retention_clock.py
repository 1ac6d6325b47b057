"""Clock of retention: the wall clock, but a jump counts only after it has lasted for an hour.

Deleting is the one thing a wrong clock makes irreversible (F11). The difference between wall and monotonic clock shows
a jump; until it has lasted, time goes on from before it. A machine whose clock was wrong at boot and is set right keeps
its records an hour longer, nothing more.
"""

from __future__ import annotations

import logging

from tidelog.log.system.time import Time

logger = logging.getLogger(__name__)

TOLERATED_DRIFT_MS = 600_000
BELIEVED_AFTER_MS = 3_600_000


class RetentionClock:
    """One thread."""

    __slots__ = ("_distance", "_jump_seen_ms", "_time")

    def __init__(self, time: Time) -> None:
        self._time = time
        self._distance: float | None = None
        self._jump_seen_ms: float | None = None

    def believed(self, now_ms: int) -> int:
        """``now_ms`` of the wall clock, or without its jump while that is younger than an hour."""
        monotonic = self._time.monotonic_ms()
        distance = now_ms - monotonic
        if self._distance is None or distance - self._distance <= TOLERATED_DRIFT_MS:
            # Backward jumps only make records younger: believed at once.
            self._distance, self._jump_seen_ms = distance, None
            return now_ms
        if self._jump_seen_ms is None:
            self._jump_seen_ms = monotonic
            logger.warning(
                "the wall clock jumped ahead by %d s; retention waits an hour", (distance - self._distance) // 1000
            )
        if monotonic - self._jump_seen_ms >= BELIEVED_AFTER_MS:
            self._distance, self._jump_seen_ms = distance, None
            return now_ms
        return int(monotonic + self._distance)
