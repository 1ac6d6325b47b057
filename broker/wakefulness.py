"""Staying awake for a client that asks again at once.

A client with one request in flight sends the next one as soon as it has its answer. Where the loop sleeps in epoll
between the two, each request pays for a processor that must be woken first, 20 to 25 µs on a virtual machine, more than
the request itself takes. So once a connection has sent QUICK_REQUESTS requests, each within ``window_ms`` of the one
before it, the loop turns without sleeping until the window has passed; other connections, timers and threads get their
turns as ever (the interpreter lock is free while the loop polls).

Where the processors are wanted by others too it does harm: the kernel may put the client behind the loop that never
sleeps, and a loop that uses up its time slice waits milliseconds for the next. So when a window passes in vain, or a
turn comes PREEMPTED_MS after the one before, the loop sleeps as ever for REST_MS. A busy processor need not be woken
anyway: with another busy process beside it a round trip takes 29 µs in place of 86, with this and without.

Invariants: the loop sleeps when no request came for ``window_ms``; what is burnt in vain is at most one window each
REST_MS; a window of 0 switches all this off. The gap is measured from request to request: a consumer that waits at the
end of a log asks again at once after each answer, but its next answer is not due because of that. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

QUICK_REQUESTS = 8
"""So many in a row, each soon after the one before, and the next one is expected soon as well."""
PREEMPTED_MS = 0.5
"""Turns come 2 µs apart, or as far as a request takes; further only when others had the processor."""
REST_MS = 100.0


class CallSoon(Protocol):
    """What is needed of the loop."""

    def call_soon(self, callback: Callable[[], None]) -> object: ...


class Wakefulness:
    """Keeps a loop awake. See the module."""

    __slots__ = ("_call_soon", "_is_awake", "_monotonic_ms", "_rest_until_ms", "_turned_ms", "_until_ms", "window_ms")

    def __init__(self, loop: CallSoon, monotonic_ms: Callable[[], float], window_ms: float) -> None:
        self._call_soon = loop.call_soon
        self._monotonic_ms = monotonic_ms
        self._is_awake = False
        self._until_ms = self._turned_ms = self._rest_until_ms = 0.0
        self.window_ms = window_ms

    def stay(self, now_ms: float) -> None:
        """Do not sleep for a window from now on."""
        self._until_ms = now_ms + self.window_ms
        if not self._is_awake and now_ms >= self._rest_until_ms:
            self._is_awake = True
            self._turned_ms = now_ms
            self._call_soon(self._turn)

    def _turn(self) -> None:
        now, last = self._monotonic_ms(), self._turned_ms
        self._turned_ms = now
        if now < self._until_ms and now - last <= PREEMPTED_MS:
            self._call_soon(self._turn)
        else:
            self._is_awake = False
            self._rest_until_ms = now + REST_MS
