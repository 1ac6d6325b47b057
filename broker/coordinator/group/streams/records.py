"""Conversion between a streams group and its records in ``__consumer_offsets`` (types 17 and 19 to 23)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, NamedTuple

from tidelog.broker.coordinator.group.streams.group import (
    NEW_STREAMS_MEMBER,
    Endpoint,
    StreamsAssignment,
    StreamsGroup,
    StreamsMember,
    StreamsMemberSpec,
    StreamsMemberState,
    TaskId,
    Tasks,
    TaskSet,
)
from tidelog.broker.coordinator.group.streams.topology import InternalTopic, Topology, topology_of
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord
from tidelog.protocol.coordinator_records import streams as schema

Record = CoordinatorRecord
_STATES = {state.value for state in StreamsMemberState}


class GroupEpoch(NamedTuple):
    """Value of StreamsGroupMetadata: the group's epoch, and the values whose change raises it."""

    epoch: int
    metadata_hash: int
    validated_epoch: int
    assignment_configs: Mapping[str, str]


def streams_epoch_record(group_id: str, epoch: GroupEpoch | None) -> Record:
    """Build the record of the group's epoch; None removes the group."""
    value = None
    if epoch is not None:
        value = schema.StreamsGroupMetadataValue(
            epoch=epoch.epoch,
            metadata_hash=epoch.metadata_hash,
            validated_topology_epoch=epoch.validated_epoch,
            last_assignment_configs=[
                schema.LastAssignmentConfig(key=key, value=text)
                for key, text in sorted(epoch.assignment_configs.items())
            ],
        )
    return Record(schema.StreamsGroupMetadataKey(group_id=group_id), value)


def streams_member_record(group_id: str, member_id: str, spec: StreamsMemberSpec | None) -> Record:
    """Build the record of a member's metadata; None removes it."""
    value = None
    if spec is not None:
        endpoint = spec.user_endpoint
        value = schema.StreamsGroupMemberMetadataValue(
            instance_id=None,
            rack_id=spec.rack_id,
            client_id=spec.client_id,
            client_host=spec.client_host,
            rebalance_timeout_ms=spec.rebalance_timeout_ms,
            topology_epoch=spec.topology_epoch,
            process_id=spec.process_id,
            user_endpoint=None if endpoint is None else schema.Endpoint(host=endpoint.host, port=endpoint.port),
            client_tags=[schema.KeyValue(key=key, value=text) for key, text in spec.client_tags],
        )
    return Record(schema.StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id), value)


def streams_target_epoch_record(group_id: str, epoch: int, now_ms: int) -> Record:
    """Build the record of the epoch for which the target was computed, and when this was done."""
    value = schema.StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=now_ms)
    return Record(schema.StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def streams_target_record(group_id: str, member_id: str, target: TaskSet | None) -> Record:
    """Build the record of a member's target assignment; None removes it."""
    value = None
    if target is not None:
        active, standby, warmup = (
            [
                schema.TargetTaskIds(subtopology_id=name, partitions=sorted(partitions))
                for name, partitions in sorted(tasks.items())
            ]
            for tasks in target
        )
        value = schema.StreamsGroupTargetAssignmentMemberValue(
            active_tasks=active, standby_tasks=standby, warmup_tasks=warmup
        )
    return Record(schema.StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value)


def streams_current_record(group_id: str, member_id: str, current: StreamsAssignment | None) -> Record:
    """Build the record of a member's current assignment; None removes it."""
    value = None
    if current is not None:
        value = schema.StreamsGroupCurrentMemberAssignmentValue(
            member_epoch=current.epoch,
            previous_member_epoch=current.previous_epoch,
            state=current.state.value,
            active_tasks=_task_ids(current.assigned.active, current.epochs),
            standby_tasks=_task_ids(current.assigned.standby),
            warmup_tasks=_task_ids(current.assigned.warmup),
            active_tasks_pending_revocation=_task_ids(current.pending_revocation.active, current.epochs),
            standby_tasks_pending_revocation=_task_ids(current.pending_revocation.standby),
            warmup_tasks_pending_revocation=_task_ids(current.pending_revocation.warmup),
        )
    return Record(schema.StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), value)


