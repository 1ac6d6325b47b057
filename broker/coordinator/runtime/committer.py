"""The committer of offsets, as the kinds of groups check it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple


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
