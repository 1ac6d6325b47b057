"""Identity of a client that commits offsets, as each kind of group checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from tidelog.protocol.errors import UnknownMemberIdError

Member = TypeVar("Member")


class Committer(NamedTuple):
    """Identity in OffsetCommit and TxnOffsetCommit: member, instance and epoch.

    ``partitions()`` are the topic ids and partitions it is for, ``named_partitions()`` the same by name; only a member
    in an older epoch needs them (KIP-1251).
    ``version`` is that of OffsetCommit.
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
        """True when it says nothing at all of who it is."""
        return self.generation_id < 0 and not self.member_id and self.instance_id is None


def committing_member(committer: Committer, members: Mapping[str, Member]) -> Member | None:
    """Return the member that commits, whose epoch is to be checked. Raises UnknownMemberIdError.

    Returns None where there is none to check: an admin client of a group without members, or a producer that says
    nothing of who it is.
    """
    if committer.generation_id < 0 and not members:
        return None
    if committer.is_transactional and committer.is_anonymous:
        return None
    member = members.get(committer.member_id)
    if member is None:
        raise UnknownMemberIdError
    return member
