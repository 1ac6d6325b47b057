"""A classic group: its members, their waiting requests, and the protocol that they all support.

Each state, and the states from which the group may enter it:

    Empty                <- PreparingRebalance
    PreparingRebalance   <- Empty, CompletingRebalance, Stable
    CompletingRebalance  <- PreparingRebalance
    Stable               <- CompletingRebalance
    Dead                 <- all

This module has the group's values and keeps them consistent; ``rebalance`` and ``sync`` change the state. Only the
fields of ``GroupMetadataValue`` are in the log. They are written when the group is created or becomes empty, with the
leader's assignment, and when a static member gets a new id. Waiting requests are only in memory; their clients retry
after the end of the process.

Source: JoinGroup v0-9, KIP-345 (static members), KIP-394 (member id required), KIP-559 (protocol name and type).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

from tidelog.broker.coordinator.runtime.committer import Committer
from tidelog.protocol.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    IllegalGenerationError,
    NonEmptyGroupError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

if TYPE_CHECKING:
    from tidelog.broker.loop.deferred import Deferred
    from tidelog.protocol.messages.join_group import JoinGroupResponse
    from tidelog.protocol.messages.sync_group import SyncGroupResponse

CONSUMER_PROTOCOL_TYPE = "consumer"


class ClassicGroupState(Enum):
    """State of a classic group; the value is its name in the admin APIs."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY = ClassicGroupState.EMPTY
PREPARING_REBALANCE = ClassicGroupState.PREPARING_REBALANCE
COMPLETING_REBALANCE = ClassicGroupState.COMPLETING_REBALANCE
STABLE = ClassicGroupState.STABLE
DEAD = ClassicGroupState.DEAD

VALID_PREVIOUS_STATES: dict[ClassicGroupState, frozenset[ClassicGroupState]] = {
    EMPTY: frozenset({PREPARING_REBALANCE}),
    PREPARING_REBALANCE: frozenset({EMPTY, COMPLETING_REBALANCE, STABLE}),
    COMPLETING_REBALANCE: frozenset({PREPARING_REBALANCE}),
    STABLE: frozenset({COMPLETING_REBALANCE}),
    DEAD: frozenset(ClassicGroupState),
}


class ClassicMember:
    """A member of a classic group. ``protocols`` is in the member's order of preference; times in milliseconds.

    ``awaiting_join`` and ``awaiting_sync`` are the responses for which the member waits. ``is_new`` is true until the
    member's first generation begins.
    """

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        *,
        group_instance_id: str | None = None,
        client_id: str = "",
        client_host: str = "",
        rebalance_timeout_ms: int = 0,
        session_timeout_ms: int = 0,
        protocols: dict[str, bytes] | None = None,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols or {}
        self.assignment = assignment
        self.awaiting_join: Deferred[JoinGroupResponse] | None = None
        self.awaiting_sync: Deferred[SyncGroupResponse] | None = None
        self.is_new = False

    def vote(self, candidates: set[str]) -> str:
        """Choose the first of the member's protocols among ``candidates``, those that all members support."""
        return next(name for name in self.protocols if name in candidates)


