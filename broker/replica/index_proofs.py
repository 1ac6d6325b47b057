"""Queue of the proofs of transaction indices that reads on the loop wait for: one runs at a time, in a thread.

A read_committed fetch of a segment whose index is not proven (``tidelog.log.index_proof``) would read the whole segment
on the loop. So the proof runs in a thread, and the partition is touched in the purgatory when it ends. A proof is
Python code that holds the interpreter lock, so a second one in parallel would gain nothing, and would take a thread
from the flushes. Loop thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.replica.group_flush import InThread

Work = Callable[[], object]


class IndexProofs:
    """Queue of the proofs of one broker, at most one of each partition."""

    __slots__ = ("_in_thread", "_is_running", "_is_starting", "_waiting")

    def __init__(self, in_thread: InThread) -> None:
        self._in_thread = in_thread
        self._waiting: deque[tuple[Work, Deferred[None]]] = deque()
        self._is_running = self._is_starting = False

    def run(self, prove: Work) -> Deferred[None]:
        """Run ``prove`` after earlier proofs; return a Deferred that settles when it ends, and fails if it fails."""
        done: Deferred[None] = Deferred()
        self._waiting.append((prove, done))
        if not self._is_starting:
            self._start()
        return done

    def _start(self) -> None:
        """Begin the next proof if none is under way. A proof that ends at once must not recurse: thousands may wait."""
        self._is_starting = True
        try:
            while self._waiting and not self._is_running:
                self._is_running = True
                prove, done = self._waiting.popleft()
                self._in_thread(partial(discard_result, prove)).on_done(partial(self._end, done))
        finally:
            self._is_starting = False

    def _end(self, done: Deferred[None], proven: Deferred[None]) -> None:
        self._is_running = False
        try:
            if not self._is_starting:
                self._start()
        finally:  # ``done`` must be settled in any case, because answers wait for it
            proven.pass_to(done)


def discard_result(work: Work) -> None:
    """Call ``work`` without returning its result."""
    work()
