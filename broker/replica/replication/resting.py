"""A partition that rests in a follower's fetch session: the follower has all of it and knows all of its offsets.

    reads, waits --nothing to read or to tell--> rests --append, end of leadership, out of the ISR--> reads

Fetches pass a resting partition over. So a fetch costs what has moved, and not what the session has: of thousands of
partitions most are quiet. A resting follower still lives, by each request of its session; its leader is told so when
the rest ends, before anything else happens. Now and then all of a session's partitions are read again, for what no one
tells: a log start that retention moved.

Loop thread only. Kafka's leaders walk the whole session at each fetch.
"""

from __future__ import annotations

from tidelog.broker.replica.fetch_session import FetchSession, FetchTarget
from tidelog.broker.replica.purgatory import Purgatory

READ_ALL_MS = 30_000
"""The time after which the partitions that rest are read again."""


class Resting:
    """A partition's place in a session while it rests."""

    __slots__ = ("_purgatory", "_session", "_target")

    def __init__(self, purgatory: Purgatory, session: FetchSession, target: FetchTarget) -> None:
        self._purgatory = purgatory
        self._session = session
        self._target = target

    @property
    def asked_ms(self) -> float:
        """The time of the session's last request, in which the follower had all of the partition."""
        return self._session.last_used_ms

    def wake(self) -> None:
        """End the rest; a fetch that waits in the session is looked at again."""
        self._session.wake(self._target)
        self._purgatory.touch(self._session)
