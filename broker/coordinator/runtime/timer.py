"""Deadlines of a coordinator by key, on the monotonic clock.

    heap:  (deadline, sequence number, key), the earliest deadline first
    table: key -> (deadline, deadline of the key's heap entry, action)

Each heartbeat moves a deadline later, which is one write to the table: the heap keeps the old entry. When the old entry
is due, an entry with the new deadline is pushed. A heap entry is ignored if the table has no entry for the key or names
another heap entry: the action was cancelled, or moved to an earlier deadline. When entries of this kind outnumber the
others by more than MIN_REBUILT, the heap is rebuilt from the table.

Jumps of the wall clock have no effect on these deadlines. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from tidelog.broker.coordinator.runtime.result import TimerResult
from tidelog.log.system.time import Time

TimerKey = tuple[str, ...]
TimerAction = Callable[[], TimerResult]

MAX_EXPIRATIONS_PER_TURN = 200
"""Largest number of actions that run in one turn of the loop. The others run in later turns, so that clients are served
while many sessions expire."""


MIN_REBUILT = 64
"""The heap is rebuilt when its ignored entries outnumber the others by more than this."""


class CoordinatorTimer:
    """Schedules actions. Its owner (the runtime) calls ``run_due`` when ``next_deadline_ms`` is reached."""

    __slots__ = ("_entries", "_heap", "_sequence", "_time", "armed", "wake_up")

    def __init__(self, time: Time) -> None:
        self._time = time
        self._entries: dict[TimerKey, tuple[float, float, TimerAction]] = {}
        self._heap: list[tuple[float, int, TimerKey]] = []
        self._sequence = 0
        self.armed: list[float] = []
        """Deadlines for which the owner has set timers of the loop, the earliest last. Only the owner changes this
        list."""
        self.wake_up: Callable[[float], None] | None = None
        """Called with a new deadline that is earlier than all others, so that the owner sets a timer."""

    def schedule(self, key: TimerKey, delay_ms: float, action: TimerAction) -> None:
        """Run ``action`` after ``delay_ms``, in place of an action that was scheduled for the key before."""
        deadline = self._time.monotonic_ms() + delay_ms
        entry = self._entries.get(key)
        if entry is not None and entry[1] <= deadline:
            self._entries[key] = (deadline, entry[1], action)
            return
        self._entries[key] = (deadline, deadline, action)
        self._push(deadline, key)

    def cancel(self, key: TimerKey) -> None:
        """Cancel the action of a key, if there is one."""
        self._entries.pop(key, None)

    def is_scheduled(self, key: TimerKey) -> bool:
        return key in self._entries

    def next_deadline_ms(self) -> float | None:
        """Return the monotonic time at which to call ``run_due`` next: the first deadline, or earlier if that was moved
        or cancelled. Returns None if ``run_due`` need not be called."""
        return self._heap[0][0] if self._heap else None

    def run_due(self, execute: Callable[[TimerResult], None]) -> int:
        """Run the actions that are due, and pass their results to ``execute``. Returns the number of actions."""
        now = self._time.monotonic_ms()
        ran = 0
        while self._heap and self._heap[0][0] <= now and ran < MAX_EXPIRATIONS_PER_TURN:
            action = self._pop(now)
            if action is not None:
                ran += 1
                execute(action())
        return ran

    def _pop(self, now: float) -> TimerAction | None:
        """Remove the first heap entry. Returns its action if that is due now, else None."""
        pushed_for, _, key = heappop(self._heap)
        entry = self._entries.get(key)
        if entry is None or entry[1] != pushed_for:
            return None  # cancelled, or the key has another heap entry
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
        if len(self._heap) > 2 * len(self._entries) + MIN_REBUILT:
            self._heap = [(entry[1], number, key) for number, (key, entry) in enumerate(self._entries.items())]
            heapify(self._heap)
        if first and self.wake_up is not None:
            self.wake_up(deadline)
