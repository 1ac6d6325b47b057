"""Wait of a request in steps for a change of one of many keys, such as partitions, as an operation of the purgatory.

The request reads again after the wait, in steps, so that the append that ends the wait does not wait for the request.
Loop thread only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.replica.purgatory import Purgatory


class KeysWait:
    """A wait that begins at once: ``ended`` completes with the first change of a key, or after a delay."""

    __slots__ = ("_parked", "_purgatory", "ended", "is_over")

    def __init__(self, purgatory: Purgatory, keys: Iterable[Hashable], delay_ms: float) -> None:
        self.ended: Deferred[None] = Deferred()
        self.is_over = False
        """Whether the request is to be answered without waiting again."""
        self._purgatory = purgatory
        self._parked = purgatory.park(self, keys, max(delay_ms, 0), self.ended.refuse)
        self.ended.on_hurry(lambda: purgatory.expire(self._parked))

    def try_complete(self) -> bool:
        """End the wait: one of the keys has changed."""
        self.ended.complete(None)
        return True

    def expire(self) -> None:
        """End the wait: the time is up, another request of the client waits, or the broker stops."""
        self.is_over = True
        self.ended.complete(None)

    def cancel(self) -> None:
        """Remove the wait from the purgatory, if it has not ended."""
        self._purgatory.cancel(self._parked)
