"""An event loop that a test drives by hand: timers over a manual clock, callbacks run by ``run_soon``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tidelog.broker.loop.timers import TimerQueue
from tidelog.log.system.time import ManualTime


class _Handle:
    def __init__(self, loop: ManualLoop, deadline_ms: float, callback: Callable[[], None]) -> None:
        self._loop = loop
        self.deadline_ms = deadline_ms
        self.callback = callback

    def cancel(self) -> None:
        if self in self._loop.later:
            self._loop.later.remove(self)


class ManualLoop:
    """``call_soon`` and ``call_later`` without a thread or a real clock."""

    def __init__(self) -> None:
        self.time = ManualTime()
        self.soon: list[Callable[[], None]] = []
        self.later: list[_Handle] = []
        self.timers = TimerQueue(self.time.monotonic_ms, self.call_later)

    def call_soon(self, callback: Callable[..., None], *arguments: object) -> None:
        self.soon.append(partial(callback, *arguments) if arguments else callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _Handle:
        handle = _Handle(self, self.time.monotonic_ms() + seconds * 1000, callback)
        self.later.append(handle)
        return handle

    def run_soon(self) -> None:
        """Run one turn: what was asked for so far."""
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()

    def advance(self, milliseconds: float) -> None:
        """Move the clock, and fire the timers that become due on the way."""
        end = self.time.monotonic_ms() + milliseconds
        while due := [handle for handle in self.later if handle.deadline_ms <= end]:
            handle = min(due, key=lambda handle: handle.deadline_ms)
            self.later.remove(handle)
            self.time.advance(max(0.0, handle.deadline_ms - self.time.monotonic_ms()))
            handle.callback()
        self.time.advance(end - self.time.monotonic_ms())