def _task_ids(tasks: Tasks, epochs: Mapping[TaskId, int] | None = None) -> list[schema.TaskIds]:
    return [
        schema.TaskIds(
            subtopology_id=name,
            partitions=sorted(partitions),
            assignment_epochs=None if epochs is None else [epochs[name, index] for index in sorted(partitions)],
        )
        for name, partitions in sorted(tasks.items())
    ]


def topology_record(group_id: str, topology: Topology) -> Record:
    """Build the record of the application's topology."""
    value = schema.StreamsGroupTopologyValue(
        epoch=topology.epoch,
        subtopologies=[
            schema.Subtopology(
                subtopology_id=part.subtopology_id,
                source_topics=list(part.source_topics),
                source_topic_regex=list(part.source_topic_regex),
                state_changelog_topics=_topic_infos(part.changelogs),
                repartition_sink_topics=list(part.repartition_sinks),
                repartition_source_topics=_topic_infos(part.repartition_sources),
                copartition_groups=[
                    schema.CopartitionGroup(
                        source_topics=list(group.source_topics),
                        source_topic_regex=list(group.source_topic_regex),
                        repartition_source_topics=list(group.repartition_source_topics),
                    )
                    for group in part.copartition_groups
                ],
            )
            for part in topology.subtopologies
        ],
    )
    return Record(schema.StreamsGroupTopologyKey(group_id=group_id), value)


def _topic_infos(topics: Iterable[InternalTopic]) -> list[schema.TopicInfo]:
    return [
        schema.TopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=[schema.TopicConfig(key=key, value=text) for key, text in topic.configs],
        )
        for topic in topics
    ]


def streams_member_tombstones(group_id: str, member_id: str) -> list[Record]:
    """Build the tombstones of all records of one member."""
    return [
        streams_current_record(group_id, member_id, None),
        streams_target_record(group_id, member_id, None),
        streams_member_record(group_id, member_id, None),
    ]


def streams_group_tombstones(group: StreamsGroup) -> list[Record]:
    """Build the tombstones of all records of a group."""
    records = [record for member_id in group.members for record in streams_member_tombstones(group.group_id, member_id)]
    return [
        *records,
        Record(schema.StreamsGroupTargetAssignmentMetadataKey(group_id=group.group_id), None),
        Record(schema.StreamsGroupTopologyKey(group_id=group.group_id), None),
        streams_epoch_record(group.group_id, None),
    ]


def replay_streams(groups: MutableMapping[str, Any], key: Any, value: Any) -> None:
    """Apply one record. The first record creates the group, the tombstone of type 17 removes it."""
    group = groups.get(key.group_id)
    if key.__class__ is schema.StreamsGroupMetadataKey and value is None:
        if isinstance(group, StreamsGroup):
            del groups[key.group_id]
        return
    if not isinstance(group, StreamsGroup):
        if value is None:
            return
        group = groups[key.group_id] = StreamsGroup(key.group_id)
    _REPLAYS[key.__class__](group, key, value)


def _replay_epoch(group: StreamsGroup, _key: Any, value: schema.StreamsGroupMetadataValue) -> None:
    group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
    group.validated_epoch = value.validated_topology_epoch
    group.assignment_configs = {config.key: config.value for config in value.last_assignment_configs or ()}


