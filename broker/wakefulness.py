"""Staying awake for a client that asks again at once.

A client with one request in flight sends the next one as soon as it has its answer. Where the loop sleeps in epoll
between the two, each request pays for a processor that must be woken first, 20 to 25 µs on a virtual machine, more than
the request itself takes. So once a connection has sent QUICK_REQUESTS requests, each within ``window_ms`` of the one
before it, the loop turns without sleeping until the window has passed; other connections, timers and threads get their
turns as ever (the interpreter lock is free while the loop polls).

Where the processors are wanted by others too it does harm: the kernel may put the client behind the loop that never
sleeps, and a loop that uses up its time slice waits milliseconds for the next. So it has to pay: when a window passes
in vain after fewer than PAYING_REQUESTS that came in time, or a turn comes PREEMPTED_MS after the one before, the loop
sleeps as ever for FIRST_REST_MS, and twice as long each time that this happens again, up to MOST_REST_MS. A busy
processor need not be woken anyway: with another busy process beside it a round trip takes 29 µs in place of 82, with
this and without.

Invariants: the loop sleeps when no request came for ``window_ms``; a window of 0 switches all this off. The gap is
measured from request to request: a consumer that waits at the end of a log asks again at once after each answer, but
its next answer is not due because of that. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

QUICK_REQUESTS = 8
"""So many in a row, each soon after the one before, and the next one is expected soon as well."""
PREEMPTED_MS = 0.5
"""Turns come 2 µs apart, or as far as a request takes; further only when others had the processor."""
PAYING_REQUESTS = 32
FIRST_REST_MS, MOST_REST_MS = 1.0, 128.0


class CallSoon(Protocol):
    """What is needed of the loop."""

    def call_soon(self, callback: Callable[[], None]) -> object: ...


class Wakefulness:
    """Keeps a loop awake. See the module."""

    __slots__ = (
        "_call_soon",
        "_came_in_time",
        "_is_awake",
        "_monotonic_ms",
        "_rest_ms",
        "_rest_until_ms",
        "_turned_ms",
        "_until_ms",
        "window_ms",
    )

    def __init__(self, loop: CallSoon, monotonic_ms: Callable[[], float], window_ms: float) -> None:
        self._call_soon = loop.call_soon
        self._monotonic_ms = monotonic_ms
        self._is_awake = False
        self._came_in_time = 0
        self._rest_ms = FIRST_REST_MS
        self._until_ms = self._turned_ms = self._rest_until_ms = 0.0
        self.window_ms = window_ms

    def stay(self, now_ms: float) -> None:
        """Do not sleep for a window from now on."""
        self._until_ms = now_ms + self.window_ms
        if self._is_awake:
            self._came_in_time += 1
        elif now_ms >= self._rest_until_ms:
            self._is_awake = True
            self._turned_ms = now_ms
            self._call_soon(self._turn)

    def _turn(self) -> None:
        now, last = self._monotonic_ms(), self._turned_ms
        self._turned_ms = now
        is_late = now - last > PREEMPTED_MS
        if now < self._until_ms and not is_late:
            self._call_soon(self._turn)
            return
        self._is_awake = False
        if self._came_in_time >= PAYING_REQUESTS and not is_late:
            self._rest_ms = FIRST_REST_MS
        else:
            self._rest_until_ms = now + self._rest_ms
            self._rest_ms = min(self._rest_ms * 2, MOST_REST_MS)
        self._came_in_time = 0
