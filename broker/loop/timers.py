"""Timers of the event loop: a heap of deadlines by the monotonic clock, for which the loop has a single timer of its
own.

Long polls, idle connections and coordinators set and cancel far more timers than ever fire. If each were a timer of the
loop, it would cost a libuv handle. Here a timer is a slotted object in a heap, cancelling only marks it, and the loop
holds a single timer for the earliest deadline. Invariants: a timer fires once and never before its deadline; cancelled
ones never fire; a heap of _REBUILD_MINIMUM timers or more is rebuilt when more than half of them are cancelled, so
memory follows the live timers.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tidelog.broker.loop.turn_clock import TurnClock

_REBUILD_MINIMUM = 512
"""Least number of entries for which the heap is rebuilt. In a smaller heap, cancelled timers stay until they are
due."""
RUN_MS = 0.5
"""Time for which due timers fire before the loop serves others: a thousand connections may become idle at once."""
_MAX_DUE = 256
"""Largest number of timers that are taken from the heap and have not fired yet; the others stay in the heap."""


class CancelHandle(Protocol):
    """Handle that the loop's ``call_later`` returns."""

    def cancel(self) -> None: ...


class Timer:
    """One deadline; ``cancel`` is cheap and may be called at any time."""

    __slots__ = ("_queue", "callback", "deadline_ms")

    def __init__(self, queue: TimerQueue, deadline_ms: float, callback: Callable[[], None]) -> None:
        self._queue = queue
        self.deadline_ms = deadline_ms
        self.callback: Callable[[], None] | None = callback

    def __lt__(self, other: Timer) -> bool:
        return self.deadline_ms < other.deadline_ms

    def cancel(self) -> None:
        """Cancel the timer, which then never fires. Harmless when it already has."""
        if self.callback is not None:
            self.callback = None
            self._queue.note_cancelled()


class TimerQueue:
    """Timers by the clock ``monotonic_ms``, on the loop's ``call_later(seconds, callback)``. Loop thread only."""

    __slots__ = ("_armed", "_armed_deadline", "_call_later", "_cancelled", "_due", "_heap", "monotonic_ms", "turns")

    def __init__(
        self,
        monotonic_ms: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], CancelHandle],
        turns: TurnClock | None = None,
    ) -> None:
        self.monotonic_ms = monotonic_ms
        self.turns = turns or TurnClock(monotonic_ms)
        """Measures each timer's callback."""
        self._call_later = call_later
        self._heap: list[Timer] = []
        self._due: deque[Timer] = deque()
        """Timers that are due and have not fired yet, by deadline; all deadlines are before those of the heap."""
        self._cancelled = 0
        self._armed: CancelHandle | None = None
        self._armed_deadline = float("inf")

    def __len__(self) -> int:
        return len(self._due) + len(self._heap) - self._cancelled

    def schedule(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` once, ``delay_ms`` milliseconds from now or a little later."""
        now = self.monotonic_ms()
        timer = Timer(self, now + delay_ms, callback)
        heapq.heappush(self._heap, timer)
        if timer.deadline_ms < self._armed_deadline:
            self._arm(now)
        return timer

    def close(self) -> None:
        """Drop all timers: none of them fires."""
        self._due.clear()
        self._heap.clear()
        self._cancelled = 0
        self._disarm()

    def catch_up(self) -> None:
        """Fire all timers that are due after the clock was moved ahead, and set the loop's timer by the new time."""
        now = self.monotonic_ms()
        while (first := self._due or self._heap) and first[0].deadline_ms <= now:
            self._disarm()
            self.run_due()
        self._disarm()
        self._arm(now)

    def _disarm(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
        self._armed = None
        self._armed_deadline = float("inf")

    def run_due(self) -> None:
        """Fire the timers that are due; called by the loop's timer. After RUN_MS the rest waits for the next turn."""
        self._armed = None
        self._armed_deadline = float("inf")
        now = self.monotonic_ms()
        self._take_due(now)
        try:
            while self._due:
                timer = self._due.popleft()
                callback, timer.callback = timer.callback, None
                if callback is None:
                    self._cancelled -= 1
                else:
                    self.turns.run("timer", callback)
                    if self.monotonic_ms() - now >= RUN_MS:
                        break
        finally:  # the loop's timer is set for the rest, even if a callback raised
            self._arm(now)

    def _take_due(self, now: float) -> None:
        """Move due timers from the heap to ``_due``, up to _MAX_DUE."""
        heap, due = self._heap, self._due
        while heap and heap[0].deadline_ms <= now and len(due) < _MAX_DUE:
            due.append(heapq.heappop(heap))

    def note_cancelled(self) -> None:
        """Count a timer of this queue as cancelled. Rebuild the heap without cancelled ones if they are most of it."""
        self._cancelled += 1
        if self._cancelled * 2 > len(self._heap) >= _REBUILD_MINIMUM:
            self._heap = [timer for timer in self._heap if timer.callback is not None]
            heapq.heapify(self._heap)
            self._cancelled = sum(timer.callback is None for timer in self._due)

    def _arm(self, now: float) -> None:
        first = self._due or self._heap
        if not first:
            return
        deadline = first[0].deadline_ms
        if deadline >= self._armed_deadline:
            return
        if self._armed is not None:
            self._armed.cancel()
        self._armed_deadline = deadline
        # libuv rounds to whole milliseconds: one more makes sure that no timer fires before its deadline. Timers that
        # are due but have not fired yet get the next turn without it: a millisecond before each run would make many of
        # them take three times as long.
        delay_s = 0.0 if self._due else max(0.0, deadline - now) / 1000.0 + 0.001
        self._armed = self._call_later(delay_s, self.run_due)
