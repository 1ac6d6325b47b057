"""Proofs of transaction indices that reads on the loop wait for: one at a time, in a thread.

A read_committed fetch of a segment whose index is not proven (``tidelog.log.index_proof``) would read the whole segment
on the loop. It waits here: the proof runs in a thread, and the partition is touched when it has ended. A proof keeps a
processor busy with Python code, so a second one beside it would gain nothing, and would take a thread from the flushes.
Loop thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.replica.group_flush import InThread

Work = Callable[[], object]


class IndexProofs:
    """The queue of proofs of one broker. At most one of each partition is in it."""

    __slots__ = ("_in_thread", "_is_running", "_is_starting", "_waiting")

    def __init__(self, in_thread: InThread) -> None:
        self._in_thread = in_thread
        self._waiting: deque[tuple[Work, Deferred[None]]] = deque()
        self._is_running = self._is_starting = False

    def run(self, prove: Work) -> Deferred[None]:
        """Run ``prove`` after those before it; settles as it ends."""
        done: Deferred[None] = Deferred()
        self._waiting.append((prove, done))
        if not self._is_starting:
            self._start()
        return done

    def _start(self) -> None:
        """Begin with the next one while none is under way. One that ends at once makes no call within a call: thousands
        may wait."""
        self._is_starting = True
        try:
            while self._waiting and not self._is_running:
                self._is_running = True
                prove, done = self._waiting.popleft()
                self._in_thread(partial(void, prove)).on_done(partial(self._end, done))
        finally:
            self._is_starting = False

    def _end(self, done: Deferred[None], proven: Deferred[None]) -> None:
        self._is_running = False
        try:
            if not self._is_starting:
                self._start()
        finally:  # those who wait are told whatever happened
            proven.pass_to(done)


def void(work: Work) -> None:
    """Call ``work`` for what it does."""
    work()
