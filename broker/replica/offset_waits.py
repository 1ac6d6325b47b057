"""Waits of one partition for offsets: each settles once the high watermark, the synced end or the low watermark is
above its offset. Loop thread only.
"""

from __future__ import annotations

from tidelog.broker.loop.deferred import Deferred
from tidelog.protocol.errors import KafkaError


class OffsetWaits:
    """Waits of one partition for one of these three offsets, the *end*."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Deferred[None]]] = []

    def wait(self, offset: int) -> Deferred[None]:
        """Return a Deferred that settles once the end is above ``offset``."""
        deferred: Deferred[None] = Deferred()
        self._waiting.append((offset, deferred))
        return deferred

    @property
    def has_waits(self) -> bool:
        """True while something waits."""
        return bool(self._waiting)

    def advance(self, end: int) -> None:
        """Settle the waits for offsets below ``end``."""
        waiting = self._waiting
        if not waiting:
            return
        due = [deferred for offset, deferred in waiting if offset < end and not deferred.abandoned]
        self._waiting = [wait for wait in waiting if wait[0] >= end]  # first: callbacks may add waits
        for deferred in due:
            if not deferred.abandoned:
                deferred.complete(None)

    def fail(self, error: KafkaError) -> None:
        """Fail all waits, for example because the records that they wait for may be lost."""
        waiting, self._waiting = self._waiting, []
        for _, deferred in waiting:
            if not deferred.abandoned:
                deferred.fail(error)
