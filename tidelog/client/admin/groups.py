"""Requests that list groups of a cluster, describe them with their lag, and delete them or their offsets."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from tidelog.client.admin.offsets import TopicPartition, log_ends
from tidelog.client.admin.topics import NO_LEADER, Topic, list_topics
from tidelog.client.cluster import GROUP, Address, Cluster, ask, raise_for_code
from tidelog.client.connection import Client, ClientError
from tidelog.protocol.errors import GroupIdNotFoundError, KafkaError
from tidelog.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from tidelog.protocol.messages.consumer_group_describe import DescribedGroup as ConsumerDescribedGroup
from tidelog.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from tidelog.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tidelog.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tidelog.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from tidelog.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tidelog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from tidelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from tidelog.protocol.messages.share_group_describe import DescribedGroup as ShareDescribedGroup
from tidelog.protocol.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from tidelog.protocol.messages.streams_group_describe import (
    Assignment,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from tidelog.protocol.types import Buffer

PROTOCOL_TYPE = "consumer"
CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"
_OFFSET_FETCH_ONE = 7
"""The newest OffsetFetch for a single group; from version 8 on it has a list of groups."""
_DESCRIBE_CLASSIC = 5
"""The newest DescribeGroups that describes a missing group as Dead, instead of an error."""


class ListedGroup(NamedTuple):
    """One group; ``state`` is empty if the broker's version does not return it."""

    group: str
    type: str
    state: str
    protocol: str


class Member(NamedTuple):
    """A member and its partitions; a member of a streams group has tasks instead."""

    id: str
    client_id: str
    host: str
    partitions: list[TopicPartition]
    tasks: Sequence[str] = ()
    """Names as in Kafka Streams: ``0_1`` is subtopology 0, partition 1; `` standby`` or `` warm-up`` may follow."""


class PartitionLag(NamedTuple):
    """A partition of a group: committed offset, end of the log, the lag between them, and the id of its member.

    What is unknown is None. For a share group ``committed`` is the start offset, and end and member are None.
    """

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    member: str | None


class Group(NamedTuple):
    """A group with its members and its partitions."""

    group: str
    type: str
    state: str
    assignor: str
    members: list[Member]
    partitions: list[PartitionLag]

    @property
    def lag(self) -> int:
        """The sum of the known lags: the group's lag is at least this."""
        return sum(one.lag or 0 for one in self.partitions)

    @property
    def is_lag_known(self) -> bool:
        """Return whether the lag of each partition is known, or no record was ever written to the partition."""
        return all(one.lag is not None or one.end == 0 for one in self.partitions)

    @property
    def lag_text(self) -> str:
        """The group's lag as text: a number, ``at least`` and a number, or ``unknown``."""
        if self.is_lag_known:
            return str(self.lag)
        return f"at least {self.lag}" if self.lag else "unknown"


def list_groups(cluster: Cluster) -> list[ListedGroup]:
    """List the groups of all brokers. Raises ClientError, KafkaError."""
    return sorted(group for address in cluster.brokers().values() for group in groups_at(cluster, address))


def groups_at(cluster: Cluster, address: Address) -> list[ListedGroup]:
    """List the groups that one broker coordinates. Raises ClientError, KafkaError."""
    return _groups_at(cluster, cluster.client_for(address))


def describe_group(cluster: Cluster, group: str, *, allow_silent_leaders: bool = False) -> Group:
    """Return a group's members, offsets and lag. The lag of a partition without a leader is unknown.

    With ``allow_silent_leaders`` the lag is also unknown if the leader does not answer, or answers with an error.
    Raises ClientError, KafkaError, also when the group does not exist.
    """
    return cluster.retry_until_settled(lambda: _describe_group(cluster, group, allow_silent_leaders))


def _describe_group(cluster: Cluster, group: str, allow_silent_leaders: bool) -> Group:
    client = cluster.coordinator(group, GROUP)
    listed = next((one for one in _groups_at(cluster, client) if one.group == group), None)
    if listed is None:
        raise GroupIdNotFoundError(f"group {group}: there is no such group")
    state, assignor, members = _MEMBERS[listed.type](client, group)
    is_share = listed.type == SHARE
    lags = _share_lags(client, group) if is_share else _lags(cluster, group, members, allow_silent_leaders)
    return Group(group, listed.type, state, assignor, members, lags)


