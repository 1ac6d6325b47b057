"""Switch that keeps the loop from sleeping before a client's next request, where that makes answers faster.

A client with one request in flight sends the next one as soon as it has its answer. If the loop sleeps in epoll between
the two, each request pays for a processor that must be woken first: 20 to 25 µs on a quiet virtual machine, more than
the request takes. So once a connection has sent QUICK_REQUESTS requests, each within ``window_ms`` of the
one before it, the loop may turn without sleeping until the window has passed; other connections, timers and threads
get their turns as ever (the interpreter lock is free while the loop polls).

If other processes need the CPU, there is nothing to gain, because a busy processor need not be woken. There is much
to lose: a loop that never sleeps uses up its time slice, and then the loop or the client waits milliseconds for
the next slice. So trials compare the gaps from request to request::

    asleep for SAMPLE gaps -> awake for SAMPLE gaps -> the better of both for DECISION_MS -> the next trial

Awake is better when its median gap is below WORTH times the median asleep, and no turn came more than PREEMPTED_MS
after the one before. After a trial, such a late turn also ends the time awake; the next trial begins RETRY_MS later.

Invariants: the loop sleeps when no request came for ``window_ms``; a window of 0 switches all this off. A gap begins
with the request before, not with its answer: a consumer at the end of a log asks again at once after each answer, and
then waits for records. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

QUICK_REQUESTS = 8
"""After this many requests in a row, each within ``window_ms`` of the one before, the next is expected as soon."""
SAMPLE = 64
WORTH = 0.75
DECISION_MS = 1_000.0
RETRY_MS = 100.0
PREEMPTED_MS = 1.0
"""Turns come 2 µs apart, or as far apart as a request takes. A gap above PREEMPTED_MS is taken to mean that another
process had the processor."""


class CallSoon(Protocol):
    """The part of an event loop that ``Wakefulness`` uses."""

    def call_soon(self, callback: Callable[[], None]) -> object: ...


class Wakefulness:
    """Switch that keeps a loop from sleeping while requests follow one another quickly and a trial showed a gain."""

    __slots__ = (
        "_asleep_gap_ms",
        "_call_soon",
        "_decided_until_ms",
        "_gaps",
        "_is_better",
        "_is_turning",
        "_monotonic_ms",
        "_turned_ms",
        "_until_ms",
        "window_ms",
    )

    def __init__(self, loop: CallSoon, monotonic_ms: Callable[[], float], window_ms: float) -> None:
        self._call_soon = loop.call_soon
        self._monotonic_ms = monotonic_ms
        self._gaps: list[float] | None = []
        """Milliseconds from request to request in the trial under way; None between trials."""
        self._asleep_gap_ms = 0.0
        self._is_better = self._is_turning = False
        self._decided_until_ms = self._until_ms = self._turned_ms = 0.0
        self.window_ms = window_ms

    def note_request(self, now_ms: float, gap_ms: float) -> None:
        """Note a request that came ``gap_ms`` after its client's last one. This gap, like those before it, is shorter
        than the window."""
        if self._gaps is not None:
            self._gaps.append(gap_ms)
            if len(self._gaps) == SAMPLE:
                self._judge(now_ms, sorted(self._gaps)[SAMPLE // 2])
        elif now_ms >= self._decided_until_ms:
            self._gaps, self._is_better = [], False
        if self._is_better:
            self._until_ms = now_ms + self.window_ms
            if not self._is_turning:
                self._is_turning = True
                self._turned_ms = now_ms
                self._call_soon(self._turn)

    def _judge(self, now_ms: float, median_ms: float) -> None:
        """Judge the half of a trial that has ended, asleep or awake."""
        if self._is_better:  # this was the half awake
            self._gaps, self._is_better = None, median_ms < WORTH * self._asleep_gap_ms
            self._decided_until_ms = now_ms + DECISION_MS
        else:
            self._asleep_gap_ms = median_ms
            self._gaps, self._is_better = [], True

    def _turn(self) -> None:
        now, last = self._monotonic_ms(), self._turned_ms
        self._turned_ms = now
        if now - last > PREEMPTED_MS:
            self._decided_until_ms = now + (RETRY_MS if self._gaps is None else DECISION_MS)
            self._gaps, self._is_better = None, False
        if now < self._until_ms and self._is_better:
            self._call_soon(self._turn)
        else:
            self._is_turning = False
