"""A consumer group of KIP-848: members, their epochs, target and current assignments.

    Empty         no members
    Assigning     the group epoch is above the target assignment's
    Reconciling   some member has not yet its target assignment, or not yet the epoch of the target
    Stable        every member has its target assignment, in the epoch of the target

Every partition has at most one owner. ``owners`` has the member that is assigned a partition or must still revoke it;
no other member gets the partition until this one has given it up. All of this is in the log; after a restart only the
timers start again.

Source: KIP-848, KIP-1251; records 3 to 8 and 16 of ``__consumer_offsets``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tidelog.broker.coordinator.group.assignors import Assignment
from tidelog.broker.coordinator.group.modern_group import ModernGroup
from tidelog.broker.coordinator.runtime.committer import Committer, committing_member
from tidelog.protocol.errors import (
    IllegalGenerationError,
    StaleMemberEpochError,
    UnsupportedVersionError,
)

FIRST_COMMIT_WITH_EPOCH = 9
"""First version of OffsetCommit that members of the consumer protocol may use."""


class ConsumerGroupState(Enum):
    """State of a consumer group; the value is its name in the admin APIs."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class MemberState(Enum):
    """State of a member's reconciliation: reconciled, must revoke partitions, or waits for partitions of other members.
    The values are those in the log."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class ClassicSpec:
    """Further settings of a member of the classic protocol: its session timeout, and its protocols with their
    metadata, in its order of preference."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Subscription:
    """A member's subscription and identity, as it sent them (ConsumerGroupMemberMetadata). ``classic`` is
    None for a member of the consumer protocol."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicSpec | None = None


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """Current assignment of a member (ConsumerGroupCurrentMemberAssignment): its epoch, its partitions, and those it
    must still revoke."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = field(default_factory=dict)
    pending_revocation: Assignment = field(default_factory=dict)
    epochs: Mapping[tuple[bytes, int], int] = field(default_factory=dict)
    """Partition -> epoch in which it was assigned to the member; also those to revoke (KIP-1251)."""


