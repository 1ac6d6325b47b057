"""Resting partitions of a follower's fetch session: the follower has all records and knows all offsets of them.

    read, waiting --no records, no new offsets--> resting
    resting --append, deletion, fetch that names it, out of the ISR, end of leadership--> read

A fetch does not read resting partitions. So its cost depends on what has moved, not on the size of the session: of
thousands of partitions most are quiet. Each request of the session shows that a follower of resting partitions is
alive. The leader notes that when the rest ends, before anything else happens. Every READ_ALL_MS all of a session's
partitions are read: retention moves a log start without ending a rest.

The rest lasted until the last request that neither named nor forgot the partition. After that the follower has asked
for another offset, or no longer fetches the partition.

Loop thread only. Kafka's leaders walk the whole session at each fetch.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from tidelog.broker.replica.fetching.fetch_session import FetchSession, FetchTarget
from tidelog.broker.replica.purgatory import Purgatory

if TYPE_CHECKING:
    from tidelog.broker.cluster.partition_state import LeaderState

READ_ALL_MS = 30_000
"""Time after which a session's resting partitions are read again."""


class Resting:
    """One resting partition of a fetch session."""

    __slots__ = ("_purgatory", "_session", "_target")

    def __init__(self, purgatory: Purgatory, session: FetchSession, target: FetchTarget) -> None:
        self._purgatory = purgatory
        self._session = session
        self._target = target
        target.rested_until_ms = None

    @property
    def asked_ms(self) -> float:
        """Monotonic time of the session's last request at which the follower had all of the partition."""
        until_ms = self._target.rested_until_ms
        return self._session.last_used_ms if until_ms is None else until_ms

    def wake(self) -> None:
        """End the rest; a waiting fetch of the session is tried again."""
        self._session.wake(self._target)
        self._purgatory.touch(self._session)


class Rests:
    """Followers of one led partition in whose sessions it rests."""

    __slots__ = ("_leader_state", "_resting")

    def __init__(self, leader_state: LeaderState) -> None:
        self._leader_state = leader_state
        self._resting: dict[int, Resting] = {}

    def may_rest(self, replica: tuple[int, int], fetch_offset: int) -> bool:
        """Return whether a follower (id, broker epoch) in the ISR has all records, by its last fetch. The
        partition never rests for one outside the ISR, as any of its fetches may let it join."""
        state, (replica_id, broker_epoch) = self._leader_state, replica
        follower = state.follower(replica_id)
        return (
            follower is not None
            and follower.broker_epoch == broker_epoch
            and replica_id in state.isr
            and fetch_offset == follower.log_end_offset == state.log_end_offset == state.high_watermark
        )

    def add(self, replica_id: int, resting: Resting) -> None:
        """Let the partition rest for a follower until something moves."""
        self._resting[replica_id] = resting

    def end(self, replica_id: int) -> None:
        """End the rest for a follower: its fetch reads the partition."""
        if replica_id in self._resting:
            self._end(replica_id)

    def end_all(self) -> None:
        """End all rests: the log moves, or leadership ends."""
        if self._resting:
            for replica_id in list(self._resting):
                self._end(replica_id)

    def end_outside(self, isr: Collection[int]) -> None:
        """End the rests of followers that are not in an ISR."""
        for replica_id in [one for one in self._resting if one not in isr]:
            self._end(replica_id)

    def _end(self, replica_id: int) -> None:
        resting, follower = self._resting.pop(replica_id), self._leader_state.follower(replica_id)
        if follower is not None:
            follower.note_caught_up(resting.asked_ms)
        resting.wake()
