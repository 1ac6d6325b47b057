"""Share sessions: the broker remembers which partitions a member reads, so that its requests name only changes.

    epoch of the request    ShareFetch                                       ShareAcknowledge
    0 (INITIAL_EPOCH)       a new session, in place of the member's old one  INVALID_SHARE_SESSION_EPOCH
    -1 (FINAL_EPOCH)        acknowledges and closes the session              the same
    n > 0                   the session's next request                       the same
    no such session         SHARE_SESSION_NOT_FOUND
    another epoch           INVALID_SHARE_SESSION_EPOCH

A session belongs to a member of a group and lasts as long as its connection. When it ends, the records that the member
has acquired in the session's partitions are released, unless a new session of the member replaces it. The number of
sessions is limited; the ShareFetch handler refuses further members after the request's wait time. Loop thread only.
Source: KIP-932.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

from tidelog.protocol.errors import (
    InvalidRequestError,
    InvalidShareSessionEpochError,
    ShareSessionLimitReachedError,
    ShareSessionNotFoundError,
)

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_PARTITIONS = 10_000
"""Largest number of partitions of a session, as many as one request may name: each request iterates over all of
them."""
_MAX_EPOCH = 2**31 - 1


class SessionKey(NamedTuple):
    """Group and member that a session belongs to."""

    group_id: str
    member_id: str


PartitionKey = tuple[bytes, int]
"""Topic id and index of a partition."""


class ShareSession:
    """Partitions that one member reads. ``epoch`` is the epoch that its next request must have."""

    __slots__ = ("connection", "epoch", "partitions")

    def __init__(self, partitions: Iterable[PartitionKey], connection: object) -> None:
        self.epoch = 1
        self.connection = connection
        self.partitions: dict[PartitionKey, bool] = dict.fromkeys(partitions, True)
        """Partition -> whether the next response must name it, because it is new or had an error."""

    def update(self, added: Collection[PartitionKey], forgotten: Collection[PartitionKey]) -> None:
        """Add and remove partitions, and go on to the next epoch.

        Raises InvalidRequestError, and changes nothing, if there would be too many.
        """
        may_exceed = len(self.partitions) + len(added) > MAX_PARTITIONS
        if may_exceed and len((self.partitions.keys() | added).difference(forgotten)) > MAX_PARTITIONS:
            raise InvalidRequestError(f"a share session has at most {MAX_PARTITIONS:,} partitions")
        for partition in added:
            self.partitions.setdefault(partition, True)
        for partition in forgotten:
            self.partitions.pop(partition, None)
        self.advance()

    def advance(self) -> None:
        """Go on to the next epoch. The largest is followed by 1, because 0 stands for a new session."""
        self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1


class ShareSessions:
    """All sessions of a broker."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._of_connection: dict[object, dict[SessionKey, None]] = {}
        """Keys of each connection's sessions."""
        self._of_group: Counter[str] = Counter()
        """Number of sessions of each group that has any."""

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, key: SessionKey, partitions: Iterable[PartitionKey], connection: object) -> ShareSession:
        """Open a new session in place of the member's old one. Raises ShareSessionLimitReachedError."""
        self.close(key)
        if len(self._sessions) >= self._max_sessions:
            raise ShareSessionLimitReachedError
        session = self._sessions[key] = ShareSession(partitions, connection)
        self._of_connection.setdefault(connection, {})[key] = None
        self._of_group[key.group_id] += 1
        return session

    def find(self, key: SessionKey, epoch: int) -> ShareSession:
        """Find the session of a request with this epoch, or with FINAL_EPOCH.

        Raises ShareSessionNotFoundError, InvalidShareSessionEpochError.
        """
        session = self._sessions.get(key)
        if session is None:
            raise ShareSessionNotFoundError
        if epoch not in (session.epoch, FINAL_EPOCH):
            raise InvalidShareSessionEpochError
        return session

    def close(self, key: SessionKey) -> ShareSession | None:
        """End a session and return it, or None if there is none."""
        session = self._sessions.pop(key, None)
        if session is not None:
            keys = self._of_connection[session.connection]
            del keys[key]
            if not keys:
                del self._of_connection[session.connection]
            self._of_group[key.group_id] -= 1
            if not self._of_group[key.group_id]:
                del self._of_group[key.group_id]
        return session

    def has_group(self, group_id: str) -> bool:
        """Return whether a member of the group has a session."""
        return group_id in self._of_group

    def of_connection(self, connection: object) -> list[SessionKey]:
        """Return the keys of a connection's sessions."""
        return list(self._of_connection.get(connection, ()))
