"""The wall clock for retention and expiry, on which a jump ahead counts only after it has lasted for an hour.

A deletion that a wrong clock causes cannot be undone. A change of the difference between wall clock and monotonic clock
shows a jump; for an hour, time goes on as if the clock had not jumped. If a clock was behind at boot and is then set
right, records are kept an hour longer, nothing more. If it is ahead at its first reading, that cannot be seen.
Retention, the cleaner, the expiry of committed offsets and that of transactional ids each have a clock of this kind.
"""

from __future__ import annotations

import logging
import threading

from tidelog.log.system.time import Time

logger = logging.getLogger(__name__)

TOLERATED_DRIFT_MS = 600_000
"""Longest time by which the wall clock may get ahead of the monotonic clock between two readings without counting as a
jump."""
BELIEVED_AFTER_MS = 3_600_000


class RetentionClock:
    """A wall clock on which jumps ahead count only after an hour. A jump is found by comparison with earlier readings,
    so the first reading is returned as it is. Any thread."""

    __slots__ = ("_distance", "_jump_distance", "_jump_seen_ms", "_lock", "_time")

    def __init__(self, time: Time) -> None:
        self._time = time
        self._lock = threading.Lock()
        self._distance: float | None = None  # wall clock minus monotonic clock, in ms, without jumps of the last hour
        self._jump_distance = 0.0  # the same after the jump that was seen at _jump_seen_ms
        self._jump_seen_ms: float | None = None

    def now(self) -> int:
        """Return the time by which something may be deleted, in milliseconds since 1970."""
        return self.believe(self._time.milliseconds())

    def believe(self, now_ms: int) -> int:
        """Return ``now_ms``, read from the wall clock, without any jump ahead that is younger than an hour."""
        monotonic = self._time.monotonic_ms()
        distance = now_ms - monotonic
        with self._lock:
            if self._distance is None or distance - self._distance <= TOLERATED_DRIFT_MS:
                # Jumps back count at once: they only make records younger.
                self._distance, self._jump_seen_ms = distance, None
                return now_ms
            if self._has_lasted(distance, monotonic):
                self._distance, self._jump_seen_ms = distance, None
                return now_ms
            return int(monotonic + self._distance)

    def _has_lasted(self, distance: float, monotonic: float) -> bool:
        """Return whether the clock has been ahead that far for an hour; a second jump waits for its own hour."""
        assert self._distance is not None
        if self._jump_seen_ms is None or distance - self._jump_distance > TOLERATED_DRIFT_MS:
            self._jump_seen_ms, self._jump_distance = monotonic, distance
            ahead_s = (distance - self._distance) // 1000
            logger.warning("the wall clock jumped ahead by %d s; retention and expiry ignore that for an hour", ahead_s)
        return monotonic - self._jump_seen_ms >= BELIEVED_AFTER_MS
