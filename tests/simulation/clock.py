"""Virtual time, and simulated processes: the events of a process are dropped once it has ended."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

Act = Callable[[], object]


class Clock:
    """Events in the order of their times; events of the same time in the order in which they were added."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.touched: set[int] = set()
        """Owners (node ids) of the processes that ran since this set was cleared."""
        self._events: list[tuple[float, int, Act]] = []
        self._numbers = itertools.count()

    def after(self, delay_ms: float, act: Act) -> None:
        """Call ``act`` after ``delay_ms`` of virtual time."""
        heapq.heappush(self._events, (self.now_ms + max(delay_ms, 0.0), next(self._numbers), act))

    def step(self) -> None:
        """Call the next event at its time."""
        self.now_ms, _, act = heapq.heappop(self._events)
        act()

    @property
    def next_ms(self) -> float:
        """The time of the next event."""
        return self._events[0][0]

    def milliseconds(self) -> int:
        """Return the wall clock's time."""
        return 1_700_000_000_000 + int(self.now_ms)

    def monotonic_ms(self) -> float:
        """Return the monotonic clock's time."""
        return self.now_ms


class Process:
    """A process of a node: its events wait while it is frozen, and are dropped once it has ended."""

    def __init__(self, clock: Clock, owner: int) -> None:
        self.is_alive = True
        self._owner = owner
        self.is_frozen = False
        self._clock = clock
        self._held: list[Act] = []

    def run(self, act: Act) -> None:
        """Call ``act`` now, or after ``thaw`` if the process is frozen; never if it has ended."""
        if not self.is_alive:
            return
        if self.is_frozen:
            self._held.append(act)
        else:
            self._clock.touched.add(self._owner)
            act()

    def after(self, delay_ms: float, act: Act) -> None:
        """Call ``act`` after ``delay_ms``, as ``run`` does."""
        self._clock.after(delay_ms, lambda: self.run(act))

    def freeze(self) -> None:
        """Freeze the process, as SIGSTOP does."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Continue, and call what came while the process was frozen."""
        self.is_frozen = False
        held, self._held = self._held, []
        for act in held:
            self._clock.after(0, lambda act=act: self.run(act))  # type: ignore[misc]

    def end(self) -> None:
        """End the process: it never runs again."""
        self.is_alive = False
