"""Descriptions of groups for admin clients: DescribeGroups, ConsumerGroupDescribe, ShareGroupDescribe and ListGroups.

The subscriptions and assignments of a classic group's members are included only while the group is stable, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tidelog.broker.coordinator.group.assignors import Assignment
from tidelog.broker.coordinator.group.classic.group import STABLE, ClassicGroup, ClassicMember
from tidelog.broker.coordinator.group.consumer.draft import preferred_assignor
from tidelog.broker.coordinator.group.consumer.group import ConsumerGroup, ConsumerMember
from tidelog.broker.coordinator.group.share.group import ShareGroup, ShareMember
from tidelog.protocol.messages.consumer_group_describe import Assignment as DescribedAssignment
from tidelog.protocol.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from tidelog.protocol.messages.consumer_group_describe import Member, TopicPartitions
from tidelog.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from tidelog.protocol.messages.list_groups import ListedGroup
from tidelog.protocol.messages.share_group_describe import Assignment as DescribedShareAssignment
from tidelog.protocol.messages.share_group_describe import DescribedGroup as DescribedShareGroup
from tidelog.protocol.messages.share_group_describe import Member as DescribedShareMember
from tidelog.protocol.messages.share_group_describe import TopicPartitions as ShareTopicPartitions

if TYPE_CHECKING:
    from tidelog.broker.coordinator.group.replay import Group


def describe_classic_group(group: ClassicGroup) -> DescribedGroup:
    """Answer DescribeGroups v0-6 for a classic group."""
    protocol = group.protocol_name if group.state is STABLE else None
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=[_describe_member(member, protocol) for member in group.members.values()],
    )


def dead_group(group_id: str) -> DescribedGroup:
    """Build the description of a group that does not exist or is not classic."""
    return DescribedGroup(group_id=group_id, group_state="Dead")


def _describe_member(member: ClassicMember, protocol: str | None) -> DescribedGroupMember:
    described = DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
    )
    if protocol is not None:
        described.member_metadata = member.protocols.get(protocol, b"")
        described.member_assignment = member.assignment
    return described


_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1  # values of MemberType in ConsumerGroupDescribe


def describe_consumer_group(
    group: ConsumerGroup, topic_names: Mapping[bytes, str], default_assignor: str
) -> DescribedConsumerGroup:
    """Answer ConsumerGroupDescribe v0-1."""
    subscriptions = [member.subscription for member in group.members.values()]
    return DescribedConsumerGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=preferred_assignor(subscriptions, default_assignor),
        members=[_describe_consumer(group, member, topic_names) for member in group.members.values()],
    )


def _describe_consumer(group: ConsumerGroup, member: ConsumerMember, topic_names: Mapping[bytes, str]) -> Member:
    subscription = member.subscription
    return Member(
        member_id=member.member_id,
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        member_epoch=member.current.epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=list(subscription.topic_names),
        subscribed_topic_regex=subscription.topic_regex or "",
        assignment=_describe_assignment(member.current.assigned, topic_names),
        target_assignment=_describe_assignment(group.target_of(member.member_id), topic_names),
        member_type=_CONSUMER_MEMBER if subscription.classic is None else _CLASSIC_MEMBER,
    )


def _describe_assignment(assignment: Assignment, topic_names: Mapping[bytes, str]) -> DescribedAssignment:
    return DescribedAssignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=topic_names[topic_id], partitions=sorted(indexes))
            for topic_id, indexes in assignment.items()
            if topic_id in topic_names
        ]
    )


SIMPLE_ASSIGNOR = "simple"


def describe_share_group(group: ShareGroup, topic_names: Mapping[bytes, str]) -> DescribedShareGroup:
    """Answer ShareGroupDescribe v1."""
    return DescribedShareGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=SIMPLE_ASSIGNOR,
        members=[_describe_share_member(member, topic_names) for member in group.members.values()],
    )


def _describe_share_member(member: ShareMember, topic_names: Mapping[bytes, str]) -> DescribedShareMember:
    subscription = member.subscription
    return DescribedShareMember(
        member_id=member.member_id,
        rack_id=subscription.rack_id,
        member_epoch=member.current.epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=list(subscription.topic_names),
        assignment=DescribedShareAssignment(
            topic_partitions=[
                ShareTopicPartitions(topic_id=topic_id, topic_name=topic_names[topic_id], partitions=sorted(indexes))
                for topic_id, indexes in member.current.assigned.items()
                if topic_id in topic_names
            ]
        ),
    )


def list_groups(groups: Iterable[Group], states: Iterable[str], types: Iterable[str]) -> list[ListedGroup]:
    """Answer ListGroups v0-5. An empty filter matches all groups; names are compared without case."""
    wanted_states = {state.lower() for state in states}
    wanted_types = {name.lower() for name in types}
    return [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=group.group_type.lower(),
        )
        for group in groups
        if (not wanted_states or group.state.value.lower() in wanted_states)
        and (not wanted_types or group.group_type.lower() in wanted_types)
    ]
