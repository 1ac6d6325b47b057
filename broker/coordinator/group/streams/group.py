"""A streams group of KIP-1071: its members, the application's topology, and the tasks of each member.

    Empty         no members
    NotReady      topics of the topology are missing, or have wrong partition counts
    Assigning     the group epoch is above the target assignment's
    Reconciling   the current assignment of some member differs from its target
    Stable        the current assignment of every member is its target

A task is a partition of a subtopology. It is active on one member; standby tasks keep copies of its state on others. No
process has a task twice. No member gets an active task before the task's former owner has reported to have given it up,
or was removed.

Only ``replay`` changes the durable state. A restart loses the soft state: the configured topology,
``metadata_version``, the epoch of endpoints, and the member that requested the shutdown of the application. Loop thread
only.

Source: KIP-1071 as of Kafka 4.3; records 17 and 19 to 23 of ``__consumer_offsets``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tidelog.broker.coordinator.group.consumer.group import FIRST_COMMIT_WITH_EPOCH
from tidelog.broker.coordinator.group.modern_group import EpochGroup
from tidelog.broker.coordinator.group.streams.topology import ConfiguredTopology, Topology
from tidelog.broker.coordinator.runtime.committer import Committer, committing_member
from tidelog.protocol.errors import StaleMemberEpochError, UnsupportedVersionError

FIRST_EPOCH = 1

Tasks = Mapping[str, frozenset[int]]
"""Subtopology id -> partitions."""
TaskId = tuple[str, int]
"""Subtopology id and partition."""


class StreamsGroupState(Enum):
    """State of a streams group; the value is its name in the admin APIs."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class StreamsMemberState(Enum):
    """State of a member's reconciliation; the values are those in the log."""

    STABLE = 0
    UNREVOKED_TASKS = 1
    UNRELEASED_TASKS = 2


class TaskSet(NamedTuple):
    """Tasks of one member, by role. Warm-up tasks are in the protocol, but are never assigned."""

    active: Tasks = {}  # noqa: RUF012 - never changed
    standby: Tasks = {}  # noqa: RUF012 - never changed
    warmup: Tasks = {}  # noqa: RUF012 - never changed

    def intersects(self, other: TaskSet) -> bool:
        """Return whether both have a task in common, in the same role."""
        return any(
            not partitions.isdisjoint(theirs.get(name, frozenset()))
            for mine, theirs in zip(self, other, strict=True)
            for name, partitions in mine.items()
        )

    def is_within(self, other: TaskSet) -> bool:
        """Return whether the other has all these tasks in the same roles."""
        return all(
            partitions <= theirs.get(name, frozenset())
            for mine, theirs in zip(self, other, strict=True)
            for name, partitions in mine.items()
        )


NO_TASKS = TaskSet()


def each_task(tasks: Tasks) -> Iterator[TaskId]:
    """Iterate over tasks one by one."""
    return ((name, partition) for name, partitions in tasks.items() for partition in partitions)


class Endpoint(NamedTuple):
    """Host and port at which a member answers interactive queries of its state."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class StreamsMemberSpec:
    """Metadata that a member sent (StreamsGroupMemberMetadata)."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class StreamsAssignment:
    """Current assignment of a member (StreamsGroupCurrentMemberAssignment)."""

    epoch: int = 0
    previous_epoch: int = 0
    state: StreamsMemberState = StreamsMemberState.STABLE
    assigned: TaskSet = NO_TASKS
    pending_revocation: TaskSet = NO_TASKS
    epochs: Mapping[TaskId, int] = field(default_factory=dict)
    """Active task -> epoch in which it was assigned to the member; also tasks to revoke."""


NEW_STREAMS_MEMBER = StreamsAssignment()


class StreamsMember:
    """One member, a thread of a process. ``spec`` and ``current`` are immutable values, which are replaced."""

    __slots__ = ("current", "member_id", "spec")

    def __init__(self, member_id: str, spec: StreamsMemberSpec) -> None:
        self.member_id = member_id
        self.spec = spec
        self.current = NEW_STREAMS_MEMBER

    def check_epoch(self, epoch: int) -> None:
        """Raise StaleMemberEpochError for another epoch than the member's."""
        if epoch != self.current.epoch:
            raise StaleMemberEpochError


class StreamsGroup(EpochGroup[StreamsMember, TaskSet]):
    """One group; loop thread only.

    ``validated_epoch`` is the epoch of the topology if the existing topics satisfied it when they were last compared,
    else -1. ``endpoint_epoch`` rises when a member with an endpoint joins or its tasks change. ``shutdown_member``
    requested the shutdown of the application.
    """

    group_type = "Streams"
    protocol_type = "streams"

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.epoch = self.assignment_epoch = FIRST_EPOCH
        self.topology: Topology | None = None
        self.validated_epoch = -1
        self.assignment_configs: Mapping[str, str] = {}
        self.configured: ConfiguredTopology | None = None
        self.endpoint_epoch = 0
        self.shutdown_member: str | None = None

    @property
    def state(self) -> StreamsGroupState:
        """State of the group, computed from its epochs and topology; it is not stored."""
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_epoch:
            return StreamsGroupState.NOT_READY
        if self.epoch > self.assignment_epoch:
            return StreamsGroupState.ASSIGNING
        if all(is_reconciled(member.current, self.assignment_epoch) for member in self.members.values()):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    def target_of(self, member_id: str) -> TaskSet:
        return self.target.get(member_id, NO_TASKS)

    def is_subscribed_to(self, topic: str) -> bool:
        return bool(self.members) and self.topology is not None and self.topology.reader_of(topic) is not None

    def remove_member(self, member_id: str) -> None:
        """Remove a member (a tombstone of StreamsGroupMemberMetadata)."""
        self.members.pop(member_id, None)
        if not self.members:
            self.shutdown_member = None

    # -- checks -------------------------------------------------------------------------------------------------

    def validate_offset_commit(self, committer: Committer) -> None:
        """Check that the committer is a member with its current epoch. Without members, an admin client may commit. A
        transactional producer that names no member may always commit.

        A member that does not know its newest epoch yet may commit for tasks that it had in the epoch that it sends.
        Raises UnknownMemberIdError, UnsupportedVersionError, StaleMemberEpochError.
        """
        member = committing_member(committer, self.members)
        if member is None:
            return
        if not committer.is_transactional and committer.version < FIRST_COMMIT_WITH_EPOCH:
            raise UnsupportedVersionError
        if committer.generation_id == member.current.epoch:
            return
        if committer.generation_id > member.current.epoch or not all(
            self._was_given(member, topic, partition, committer.generation_id)
            for topic, partition in committer.named_partitions()
        ):
            raise StaleMemberEpochError

    def _was_given(self, member: StreamsMember, topic: str, partition: int, epoch: int) -> bool:
        reader = None if self.topology is None else self.topology.reader_of(topic)
        given = None if reader is None else member.current.epochs.get((reader, partition))
        return given is not None and epoch >= given

    def validate_offset_delete(self) -> None:
        """Do nothing: the topology says which topics the members read, and each topic is checked by itself."""


def is_reconciled(current: StreamsAssignment, epoch: int) -> bool:
    """Return whether a current assignment is the target of this epoch."""
    return current.state is StreamsMemberState.STABLE and current.epoch == epoch
