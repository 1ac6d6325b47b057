"""Description of a streams group for admin clients: StreamsGroupDescribe. Pure functions. Source: KIP-1071."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.broker.coordinator.group.streams.group import StreamsGroup, StreamsMember, Tasks, TaskSet
from tidelog.broker.coordinator.group.streams.topology import InternalTopic
from tidelog.protocol.messages import streams_group_describe as schema


def describe_streams_group(group: StreamsGroup) -> schema.DescribedGroup:
    """Build the description of a group for StreamsGroupDescribe v0."""
    return schema.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        topology=_topology(group),
        members=[_member(group, member) for member in group.members.values()],
    )


def _topology(group: StreamsGroup) -> schema.Topology | None:
    """Build the description of the topology: of the configured one if it is ready, because it has partition counts."""
    if group.topology is None:
        return None
    configured = group.configured
    parts: Iterable[schema.Subtopology]
    if configured is not None and configured.is_ready and configured.subtopologies is not None:
        parts = [
            _subtopology(name, part.source_topics, part.repartition_sinks, part.changelogs, part.repartition_sources)
            for name, part in configured.subtopologies.items()
        ]
    else:
        parts = [
            _subtopology(
                part.subtopology_id,
                part.source_topics,
                part.repartition_sinks,
                part.changelogs,
                part.repartition_sources,
            )
            for part in group.topology.subtopologies
        ]
    return schema.Topology(epoch=group.topology.epoch, subtopologies=list(parts))


def _subtopology(
    name: str,
    sources: Iterable[str],
    sinks: Iterable[str],
    changelogs: Iterable[InternalTopic],
    repartitions: Iterable[InternalTopic],
) -> schema.Subtopology:
    return schema.Subtopology(
        subtopology_id=name,
        source_topics=sorted(sources),
        repartition_sink_topics=sorted(sinks),
        state_changelog_topics=_topics(changelogs),
        repartition_source_topics=_topics(repartitions),
    )


def _topics(topics: Iterable[InternalTopic]) -> list[schema.TopicInfo]:
    return [
        schema.TopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=[schema.KeyValue(key=key, value=text) for key, text in topic.configs],
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]


def _member(group: StreamsGroup, member: StreamsMember) -> schema.Member:
    spec, endpoint = member.spec, member.spec.user_endpoint
    return schema.Member(
        member_id=member.member_id,
        member_epoch=member.current.epoch,
        rack_id=spec.rack_id,
        client_id=spec.client_id,
        client_host=spec.client_host,
        topology_epoch=spec.topology_epoch,
        process_id=spec.process_id,
        user_endpoint=None if endpoint is None else schema.Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=[schema.KeyValue(key=key, value=text) for key, text in spec.client_tags],
        assignment=_assignment(member.current.assigned),
        target_assignment=_assignment(group.target_of(member.member_id)),
    )


def _assignment(tasks: TaskSet) -> schema.Assignment:
    active, standby, warmup = map(_task_ids, tasks)
    return schema.Assignment(active_tasks=active, standby_tasks=standby, warmup_tasks=warmup)


def _task_ids(tasks: Tasks) -> list[schema.TaskIds]:
    return [
        schema.TaskIds(subtopology_id=name, partitions=sorted(partitions)) for name, partitions in sorted(tasks.items())
    ]