class ClassicGroup:
    """Members and generation of one group; loop thread only.

    ``static_members`` maps instance ids to member ids. ``pending_join_members`` are member ids that were given out and
    have not joined (KIP-394); ``pending_sync_members`` have sent no SyncGroup in this generation. ``subscribed_topics``
    is None if unknown. ``new_member_added`` tells that a member has joined since the initial delay began or was
    extended (KIP-134).
    """

    group_type = "Classic"

    def __init__(self, group_id: str, *, now_ms: int, state: ClassicGroupState = EMPTY) -> None:
        self.group_id = group_id
        self.state = state
        self.previous_state = DEAD
        self.state_timestamp_ms: int | None = now_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        self.pending_join_members: set[str] = set()
        self.pending_sync_members: set[str] = set()
        self.awaiting_join_count = 0
        self.new_member_added = False
        self.subscribed_topics: set[str] | None = None
        self._protocol_support: dict[str, int] = {}

    # -- members ------------------------------------------------------------------------------------------------

    def add(self, member: ClassicMember, awaiting: Deferred[JoinGroupResponse] | None = None) -> None:
        """Add a member. The first one becomes the leader."""
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self.pending_join_members.discard(member.member_id)
        self._count_protocols(member, 1)
        member.awaiting_join = awaiting
        if awaiting is not None:
            self.awaiting_join_count += 1

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending member id. If the leader is removed, the first of the others becomes leader."""
        member = self.members.pop(member_id, None)
        self.pending_join_members.discard(member_id)
        self.pending_sync_members.discard(member_id)
        if member is None:
            return
        self._count_protocols(member, -1)
        if member.awaiting_join is not None:
            self.awaiting_join_count -= 1
        if member.group_instance_id is not None and self.static_members.get(member.group_instance_id) == member_id:
            del self.static_members[member.group_instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def replace_static_member(
        self, instance_id: str, *, old_member_id: str, new_member_id: str
    ) -> tuple[ClassicMember, list[Deferred[JoinGroupResponse]], list[Deferred[SyncGroupResponse]]]:
        """Give a static member a new id. Returns the member, and the waiting JoinGroup and SyncGroup requests of its
        old incarnation, which must be fenced."""
        member = self.members.pop(old_member_id)
        joins = [member.awaiting_join] if member.awaiting_join is not None else []
        syncs = [member.awaiting_sync] if member.awaiting_sync is not None else []
        self.awaiting_join_count -= len(joins)
        member.awaiting_join = None
        member.awaiting_sync = None
        member.member_id = new_member_id
        self.members[new_member_id] = member
        self.static_members[instance_id] = new_member_id
        if old_member_id in self.pending_sync_members:
            self.pending_sync_members.discard(old_member_id)
            self.pending_sync_members.add(new_member_id)
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        return member, joins, syncs

    def update_member(
        self,
        member: ClassicMember,
        protocols: dict[str, bytes],
        *,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        awaiting: Deferred[JoinGroupResponse] | None,
    ) -> None:
        """Set the protocols and timeouts of a member's new JoinGroup request. ``awaiting`` is its response, None if the
        member does not wait."""
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self.awaiting_join_count += (awaiting is not None) - (member.awaiting_join is not None)
        member.awaiting_join = awaiting

    def complete_join(self, member: ClassicMember, response: JoinGroupResponse) -> bool:
        """Answer the member's waiting JoinGroup. Returns False if it has none."""
        awaiting = member.awaiting_join
        if awaiting is None:
            return False
        member.awaiting_join = None
        self.awaiting_join_count -= 1
        awaiting.complete(response)
        return True

    def complete_sync(self, member: ClassicMember, response: SyncGroupResponse) -> bool:
        """Answer the member's waiting SyncGroup. Returns False if it has none."""
        awaiting = member.awaiting_sync
        if awaiting is None:
            return False
        member.awaiting_sync = None
        awaiting.complete(response)
        return True

    # -- states -------------------------------------------------------------------------------------------------

    def transition_to(self, state: ClassicGroupState, now_ms: int) -> None:
        """Change the state. An invalid transition is a defect of the broker (AssertionError)."""
        assert self.state in VALID_PREVIOUS_STATES[state], (self.group_id, self.state, state)
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = now_ms

    @property
    def is_empty(self) -> bool:
        return self.state is EMPTY

    @property
    def can_rebalance(self) -> bool:
        return self.state in VALID_PREVIOUS_STATES[PREPARING_REBALANCE]

    @property
    def has_all_members_joined(self) -> bool:
        return len(self.members) == self.awaiting_join_count and not self.pending_join_members

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of a member, 0 without members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Elect a leader that has joined, unless the current one has. Returns False if no member has joined."""
        leader = self.members.get(self.leader_id) if self.leader_id is not None else None
        if leader is not None and leader.awaiting_join is not None:
            return True
        joined = next((m.member_id for m in self.members.values() if m.awaiting_join is not None), None)
        if joined is None:
            return False
        self.leader_id = joined
        return True

    def init_next_generation(self, now_ms: int) -> None:
        """Begin the next generation: CompletingRebalance with a protocol, or Empty without members."""
        self.generation_id += 1
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition_to(COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.transition_to(EMPTY, now_ms)
        self.subscribed_topics = self.compute_subscribed_topics()
        self.pending_sync_members.clear()

    # -- protocols ----------------------------------------------------------------------------------------------

    def supports_protocols(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return whether a joining member shares the protocol type and at least one protocol with all members. Any
        member with a protocol type and a protocol may join an empty group."""
        if self.state is EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        if self.protocol_type != protocol_type:
            return False
        return any(self._protocol_support.get(name, 0) == len(self.members) for name in names)

    def select_protocol(self) -> str:
        """Choose the protocol that most members prefer among those that all support."""
        size = len(self.members)
        candidates = {name for name, count in self._protocol_support.items() if count == size}
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def compute_subscribed_topics(self) -> set[str] | None:
        """Collect the topics to which members of a consumer group subscribe. Returns None for a group of another
        protocol type, if no protocol is chosen yet, and if a subscription cannot be parsed.
        """
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        if not self.members:
            return set()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        try:
            for member in self.members.values():
                topics.update(parse_subscribed_topics(member.protocols.get(self.protocol_name, b"")))
        except ValueError:
            return None  # the clients use a format of their own: while they are members, no offset of the group expires
        return topics

    def is_subscribed_to(self, topic: str) -> bool:
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self.subscribed_topics

    def _count_protocols(self, member: ClassicMember, by: int) -> None:
        support = self._protocol_support
        for name in member.protocols:
            count = support.get(name, 0) + by
            if count:
                support[name] = count
            else:
                support.pop(name, None)

    # -- checks -------------------------------------------------------------------------------------------------

    def validate_member(self, member_id: str, group_instance_id: str | None) -> None:
        """Raise UnknownMemberIdError, or FencedInstanceIdError when the static member has another id now."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                raise UnknownMemberIdError
            if current != member_id:
                raise FencedInstanceIdError
        if member_id not in self.members:
            raise UnknownMemberIdError

    def validate_offset_commit(self, committer: Committer) -> None:
        """Check that this client may commit now. OffsetCommit v0-10, TxnOffsetCommit v0-5.

        Raises CoordinatorNotAvailableError, UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError,
        RebalanceInProgressError.
        """
        if self.state is DEAD:
            raise CoordinatorNotAvailableError
        if committer.generation_id < 0 and self.state is EMPTY:
            return  # an admin client, or a consumer that manages its partitions itself
        if not committer.is_anonymous:
            self.validate_member(committer.member_id, committer.instance_id)
            if committer.generation_id != self.generation_id:
                raise IllegalGenerationError
        elif not committer.is_transactional:
            raise UnknownMemberIdError  # a commit without member id is accepted only while the group has no members
        if not committer.is_transactional and self.state is COMPLETING_REBALANCE:
            raise RebalanceInProgressError

    def validate_delete(self) -> None:
        """Raise NonEmptyGroupError unless the group has no members."""
        if self.state is not EMPTY and self.state is not DEAD:
            raise NonEmptyGroupError

    def validate_offset_delete(self) -> None:
        """Raise NonEmptyGroupError if the group has members and is not of protocol type "consumer". OffsetDelete v0."""
        if self.state is not EMPTY and self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise NonEmptyGroupError

    def retention_start_ms(self, commit_timestamp_ms: int) -> int | None:
        """Return when the retention of a committed offset begins, in ms of the wall clock; None if the offset does not
        expire in the group's current state (KIP-211)."""
        if self.protocol_type is None:
            return commit_timestamp_ms
        if self.state is EMPTY:
            return commit_timestamp_ms if self.state_timestamp_ms is None else self.state_timestamp_ms
        if self.state is STABLE and self.subscribed_topics is not None:
            return commit_timestamp_ms
        return None


def parse_subscribed_topics(metadata: bytes) -> list[str]:
    """Parse the topics of a ConsumerProtocolSubscription: after an int16 version, all versions begin as version 0 does.

    Raises ValueError for other bytes. Source: ConsumerProtocolSubscription v0-3.
    """
    try:
        (count,) = struct.unpack_from(">i", metadata, 2)
        position = 6
        if count * 2 > len(metadata):
            raise ValueError("more topics than bytes")
        topics = []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, position)
            position += 2
            if length < 0 or position + length > len(metadata):
                raise ValueError("a topic name ends after the subscription")
            topics.append(str(metadata[position : position + length], "utf-8"))
            position += length
        return topics
    except struct.error as error:
        raise ValueError("the subscription is truncated") from error
