"""A partition that rests in a follower's fetch session: the follower has all of it and knows all of its offsets.

    reads, waits --nothing to read or to tell--> rests
    rests --append, deletion, fetch that names it, out of the ISR, end of leadership--> reads

Fetches pass a resting partition over. So a fetch costs what has moved, and not what the session has: of thousands of
partitions most are quiet. Each request of the session shows that a resting follower lives; the leader takes that over
when the rest ends, before anything else happens. Now and then all of a session's partitions are read again: retention
moves a log start without ending a rest.

The rest counts up to the last request that neither named nor forgot the partition: after that the follower has
asked for another offset, or does not ask for the partition any more.

Loop thread only. Kafka's leaders walk the whole session at each fetch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.replica.fetching.fetch_session import FetchSession, FetchTarget
from tidelog.broker.replica.purgatory import Purgatory

if TYPE_CHECKING:
    from tidelog.broker.cluster.partition_state import LeaderState

READ_ALL_MS = 30_000
"""The time after which the partitions that rest are read again."""


class Resting:
    """A partition's place in a session while it rests."""

    __slots__ = ("_purgatory", "_session", "_target")

    def __init__(self, purgatory: Purgatory, session: FetchSession, target: FetchTarget) -> None:
        self._purgatory = purgatory
        self._session = session
        self._target = target
        target.rested_until_ms = None

    @property
    def asked_ms(self) -> float:
        """The time of the session's last request in which the follower had all of the partition."""
        until_ms = self._target.rested_until_ms
        return self._session.last_used_ms if until_ms is None else until_ms

    def wake(self) -> None:
        """End the rest; a fetch that waits in the session is looked at again."""
        self._session.wake(self._target)
        self._purgatory.touch(self._session)


class Rests:
    """The followers of one led partition for which it rests."""

    __slots__ = ("_core", "_resting")

    def __init__(self, core: LeaderState) -> None:
        self._core = core
        self._resting: dict[int, Resting] = {}

    def may_rest(self, replica: tuple[int, int], fetch_offset: int) -> bool:
        """Return whether a follower (id, broker epoch) of the ISR has all that there is, by its last fetch. One outside
        of it may join at any fetch."""
        core, (replica_id, broker_epoch) = self._core, replica
        follower = core.follower(replica_id)
        return (
            follower is not None
            and follower.broker_epoch == broker_epoch
            and replica_id in core.isr
            and fetch_offset == follower.log_end_offset == core.log_end_offset == core.high_watermark
        )

    def add(self, replica_id: int, resting: Resting) -> None:
        """Have a follower passed over that may rest, until something moves."""
        self._resting[replica_id] = resting

    def end(self, replica_id: int) -> None:
        """End a follower's rest: its fetch names the partition."""
        if replica_id in self._resting:
            self._end(replica_id)

    def end_all(self) -> None:
        """End all rests: the log moves, or leadership ends."""
        if self._resting:
            for replica_id in list(self._resting):
                self._end(replica_id)

    def end_outside_isr(self) -> None:
        """End the rests of followers that are in the ISR no more."""
        for replica_id in [one for one in self._resting if one not in self._core.isr]:
            self._end(replica_id)

    def _end(self, replica_id: int) -> None:
        resting, follower = self._resting.pop(replica_id), self._core.follower(replica_id)
        if follower is not None:
            follower.note_rest(resting.asked_ms)
        resting.wake()