NEW_MEMBER = CurrentAssignment()


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that a pattern matched (ConsumerGroupRegularExpression), with the version of the metadata and the
    time at which they were matched."""

    topics: tuple[str, ...]
    version: int
    timestamp_ms: int


class ConsumerMember:
    """One member. ``subscription`` and ``current`` are immutable values, which are replaced."""

    __slots__ = ("current", "member_id", "subscription")

    def __init__(self, member_id: str, subscription: Subscription, current: CurrentAssignment = NEW_MEMBER) -> None:
        self.member_id = member_id
        self.subscription = subscription
        self.current = current

    def check_epoch(self, epoch: int) -> None:
        """Raise StaleMemberEpochError for another epoch than the member's; for a classic member
        IllegalGenerationError."""
        if epoch != self.current.epoch:
            raise StaleMemberEpochError if self.subscription.classic is None else IllegalGenerationError


class ConsumerGroup(ModernGroup[ConsumerMember]):
    """One group; loop thread only.

    ``static_members`` maps instance ids to member ids, ``owners`` partitions to member ids, and ``regexes`` patterns to
    the topics that they matched.
    """

    group_type = "Consumer"
    protocol_type = "consumer"

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.static_members: dict[str, str] = {}
        self.owners: dict[tuple[bytes, int], str] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self._subscribed: set[str] | None = None
        """Result of ``subscribed_topics``, None after a change."""

    @property
    def state(self) -> ConsumerGroupState:
        """State of the group, computed from its epochs; it is not stored."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(self.is_reconciled(member.current) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def is_reconciled(self, current: CurrentAssignment) -> bool:
        """Return whether a member has its target assignment, in the epoch of the target."""
        return current.state is MemberState.STABLE and current.epoch == self.assignment_epoch

    def subscribed_topics(self) -> set[str]:
        """Return the topic names of all members, with those that patterns match. The caller must not change them."""
        names = self._subscribed
        if names is None:
            names = self._subscribed = set()
            for member in self.members.values():
                names.update(self.topics_of(member.subscription))
        return names

    def topics_of(self, subscription: Subscription) -> tuple[str, ...]:
        """Return the topic names of one member, with those that its pattern matches."""
        resolved = self.regexes.get(subscription.topic_regex) if subscription.topic_regex else None
        return subscription.topic_names + (resolved.topics if resolved is not None else ())

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribed_topics()

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Return whether other members still own partitions of this member's target."""
        assigned = member.current.assigned
        return any(
            self.owners.get((topic_id, index), member.member_id) != member.member_id
            for topic_id, indexes in self.target_of(member.member_id).items()
            for index in indexes - assigned.get(topic_id, frozenset())
        )

    # -- changes by replay --------------------------------------------------------------------------------------

    def put_member(self, member_id: str, subscription: Subscription) -> None:
        """Add a member, or replace its subscription (ConsumerGroupMemberMetadata)."""
        self._subscribed = None
        member = self.members.get(member_id)
        if member is None:
            self.members[member_id] = ConsumerMember(member_id, subscription)
        else:
            self._forget_instance(member)
            member.subscription = subscription
        if subscription.instance_id is not None:
            self.static_members[subscription.instance_id] = member_id

    def _forget_instance(self, member: ConsumerMember) -> None:
        """Remove the member's instance id from ``static_members``, unless another member has it by now."""
        instance_id = member.subscription.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member.member_id:
            del self.static_members[instance_id]

    def remove_member(self, member_id: str) -> None:
        """Remove a member (a tombstone of ConsumerGroupMemberMetadata)."""
        self._subscribed = None
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._release(member_id, member.current)
        self._forget_instance(member)

    def put_regex(self, regex: str, resolved: ResolvedRegex | None) -> None:
        """Set the topics that a pattern matched (ConsumerGroupRegularExpression); None removes the pattern."""
        self._subscribed = None
        if resolved is None:
            self.regexes.pop(regex, None)
        else:
            self.regexes[regex] = resolved

    def put_current(self, member_id: str, current: CurrentAssignment | None) -> None:
        """Set a member's current assignment (ConsumerGroupCurrentMemberAssignment); None, for a tombstone, resets it to
        that of a new member.

        A member that is not there is added: if its subscription changed later, compaction has left this record before
        the one of its subscription.
        """
        member = self.members.get(member_id)
        if member is None:
            if current is None:
                return
            self.put_member(member_id, Subscription())
            member = self.members[member_id]
        self._release(member_id, member.current)
        member.current = current = NEW_MEMBER if current is None else current
        for assignment in (current.assigned, current.pending_revocation):
            for topic_id, indexes in assignment.items():
                for index in indexes:
                    self.owners[topic_id, index] = member_id

    def _release(self, member_id: str, current: CurrentAssignment) -> None:
        for assignment in (current.assigned, current.pending_revocation):
            for topic_id, indexes in assignment.items():
                for index in indexes:
                    if self.owners.get((topic_id, index)) == member_id:
                        del self.owners[topic_id, index]

    # -- checks -------------------------------------------------------------------------------------------------

    def validate_offset_commit(self, committer: Committer) -> None:
        """Check that the committer is a member with its current epoch. An admin client may commit if there are no
        members, and a transactional producer that names no member may always commit.

        A member may commit with an older epoch if it was assigned each partition in that epoch or before (KIP-1251).
        Raises UnknownMemberIdError, UnsupportedVersionError, StaleMemberEpochError, IllegalGenerationError.
        """
        member = committing_member(committer, self.members)
        if member is None:
            return
        is_new_protocol = member.subscription.classic is None
        if is_new_protocol and not committer.is_transactional and committer.version < FIRST_COMMIT_WITH_EPOCH:
            raise UnsupportedVersionError
        if committer.generation_id > member.current.epoch or not all(
            committer.generation_id >= member.current.epochs.get(partition, member.current.epoch)
            for partition in (() if committer.generation_id == member.current.epoch else committer.partitions())
        ):
            raise StaleMemberEpochError if is_new_protocol else IllegalGenerationError

    def validate_offset_delete(self) -> None:
        """Do nothing: OffsetDelete refuses each topic that a member subscribes to."""
