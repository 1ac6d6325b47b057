"""A member of a consumer group (classic protocol): joins, is assigned partitions, heartbeats, commits, leaves.

``poll`` joins or heartbeats when that is due, and returns whether there is a new assignment. The leader of the group
assigns ranges, as Kafka's RangeAssignor does. One thread: only ``poll`` sends heartbeats, so the time between two polls
must be below the session timeout.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from tidelog.client.admin.offsets import TopicPartition
from tidelog.client.cluster import GROUP, Cluster, ask, raise_for_code
from tidelog.protocol.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from tidelog.protocol.messages.consumer_protocol import (
    TopicPartition as TopicPartitions,
)
from tidelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from tidelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 300_000
"""As max.poll.interval.ms of Kafka's consumers. A member that sends nothing is removed after SESSION_TIMEOUT_MS."""
JOIN_TIMEOUT_S = REBALANCE_TIMEOUT_MS / 1000 + 5
"""Timeout of JoinGroup, whose answer comes when all members have joined; Kafka's consumers add five seconds, too."""
HEARTBEAT_S = 3.0
PROTOCOL_TYPE = "consumer"
ASSIGNOR = "range"
_SUBSCRIPTION_VERSION = 1
_COMMIT = 9
"""The newest version of OffsetCommit with topic names; from 10 on it has topic ids."""
REJOINS = (IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError)
"""Errors after which a member joins again, when it is polled."""


