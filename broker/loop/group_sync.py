"""Group sync of the metadata log: one fdatasync, in a thread, for all changes that were committed before it began.

    commit -> when_synced() -> sync -> the waiting Deferreds are settled on the loop, SETTLED_PER_TURN in each turn

One sync runs at a time. Commits that come meanwhile wait for the next one, which begins when this one ends and covers
them all. Whether a sync succeeds or fails, each Deferred is settled: with None, or with a KafkaError for clients. Loop
thread only, except the sync itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from tidelog.broker.loop.deferred import Deferred, deferred_value, error_of
from tidelog.broker.loop.threads import Threads
from tidelog.protocol.errors import KafkaError

SETTLED_PER_TURN = 8
"""Most Deferreds settled in one turn. Each change may create or delete logs, and one sync may cover thousands."""


class GroupSync:
    """Group sync of one log. ``sync`` may be called by any thread and raises KafkaStorageError; ``is_synced`` returns
    whether all that was appended is durable."""

    __slots__ = ("_is_settling", "_is_synced", "_is_syncing", "_settled", "_sync", "_threads", "_waiting")

    def __init__(self, sync: Callable[[], None], is_synced: Callable[[], bool], threads: Threads) -> None:
        self._sync = sync
        self._is_synced = is_synced
        self._threads = threads
        self._waiting: list[Deferred[None]] = []
        self._is_syncing = False
        self._settled: deque[tuple[Deferred[None], KafkaError | None]] = deque()
        self._is_settling = False

    def when_synced(self) -> Deferred[None]:
        """Return a Deferred that completes once everything appended before the call is durable, or fails if the sync
        does."""
        if self._is_synced():
            return deferred_value(None)
        deferred: Deferred[None] = Deferred()
        self._waiting.append(deferred)
        if not self._is_syncing:
            self._begin()
        return deferred

    def _begin(self) -> None:
        running = self._threads.in_thread(self._sync)
        covered, self._waiting = self._waiting, []
        self._is_syncing = True
        running.on_done(partial(self._finish, covered))

    def _finish(self, covered: list[Deferred[None]], done: Deferred[None]) -> None:
        self._is_syncing = False
        failure = error_of(done)
        self._settled.extend((deferred, failure) for deferred in covered)
        try:
            if self._waiting:
                self._begin()
        finally:  # those that this sync covered are settled even if the next one cannot begin
            if not self._is_settling:
                self._settle()

    def _settle(self) -> None:
        """Settle up to SETTLED_PER_TURN of the Deferreds whose sync is over, and the others in the next turns."""
        self._is_settling = True
        try:
            for _ in range(min(SETTLED_PER_TURN, len(self._settled))):
                settle_one(*self._settled.popleft())
        finally:
            self._is_settling = bool(self._settled)
            if self._is_settling:
                self._threads.call_soon(self._settle)


def settle_one(deferred: Deferred[None], failure: KafkaError | None) -> None:
    """Settle a Deferred whose sync is over."""
    if failure is None:
        deferred.complete(None)
    else:
        deferred.fail(failure)