def _replay_member(group: StreamsGroup, key: Any, value: schema.StreamsGroupMemberMetadataValue | None) -> None:
    if value is None:
        group.remove_member(key.member_id)
        return
    endpoint = value.user_endpoint
    spec = StreamsMemberSpec(
        value.rack_id,
        value.client_id,
        value.client_host,
        value.rebalance_timeout_ms,
        value.topology_epoch,
        value.process_id,
        None if endpoint is None else Endpoint(endpoint.host, endpoint.port),
        tuple((tag.key, tag.value) for tag in value.client_tags),
    )
    member = group.members.get(key.member_id)
    if member is None:
        group.members[key.member_id] = StreamsMember(key.member_id, spec)
    else:
        member.spec = spec


def _replay_target_epoch(
    group: StreamsGroup, _key: Any, value: schema.StreamsGroupTargetAssignmentMetadataValue | None
) -> None:
    group.assignment_epoch = -1 if value is None else value.assignment_epoch
    group.assigned_at_ms = 0 if value is None else value.assignment_timestamp


def _replay_target(group: StreamsGroup, key: Any, value: schema.StreamsGroupTargetAssignmentMemberValue | None) -> None:
    if value is None:
        group.target.pop(key.member_id, None)
    else:
        group.target[key.member_id] = task_set(value.active_tasks, value.standby_tasks, value.warmup_tasks)


def _replay_current(
    group: StreamsGroup, key: Any, value: schema.StreamsGroupCurrentMemberAssignmentValue | None
) -> None:
    member = group.members.get(key.member_id)
    if value is None:
        if member is not None:
            member.current = NEW_STREAMS_MEMBER
        return
    if member is None:  # compaction has removed an earlier record of its metadata; the last one follows
        member = group.members[key.member_id] = StreamsMember(key.member_id, StreamsMemberSpec())
    assigned = task_set(value.active_tasks, value.standby_tasks, value.warmup_tasks)
    pending = task_set(
        value.active_tasks_pending_revocation,
        value.standby_tasks_pending_revocation,
        value.warmup_tasks_pending_revocation,
    )
    if value.state not in _STATES:  # one of a newer Kafka: the member is fenced, and rejoins
        member.current = StreamsAssignment(assigned=assigned, pending_revocation=pending)
        return
    member.current = StreamsAssignment(
        value.member_epoch,
        value.previous_member_epoch,
        StreamsMemberState(value.state),
        assigned,
        pending,
        {
            (tasks.subtopology_id, partition): epoch
            for tasks in (*value.active_tasks, *value.active_tasks_pending_revocation)
            for partition, epoch in zip(tasks.partitions, _epochs_of(tasks, value.member_epoch), strict=True)
        },
    )


def _epochs_of(tasks: schema.TaskIds, member_epoch: int) -> list[int]:
    """Return the epochs in which tasks were assigned. A record from before Kafka 4.3 has none: each task gets the
    member's epoch.
    """
    epochs = tasks.assignment_epochs
    return [member_epoch] * len(tasks.partitions) if epochs is None or len(epochs) != len(tasks.partitions) else epochs


def task_set(active: Iterable[Any], standby: Iterable[Any], warmup: Iterable[Any]) -> TaskSet:
    """Convert the task lists of a record or a heartbeat."""
    return TaskSet(
        *(
            {tasks.subtopology_id: frozenset(tasks.partitions) for tasks in role if tasks.partitions}
            for role in (active, standby, warmup)
        )
    )


def _replay_topology(group: StreamsGroup, _key: Any, value: schema.StreamsGroupTopologyValue | None) -> None:
    group.topology = None if value is None else topology_of(value)
    group.configured = None


_REPLAYS: dict[type, Any] = {
    schema.StreamsGroupMetadataKey: _replay_epoch,
    schema.StreamsGroupMemberMetadataKey: _replay_member,
    schema.StreamsGroupTargetAssignmentMetadataKey: _replay_target_epoch,
    schema.StreamsGroupTargetAssignmentMemberKey: _replay_target,
    schema.StreamsGroupCurrentMemberAssignmentKey: _replay_current,
    schema.StreamsGroupTopologyKey: _replay_topology,
}