def committed_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, int]:
    """Return the committed offsets of these partitions, or of all; partitions without one are left out.

    Raises ClientError, KafkaError.
    """
    topics = None
    if partitions is not None:
        topics = [
            OffsetFetchRequestTopic(name=name, partition_indexes=numbers)
            for name, numbers in _group_by_topic(partitions).items()
        ]
    request = OffsetFetchRequest(group_id=group, topics=topics, require_stable=True)

    def fetch() -> dict[TopicPartition, int]:
        client = cluster.coordinator(group, GROUP)
        answer = ask(client, request, OffsetFetchResponse, _OFFSET_FETCH_ONE)
        raise_for_code(answer.error_code, f"offsets of group {group}")
        found = {}
        for topic in answer.topics:
            for one in topic.partitions:
                raise_for_code(one.error_code, f"offset of group {group} for {topic.name}-{one.partition_index}")
                if one.committed_offset >= 0:
                    found[topic.name, one.partition_index] = one.committed_offset
        return found

    return cluster.retry_until_settled(fetch)


def delete_group(cluster: Cluster, group: str) -> None:
    """Delete a group that has no members. Raises ClientError, KafkaError."""

    def delete() -> None:
        client = cluster.coordinator(group, GROUP)
        request = DeleteGroupsRequest(groups_names=[group])
        (answer,) = ask(client, request, DeleteGroupsResponse, DeleteGroupsRequest.VERSIONS.highest).results
        raise_for_code(answer.error_code, f"group {group}")

    cluster.retry_until_settled(delete)


def delete_offsets(cluster: Cluster, group: str, partitions: Iterable[TopicPartition]) -> None:
    """Delete the committed offsets of partitions that no member reads. Raises ClientError, KafkaError."""
    topics = [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=number) for number in numbers]
        )
        for name, numbers in _group_by_topic(partitions).items()
    ]
    request = OffsetDeleteRequest(group_id=group, topics=topics)

    def delete() -> None:
        answer = ask(cluster.coordinator(group, GROUP), request, OffsetDeleteResponse, 0)
        raise_for_code(answer.error_code, f"group {group}")
        for topic in answer.topics:
            for one in topic.partitions:
                raise_for_code(one.error_code, f"offset of group {group} for {topic.name}-{one.partition_index}")

    cluster.retry_until_settled(delete)


def _groups_at(cluster: Cluster, client: Client) -> list[ListedGroup]:
    def list_them() -> list[ListedGroup]:
        answer = ask(client, ListGroupsRequest(), ListGroupsResponse, ListGroupsRequest.VERSIONS.highest)
        raise_for_code(answer.error_code, f"groups of {client.bootstrap}")
        return [
            ListedGroup(one.group_id, one.group_type.lower() or CLASSIC, one.group_state, one.protocol_type)
            for one in answer.groups
        ]

    return cluster.retry_until_settled(list_them)


def _classic_members(client: Client, group: str) -> _Described:
    request = DescribeGroupsRequest(groups=[group])
    (answer,) = ask(client, request, DescribeGroupsResponse, _DESCRIBE_CLASSIC).groups
    raise_for_code(answer.error_code, f"group {group}", answer.error_message)
    members = [
        Member(
            one.member_id,
            one.client_id,
            one.client_host,
            _decode_assignment(one.member_assignment, answer.protocol_type),
        )
        for one in answer.members
    ]
    return answer.group_state, answer.protocol_data, members


def _decode_assignment(assignment: Buffer, protocol_type: str) -> list[TopicPartition]:
    if protocol_type != PROTOCOL_TYPE or not assignment:
        return []
    decoded = ConsumerProtocolAssignment.decode_prefixed_lenient(assignment)
    return [(one.topic, number) for one in decoded.assigned_partitions for number in one.partitions]


def _consumer_members(client: Client, group: str) -> _Described:
    request = ConsumerGroupDescribeRequest(group_ids=[group])
    highest = ConsumerGroupDescribeRequest.VERSIONS.highest
    (answer,) = ask(client, request, ConsumerGroupDescribeResponse, highest).groups
    raise_for_code(answer.error_code, f"group {group}", answer.error_message)
    return _describe_members(answer)


def _share_members(client: Client, group: str) -> _Described:
    request = ShareGroupDescribeRequest(group_ids=[group])
    (answer,) = ask(client, request, ShareGroupDescribeResponse, ShareGroupDescribeRequest.VERSIONS.highest).groups
    raise_for_code(answer.error_code, f"group {group}", answer.error_message)
    return _describe_members(answer)


