"""A share group: its members, their assignments, and the partitions with a share state. Only ``replay`` changes it.

    Empty     no members
    Stable    has members: a share group has no rebalance that members wait for

Several members may read one partition; none owns any. At its next heartbeat a member gets its target as its current
assignment, in one step. ``initialized`` has the partitions with a state in ``__share_group_state``; only they are
assigned. ``deleting`` has the topics whose states are being deleted: some states may still exist, but they are not
used.

Source: KIP-932; records 10 to 15 of ``__consumer_offsets``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tidelog.broker.coordinator.group.assignors import Assignment
from tidelog.broker.coordinator.group.modern_group import ModernGroup
from tidelog.broker.coordinator.runtime.committer import Committer
from tidelog.protocol.errors import GroupIdNotFoundError


class ShareGroupState(Enum):
    """State of a share group; the value is its name in the admin APIs."""

    EMPTY = "Empty"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class ShareSubscription:
    """Subscription and metadata that a member sent (ShareGroupMemberMetadata)."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareAssignment:
    """Current assignment of a member (ShareGroupCurrentMemberAssignment)."""

    epoch: int = 0
    previous_epoch: int = 0
    assigned: Assignment = field(default_factory=dict)


NEW_SHARE_MEMBER = ShareAssignment()


class InitializedTopic(NamedTuple):
    """A topic's partitions that have a state (ShareGroupStatePartitionMetadata)."""

    name: str
    partitions: frozenset[int]


InitializedTopics = Mapping[bytes, InitializedTopic]
"""Topic id -> the topic's partitions that have a state."""
DeletingTopics = Mapping[bytes, str]
"""Topic id -> name of a topic whose states are being deleted."""


class ShareMember:
    """One member. ``subscription`` and ``current`` are immutable values, which are replaced."""

    __slots__ = ("current", "member_id", "subscription")

    def __init__(self, member_id: str, subscription: ShareSubscription) -> None:
        self.member_id = member_id
        self.subscription = subscription
        self.current = NEW_SHARE_MEMBER


class ShareGroup(ModernGroup[ShareMember]):
    """One group; loop thread only."""

    group_type = "Share"
    protocol_type = "share"

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.initialized: InitializedTopics = {}
        self.deleting: DeletingTopics = {}

    @property
    def state(self) -> ShareGroupState:
        """State of the group, computed from its members; it is not stored."""
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    def topics_with_states(self) -> dict[bytes, str]:
        """Return id and name of the topics that have states in ``__share_group_state``, including states that are being
        deleted.
        """
        return {**{topic_id: known.name for topic_id, known in self.initialized.items()}, **self.deleting}

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in member.subscription.topic_names for member in self.members.values())

    # -- checks -------------------------------------------------------------------------------------------------

    def validate_offset_commit(self, committer: Committer) -> None:
        """Refuse the commit: share groups have no committed offsets. Raises GroupIdNotFoundError."""
        raise GroupIdNotFoundError(f"Group {self.group_id} is not a consumer group.")

    def validate_offset_delete(self) -> None:
        """Refuse to delete offsets. Raises GroupIdNotFoundError."""
        raise GroupIdNotFoundError(f"Group {self.group_id} is not a consumer group.")
