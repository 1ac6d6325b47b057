"""Proofs of transaction indices that reads on the loop wait for: one at a time, in a thread.

A read_committed fetch of a segment whose index is not proven (``tidelog.log.index_proof``) would read the whole segment
on the loop. It waits here: the proof runs in a thread, and the partition is touched when it has ended. A proof keeps a
processor busy with Python code, so a second one beside it would gain nothing, and would take a thread from the flushes.
Loop thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.replica.group_flush import InThread

Work = Callable[[], object]


class IndexProofs:
    """The queue of proofs of one broker. At most one of each partition is in it."""

    __slots__ = ("_in_thread", "_is_running", "_waiting")

    def __init__(self, in_thread: InThread) -> None:
        self._in_thread = in_thread
        self._waiting: deque[tuple[Work, Deferred[None]]] = deque()
        self._is_running = False

    def run(self, prove: Work) -> Deferred[None]:
        """Run ``prove`` after those before it; settles as it ends."""
        done: Deferred[None] = Deferred()
        self._waiting.append((prove, done))
        if not self._is_running:
            self._next()
        return done

    def _next(self) -> None:
        self._is_running = bool(self._waiting)
        if self._waiting:
            prove, done = self._waiting.popleft()
            self._in_thread(lambda: void(prove)).on_done(lambda proven: self._end(proven, done))

    def _end(self, proven: Deferred[None], done: Deferred[None]) -> None:
        try:
            self._next()
        finally:  # those who wait are told whatever happened
            proven.pass_to(done)


def void(work: Work) -> None:
    """Call ``work`` for what it does."""
    work()
