"""Deadlines of a coordinator by key, on the monotonic clock.

A heap of (deadline, sequence, key) beside a table key -> (deadline, action). Moving a deadline later, as each
heartbeat does, is one table write: the heap keeps the old entry, and when that comes up it is pushed again with the
true deadline. So the heap holds at most one live and a few stale entries per key and a heartbeat costs no heap work.

Jumps of the wall clock move nothing here. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from tidelog.broker.coordinator.runtime.result import TimerResult
from tidelog.log.system.time import Time

TimerKey = tuple[str, ...]
TimerAction = Callable[[], TimerResult]

#: Actions run in one turn of the loop; the rest follow in the next, so a mass expiry does not stall the others.
MAX_EXPIRATIONS_PER_TURN = 200


class CoordinatorTimer:
    """Schedules actions; the owner calls ``run_due`` when ``next_deadline_ms`` has come."""

    __slots__ = ("_entries", "_heap", "_sequence", "_time", "armed", "wake_up")

    def __init__(self, time: Time) -> None:
        self._time = time
        self._entries: dict[TimerKey, tuple[float, float, TimerAction]] = {}
        self._heap: list[tuple[float, int, TimerKey]] = []
        self._sequence = 0
        #: Deadlines at which the owner's loop calls back, the earliest last; the owner keeps it.
        self.armed: list[float] = []
        #: Called with a deadline that is earlier than all others, so that the owner arms its clock.
        self.wake_up: Callable[[float], None] | None = None

    def schedule(self, key: TimerKey, delay_ms: float, action: TimerAction) -> None:
        """Run ``action`` after ``delay_ms``; replaces what the key had."""
        deadline = self._time.monotonic_ms() + delay_ms
        entry = self._entries.get(key)
        if entry is not None and entry[1] <= deadline:
            self._entries[key] = (deadline, entry[1], action)
            return
        self._entries[key] = (deadline, deadline, action)
        self._push(deadline, key)

    def cancel(self, key: TimerKey) -> None:
        """Forget the key; nothing happens if there is none."""
        self._entries.pop(key, None)

    def is_scheduled(self, key: TimerKey) -> bool:
        return key in self._entries

    def next_deadline_ms(self) -> float | None:
        """Return the time to call ``run_due`` next, in monotonic milliseconds; may be early, never late."""
        return self._heap[0][0] if self._heap else None

    def run_due(self, execute: Callable[[TimerResult], None]) -> int:
        """Take what is due and hand each action's result to ``execute``; returns how many ran."""
        now = self._time.monotonic_ms()
        ran = 0
        while self._heap and self._heap[0][0] <= now and ran < MAX_EXPIRATIONS_PER_TURN:
            action = self._pop(now)
            if action is not None:
                ran += 1
                execute(action())
        return ran

    def _pop(self, now: float) -> TimerAction | None:
        pushed_for, _, key = heappop(self._heap)
        entry = self._entries.get(key)
        if entry is None or entry[1] != pushed_for:
            return None  # cancelled, or another heap entry stands for the key
        deadline, _, action = entry
        if deadline > now:
            self._entries[key] = (deadline, deadline, action)
            self._push(deadline, key)
            return None
        del self._entries[key]
        return action

    def _push(self, deadline: float, key: TimerKey) -> None:
        first = not self._heap or deadline < self._heap[0][0]
        self._sequence += 1
        heappush(self._heap, (deadline, self._sequence, key))
        if first and self.wake_up is not None:
            self.wake_up(deadline)
