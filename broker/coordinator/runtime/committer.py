"""Identity of a client that commits offsets. Groups of each type check it before they accept the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from tidelog.protocol.errors import UnknownMemberIdError

Member = TypeVar("Member")


class Committer(NamedTuple):
    """Member id, instance id, and generation or member epoch of an OffsetCommit or TxnOffsetCommit request.

    ``partitions()`` returns the topic ids and partitions of the request, ``named_partitions()`` the same with topic
    names. Both are called only if the member commits with an older epoch (KIP-1251). ``version`` is the version of
    OffsetCommit, -1 for TxnOffsetCommit.
    """

    member_id: str
    instance_id: str | None
    generation_id: int
    version: int
    is_transactional: bool
    partitions: Callable[[], Iterable[tuple[bytes, int]]]
    named_partitions: Callable[[], Iterable[tuple[str, int]]]

    @property
    def is_anonymous(self) -> bool:
        """True if the request has no generation, no member id and no instance id."""
        return self.generation_id < 0 and not self.member_id and self.instance_id is None


def committing_member(committer: Committer, members: Mapping[str, Member]) -> Member | None:
    """Return the member that commits; the caller checks its epoch. Raises UnknownMemberIdError.

    Returns None if there is no member to check: for an admin client (no generation) if the group has no members, and
    for a transactional producer that names no member.
    """
    if committer.generation_id < 0 and not members:
        return None
    if committer.is_transactional and committer.is_anonymous:
        return None
    member = members.get(committer.member_id)
    if member is None:
        raise UnknownMemberIdError
    return member
