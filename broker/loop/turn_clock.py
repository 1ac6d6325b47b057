"""Clock of the event loop's turns: it measures the longest one, and logs those that are too long.

A turn is one callback of the loop: a connection that handles what it received, a timer, a result that comes from a
thread. While a turn runs, no other client is served. The clock measures two times of each turn: wall time, for which
the others wait, and CPU time of the loop's thread, which does not depend on other work of the machine.

    begin -> the CPU clock is read, unless it was read within the last READ_EVERY_MS
    end   -> a turn shorter than ``notable_ms`` is ignored. Else the CPU clock is read again, and the turn is counted

``notable_ms`` is NOTABLE_MS, or the most CPU time of a turn since the metrics were last read, if that is more. It is at
most LONG_MS, and at most the longest wall time. A turn of less wall time cannot have taken more CPU time. So a broker
that receives megabytes, in turns of a millisecond each, need not read the CPU clock for each of them.

Reading the CPU clock is a system call of 0.3 µs, reading the wall clock takes 0.05 µs. So most small requests of a busy
broker cost only two readings of the wall clock. Invariants: a turn's CPU time is at most READ_EVERY_MS too long, never
too short; turns below NOTABLE_MS count as 0; the log has at most one line per LOG_EVERY_MS. Loop thread only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from tidelog.broker.metrics.registry import Sample

logger = logging.getLogger(__name__)

READ_EVERY_MS = 1.0
NOTABLE_MS = 1.0
LONG_MS = 50.0
"""A turn of this wall time or more is counted. It is logged unless the last line is younger than LOG_EVERY_MS."""
LOG_EVERY_MS = 1_000.0


class TurnClock:
    """Measures the turns of one loop by wall time and CPU time."""

    __slots__ = (
        "_cpu_seconds",
        "_last_cpu_s",
        "_log_after_ms",
        "_long_turns",
        "_longest_since_read_s",
        "_unlogged",
        "due_ms",
        "longest_cpu_s",
        "longest_ms",
        "monotonic_ms",
        "notable_ms",
    )

    def __init__(self, monotonic_ms: Callable[[], float], cpu_seconds: Callable[[], float] = time.thread_time) -> None:
        self.monotonic_ms = monotonic_ms
        self._cpu_seconds = cpu_seconds
        self._last_cpu_s = 0.0
        self.due_ms = float("-inf")
        """Monotonic time from which on the next turn reads the CPU clock when it begins."""
        self.longest_ms = 0.0
        self.longest_cpu_s = 0.0
        self._longest_since_read_s = 0.0
        self.notable_ms = NOTABLE_MS
        """Least wall time of a turn for which ``end`` must be called."""
        self._long_turns: dict[str, int] = {}
        self._log_after_ms = float("-inf")
        self._unlogged = 0

    def begin(self, now_ms: float) -> None:
        """Read the CPU clock at the beginning of a turn; to be called when ``now_ms`` is not before ``due_ms``."""
        self._last_cpu_s = self._cpu_seconds()
        self.due_ms = now_ms + READ_EVERY_MS

    def end(self, began_ms: float, now_ms: float, what: str, who: str = "") -> None:
        """Count a turn of ``notable_ms`` or longer. ``what`` is the value of a metric's label, so there must be few of
        them; ``who`` (the client) is only logged."""
        before_s = self._last_cpu_s
        self.begin(now_ms)
        cpu_s = self._last_cpu_s - before_s
        took_ms = now_ms - began_ms
        self.longest_ms = max(self.longest_ms, took_ms)
        self.longest_cpu_s = max(self.longest_cpu_s, cpu_s)
        self._longest_since_read_s = max(self._longest_since_read_s, cpu_s)
        self.notable_ms = max(NOTABLE_MS, min(self._longest_since_read_s * 1000, self.longest_ms, LONG_MS))
        if took_ms >= LONG_MS:
            self._long_turns[what] = self._long_turns.get(what, 0) + 1
            self._log(now_ms, f"{took_ms:.0f} ms ({cpu_s * 1000:.0f} ms of CPU time): {what}{who and f' of {who}'}")

    def run(self, what: str, callback: Callable[[], None]) -> None:
        """Call ``callback`` as a turn of its own."""
        began = self.monotonic_ms()
        if began >= self.due_ms:
            self.begin(began)
        try:
            callback()
        finally:
            ended = self.monotonic_ms()
            if ended - began >= self.notable_ms:
                self.end(began, ended, what)

    def measure_callbacks(
        self, what: str, call_soon: Callable[[Callable[[], None]], object]
    ) -> Callable[[Callable[[], None]], object]:
        """Wrap the loop's ``call_soon``, so that each callback is measured as a turn of its own."""
        return lambda callback: call_soon(lambda: self.run(what, callback))

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics, and begin a new measurement of the longest turn since the last reading."""
        name = "tidelog_loop_longest_turn"
        since_read, self._longest_since_read_s, self.notable_ms = self._longest_since_read_s, 0.0, NOTABLE_MS
        yield Sample(f"{name}_since_read_cpu_seconds", "gauge", {}, since_read)
        yield Sample(f"{name}_cpu_seconds", "gauge", {}, self.longest_cpu_s)
        yield Sample(f"{name}_seconds", "gauge", {}, self.longest_ms / 1000)
        for what, count in self._long_turns.items():
            yield Sample("tidelog_loop_long_turns_total", "counter", {"what": what}, count)

    def _log(self, now_ms: float, turn: str) -> None:
        if now_ms < self._log_after_ms:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more since the last such line)" if self._unlogged else ""
        logger.warning("one turn of the loop took %s%s", turn, more)
        self._log_after_ms = now_ms + LOG_EVERY_MS
        self._unlogged = 0