def _describe_members(answer: ConsumerDescribedGroup | ShareDescribedGroup) -> _Described:
    members = [
        Member(one.member_id, one.client_id, one.client_host,
               [(part.topic_name, number) for part in one.assignment.topic_partitions for number in part.partitions])
        for one in answer.members
    ]  # fmt: skip
    return answer.group_state, answer.assignor_name, members


def _streams_members(client: Client, group: str) -> _Described:
    """Return the members of a streams group, which have tasks instead of partitions."""
    request = StreamsGroupDescribeRequest(group_ids=[group])
    (answer,) = ask(client, request, StreamsGroupDescribeResponse, StreamsGroupDescribeRequest.VERSIONS.highest).groups
    raise_for_code(answer.error_code, f"group {group}", answer.error_message)
    members = [
        Member(one.member_id, one.client_id, one.client_host, [], _task_names(one.assignment)) for one in answer.members
    ]
    return answer.group_state, "", members


def _task_names(assignment: Assignment) -> list[str]:
    """Return the names of a member's tasks: active, standby, warm-up."""
    kinds = (
        (assignment.active_tasks, ""),
        (assignment.standby_tasks, " standby"),
        (assignment.warmup_tasks, " warm-up"),
    )
    return [
        f"{one.subtopology_id}_{number}{kind}" for tasks, kind in kinds for one in tasks for number in one.partitions
    ]


_Described = tuple[str, str, list[Member]]
"""State, assignor and members of a group."""
_MEMBERS = {
    CLASSIC: _classic_members,
    CONSUMER: _consumer_members,
    SHARE: _share_members,
    STREAMS: _streams_members,
}


def _lags(cluster: Cluster, group: str, members: Sequence[Member], allow_silent_leaders: bool) -> list[PartitionLag]:
    """Build the lag of each partition that has an offset or a member."""
    committed = committed_offsets(cluster, group)
    owners = {topic_partition: member.id for member in members for topic_partition in member.partitions}
    partitions = sorted({*committed, *owners})
    ends = _known_ends(cluster, partitions, allow_silent_leaders)
    lags = []
    for topic_partition in partitions:
        offset, end = committed.get(topic_partition), ends.get(topic_partition)
        lag = None if offset is None or end is None else max(0, end - offset)
        lags.append(PartitionLag(*topic_partition, offset, end, lag, owners.get(topic_partition)))
    return lags


def _share_lags(client: Client, group: str) -> list[PartitionLag]:
    """Return the lag of each share partition after its start offset, below which no record is delivered any more."""
    request = DescribeShareGroupOffsetsRequest(
        groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)]
    )
    highest = DescribeShareGroupOffsetsRequest.VERSIONS.highest
    (answer,) = ask(client, request, DescribeShareGroupOffsetsResponse, highest).groups
    raise_for_code(answer.error_code, f"group {group}", answer.error_message)
    return [
        PartitionLag(topic.topic_name, one.partition_index, one.start_offset if one.start_offset >= 0 else None, None,
                     one.lag if one.lag >= 0 else None, None)
        for topic in answer.topics for one in topic.partitions
    ]  # fmt: skip


def _known_ends(
    cluster: Cluster, partitions: Sequence[TopicPartition], allow_silent_leaders: bool
) -> dict[TopicPartition, int]:
    """Return the log ends of partitions that exist and have a leader.

    With ``allow_silent_leaders`` the partitions of a leader that does not answer, or answers with an error, are left
    out. Raises ClientError, KafkaError.
    """
    by_leader = _group_by_leader(list_topics(cluster), partitions)
    if not allow_silent_leaders:
        return log_ends(cluster, list(chain.from_iterable(by_leader)))
    ends: dict[TopicPartition, int] = {}
    for led_by_one in by_leader:
        with contextlib.suppress(ClientError, KafkaError):
            ends.update(log_ends(cluster, led_by_one))
    return ends


def _group_by_leader(topics: Iterable[Topic], partitions: Iterable[TopicPartition]) -> list[list[TopicPartition]]:
    """Group the existing partitions by leader; those without a leader are left out."""
    leaders = {(topic.name, one.partition): one.leader for topic in topics for one in topic.partitions}
    led: dict[int, list[TopicPartition]] = defaultdict(list)
    for topic_partition in partitions:
        if (leader := leaders.get(topic_partition, NO_LEADER)) != NO_LEADER:
            led[leader].append(topic_partition)
    return list(led.values())


def _group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        topics[topic].append(partition)
    return topics
