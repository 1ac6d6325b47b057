"""Fetch session of a follower at one leader: each request names only what changed since the last one (KIP-227).

    epoch 0    full: names all partitions and asks for a session
    epoch 1+   incremental: names partitions that are new or changed, and forgets those that are not wanted any more

A partition that is not wanted any more must be named as forgotten, or the leader goes on answering for it. A full
request follows ``lose``, an error, an answer without a session, and an answer about a partition that was not asked for.
Sans-io.

Source: FetchSessionHandler of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidelog.protocol.errors import NONE, FetchSessionIdNotFoundError

NO_SESSION = 0
FULL_EPOCH = 0
MAX_EPOCH = 2**31 - 1


class FetchKey(NamedTuple):
    """A partition by its topic's id."""

    topic_id: bytes
    partition: int


class PartitionAsk(NamedTuple):
    """Fields of a Fetch request for one partition."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


class SessionFields(NamedTuple):
    """Fields of one Fetch request that belong to the session: id, epoch, partitions asked for and forgotten."""

    session_id: int
    epoch: int
    asked: Mapping[FetchKey, PartitionAsk]
    forgotten: tuple[FetchKey, ...]


class LeaderSession:
    """A follower's side of its session: id, epoch, and the partitions in it."""

    __slots__ = ("_epoch", "_session_id", "asked")

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = FULL_EPOCH
        self.asked: dict[FetchKey, PartitionAsk] = {}
        """The partitions of the session, as they were asked for last."""

    @property
    def is_full(self) -> bool:
        """Return whether the next request has to name all partitions."""
        return self._epoch == FULL_EPOCH

    def build_full(self, wanted: Mapping[FetchKey, PartitionAsk]) -> SessionFields:
        """Return the fields of a request that names all wanted partitions and begins a session."""
        self.asked = dict(wanted)
        self._epoch = FULL_EPOCH
        return SessionFields(self._session_id, FULL_EPOCH, self.asked, ())

    def build_incremental(self, changed: Mapping[FetchKey, PartitionAsk | None]) -> SessionFields:
        """Return the fields of the session's next request; None in ``changed`` marks a partition that is not wanted."""
        named: dict[FetchKey, PartitionAsk] = {}
        forgotten = []
        for key, ask in changed.items():
            if ask is None:
                if self.asked.pop(key, None) is not None:
                    forgotten.append(key)
            elif self.asked.get(key) != ask:
                self.asked[key] = named[key] = ask
        return SessionFields(self._session_id, self._epoch, named, tuple(forgotten))

    def take_answer(self, error_code: int, session_id: int, named: Iterable[FetchKey]) -> bool:
        """Take the leader's answer; return whether its partitions may be used."""
        if error_code != NONE:
            if error_code == FetchSessionIdNotFoundError.code:
                self._session_id = NO_SESSION
            self._epoch = FULL_EPOCH
            return False
        if any(key not in self.asked for key in named):
            self._epoch = FULL_EPOCH
            return False
        if session_id == NO_SESSION:
            self._session_id, self._epoch = NO_SESSION, FULL_EPOCH
        else:
            self._session_id = session_id
            self._epoch = 1 if self._epoch == MAX_EPOCH else self._epoch + 1
        return True

    def lose(self) -> None:
        """Give up the session: the next request names all partitions again."""
        self._epoch = FULL_EPOCH