class GroupMember:
    """A member that subscribes to ``topics``. ``assignment`` has its partitions while it belongs to a generation."""

    def __init__(self, cluster: Cluster, group: str, topics: Sequence[str], before_rejoin: Callable[[], None]) -> None:
        """``before_rejoin`` is called while the member still has its partitions, to commit offsets."""
        self._cluster = cluster
        self._before_rejoin = before_rejoin
        self._group = group
        self._topics = sorted(topics)
        self._member_id = ""
        self._generation = -1
        self._next_heartbeat = 0.0
        self.assignment: list[TopicPartition] = []

    def poll(self) -> bool:
        """Join or heartbeat, if due; return whether there is a new assignment. Raises ClientError, KafkaError."""
        if self._generation >= 0:
            if time.monotonic() < self._next_heartbeat:
                return False
            try:
                self._heartbeat()
            except REJOINS as error:
                if isinstance(error, RebalanceInProgressError):
                    self._before_rejoin()
                self._forget(error)
            else:
                return False
        self._join_until_assigned()
        return True

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the offsets of the next records to read. Raises ClientError, KafkaError."""
        if offsets:
            commit_offsets(self._cluster, self._group, offsets, self._generation, self._member_id)

    def leave(self) -> None:
        """Leave the group, so that others get the partitions at once. Raises ClientError, KafkaError."""
        if not self._member_id:
            return
        request = LeaveGroupRequest(
            group_id=self._group, member_id=self._member_id, members=[MemberIdentity(member_id=self._member_id)]
        )
        client = self._cluster.coordinator(self._group, GROUP)
        answer = ask(client, request, LeaveGroupResponse, LeaveGroupRequest.VERSIONS.highest)
        raise_for_code(answer.error_code, f"leaving group {self._group}")
        self._generation, self._member_id, self.assignment = -1, "", []

    def _join_until_assigned(self) -> None:
        while self._generation < 0:
            try:
                self._cluster.retry_until_settled(self._join)
            except REJOINS as error:
                self._forget(error)
        self._next_heartbeat = time.monotonic() + HEARTBEAT_S

    def _forget(self, error: Exception) -> None:
        self._generation, self.assignment = -1, []
        if isinstance(error, UnknownMemberIdError | FencedInstanceIdError):
            self._member_id = ""

    def _join(self) -> None:
        subscription = ConsumerProtocolSubscription(topics=self._topics).encode_prefixed(_SUBSCRIPTION_VERSION)
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self._member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=ASSIGNOR, metadata=subscription)],
        )
        client = self._cluster.coordinator(self._group, GROUP)
        with client.extend_timeout(JOIN_TIMEOUT_S):
            joined = ask(client, request, JoinGroupResponse, JoinGroupRequest.VERSIONS.highest)
            if joined.error_code == MemberIdRequiredError.code:
                self._member_id = joined.member_id
                request.member_id = joined.member_id
                joined = ask(client, request, JoinGroupResponse, JoinGroupRequest.VERSIONS.highest)
        raise_for_code(joined.error_code, f"joining group {self._group}")
        self._member_id = joined.member_id
        leads = joined.leader == joined.member_id and not joined.skip_assignment
        sync = SyncGroupRequest(
            group_id=self._group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=self._assign(joined.members) if leads else [],
        )
        synced = ask(client, sync, SyncGroupResponse, SyncGroupRequest.VERSIONS.highest)
        raise_for_code(synced.error_code, f"joining group {self._group}")
        assigned = ConsumerProtocolAssignment.decode_prefixed_lenient(synced.assignment).assigned_partitions
        self.assignment = [(one.topic, number) for one in assigned for number in one.partitions]
        self._generation = joined.generation_id

    def _assign(self, members: Sequence[JoinGroupResponseMember]) -> list[SyncGroupRequestAssignment]:
        topics_of = {
            member.member_id: set(ConsumerProtocolSubscription.decode_prefixed_lenient(member.metadata).topics)
            for member in members
        }
        counts = {topic: self._count_partitions(topic) for topic in sorted(set().union(*topics_of.values()))}
        assigned = assign_ranges(topics_of, counts)
        return [
            SyncGroupRequestAssignment(
                member_id=member,
                assignment=ConsumerProtocolAssignment(
                    assigned_partitions=[TopicPartitions(topic=name, partitions=found) for name, found in mine.items()]
                ).encode_prefixed(_SUBSCRIPTION_VERSION),
            )
            for member, mine in assigned.items()
        ]

    def _count_partitions(self, topic: str) -> int:
        """Return the number of a topic's partitions; 0 for a missing topic, which another member may subscribe to.

        Raises ClientError, KafkaError.
        """
        try:
            return self._cluster.partition_count(topic)
        except UnknownTopicOrPartitionError:
            return 0

    def _heartbeat(self) -> None:
        request = HeartbeatRequest(group_id=self._group, generation_id=self._generation, member_id=self._member_id)
        client = self._cluster.coordinator(self._group, GROUP)
        answer = ask(client, request, HeartbeatResponse, HeartbeatRequest.VERSIONS.highest)
        raise_for_code(answer.error_code, f"group {self._group}")
        self._next_heartbeat = time.monotonic() + HEARTBEAT_S


def assign_ranges(topics_of: Mapping[str, set[str]], counts: Mapping[str, int]) -> dict[str, dict[str, list[int]]]:
    """Divide each topic's partitions into ranges, one per subscribed member, as Kafka's RangeAssignor does."""
    assigned: dict[str, dict[str, list[int]]] = {member: {} for member in sorted(topics_of)}
    for topic, count in counts.items():
        members = [member for member in assigned if topic in topics_of[member]]
        size, longer = divmod(count, len(members))
        start = 0
        for number, member in enumerate(members):
            end = start + size + (number < longer)
            if end > start:
                assigned[member][topic] = list(range(start, end))
            start = end
    return assigned


def commit_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int], generation: int = -1, member_id: str = ""
) -> None:
    """Commit offsets of a member, or without ``member_id`` of a group that has no members. Raises ClientError,
    KafkaError."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
    for (topic, partition), offset in offsets.items():
        topics[topic].append(
            OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata="")
        )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(name=name, partitions=found) for name, found in topics.items()],
    )

    def commit() -> None:
        answer = ask(cluster.coordinator(group, GROUP), request, OffsetCommitResponse, _COMMIT)
        for topic in answer.topics:
            for one in topic.partitions:
                raise_for_code(one.error_code, f"commit of group {group} for {topic.name}-{one.partition_index}")

    cluster.retry_until_settled(commit)
