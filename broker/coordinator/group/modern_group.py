"""Base classes of consumer, share and streams groups: the broker assigns partitions or tasks, in numbered epochs.

    epoch             raised when members, subscriptions or topics change
    assignment_epoch  the epoch for which ``target`` was computed
    assigned_at_ms    when ``target`` was computed, in ms of the wall clock; 0 if unknown
    target            member -> its target assignment

Only ``replay`` changes these values. Loop thread only. As in Kafka, ``ModernGroup`` is the base of consumer and share
groups alone. Source: KIP-848, KIP-932, KIP-1071.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from tidelog.broker.coordinator.group.assignors import EMPTY_ASSIGNMENT, Assignment
from tidelog.protocol.errors import NonEmptyGroupError

M = TypeVar("M")
T = TypeVar("T")


class EpochGroup(Generic[M, T]):
    """One group with members of type M, and their target assignments of type T."""

    pending_join_members: frozenset[str] = frozenset()
    """Always empty: only classic groups have members that must repeat JoinGroup with their new id."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assigned_at_ms = 0
        self.members: dict[str, M] = {}
        self.target: dict[str, T] = {}
        self.metadata_version = -1
        """Version of the metadata with which the subscriptions were last compared; only in memory, so a restart
        compares again."""

    @property
    def is_empty(self) -> bool:
        return not self.members

    def validate_delete(self) -> None:
        """Raise NonEmptyGroupError unless the group has no members."""
        if self.members:
            raise NonEmptyGroupError

    def retention_start_ms(self, commit_timestamp_ms: int) -> int | None:
        """Return when the retention of an offset begins: at its commit."""
        return commit_timestamp_ms


class ModernGroup(EpochGroup[M, Assignment]):
    """One group whose members are assigned partitions of topics."""

    def target_of(self, member_id: str) -> Assignment:
        return self.target.get(member_id, EMPTY_ASSIGNMENT)

    def put_target(self, member_id: str, topics: Iterable[TopicIndexes] | None) -> None:
        """Set a member's target assignment from its record; None removes it."""
        if topics is None:
            self.target.pop(member_id, None)
        else:
            self.target[member_id] = assignment_of(topics)


class TopicIndexes(Protocol):
    """A topic's partitions in a record."""

    topic_id: bytes
    partitions: list[int]


def assignment_of(topics: Iterable[TopicIndexes]) -> Assignment:
    """Read an assignment from a record."""
    return {bytes(topic.topic_id): frozenset(topic.partitions) for topic in topics}


def iterate_sorted(assignment: Assignment) -> Iterator[tuple[bytes, list[int]]]:
    """Iterate over an assignment, each topic's partitions in ascending order, as in records."""
    return ((topic_id, sorted(indexes)) for topic_id, indexes in assignment.items())
