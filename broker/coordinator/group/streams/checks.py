"""Checks of a StreamsGroupHeartbeat: of its own fields, and against the group. Source: KIP-1071 as of Kafka 4.3."""

from __future__ import annotations

from tidelog.broker.coordinator.group.streams.group import StreamsAssignment, TaskSet
from tidelog.broker.coordinator.group.streams.records import task_set
from tidelog.broker.coordinator.group.streams.topology import ConfiguredTopology, check_topology, topology_of
from tidelog.protocol.errors import FencedMemberEpochError, InvalidRequestError
from tidelog.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest

JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2
LEAVE_EPOCHS = (LEAVE_EPOCH, LEAVE_STATIC_EPOCH)


def check_request(request: StreamsGroupHeartbeatRequest) -> None:
    """Check the fields of a request, without the group. Raises InvalidRequestError, StreamsInvalidTopologyError."""
    _check_unsupported(request)
    for name, value in (("MemberId", request.member_id), ("GroupId", request.group_id), ("RackId", request.rack_id)):
        if value is not None and not value.strip():
            raise InvalidRequestError(f"{name} can't be empty.")
    if request.member_epoch == JOIN_EPOCH:
        _check_join(request)
    elif request.member_epoch == LEAVE_STATIC_EPOCH:
        raise InvalidRequestError("InstanceId can't be null.")
    elif request.member_epoch < LEAVE_STATIC_EPOCH:
        raise InvalidRequestError(f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -2.")
    roles = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if None in roles and any(role is not None for role in roles):
        raise InvalidRequestError("If one task-type is non-null, all must be non-null.")
    if request.member_epoch != JOIN_EPOCH and request.topology is not None:
        raise InvalidRequestError("Topology can only be provided when (re-)joining.")


def _check_unsupported(request: StreamsGroupHeartbeatRequest) -> None:
    parts = [] if request.topology is None else request.topology.subtopologies
    for is_asked, what in (
        (request.instance_id is not None, "Static membership is not yet supported."),
        (request.task_offsets is not None, "TaskOffsets are not supported yet."),
        (request.task_end_offsets is not None, "TaskEndOffsets are not supported yet."),
        (bool(request.warmup_tasks), "WarmupTasks are not supported yet."),
        (
            any(part.source_topic_regex for part in parts),
            "Regular expressions for source topics are not supported yet.",
        ),
    ):
        if is_asked:
            raise InvalidRequestError(what)


def _check_join(request: StreamsGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise InvalidRequestError("RebalanceTimeoutMs must be provided in first request.")
    for name, tasks in (
        ("ActiveTasks", request.active_tasks),
        ("StandbyTasks", request.standby_tasks),
        ("WarmupTasks", request.warmup_tasks),
    ):
        if tasks is None or tasks:
            raise InvalidRequestError(f"{name} must be empty when (re-)joining.")
    if request.topology is None:
        raise InvalidRequestError("Topology must be non-null when (re-)joining.")
    check_topology(topology_of(request.topology))


def owned_of(request: StreamsGroupHeartbeatRequest) -> TaskSet | None:
    """Return the tasks that the member reports to own, None if the request has no such fields."""
    if request.active_tasks is None or request.standby_tasks is None or request.warmup_tasks is None:
        return None
    return task_set(request.active_tasks, request.standby_tasks, request.warmup_tasks)


def check_epoch(current: StreamsAssignment, request: StreamsGroupHeartbeatRequest) -> None:
    """Check the epoch of a heartbeat. The response with the current epoch may be lost. So the previous epoch is also
    accepted, if the member reports only tasks that are assigned to it. Raises FencedMemberEpochError.
    """
    epoch = request.member_epoch
    if epoch in (JOIN_EPOCH, current.epoch):
        return
    owned = owned_of(request)
    is_behind = epoch < current.epoch
    if is_behind and epoch == current.previous_epoch and owned is not None and owned.is_within(current.assigned):
        return
    raise FencedMemberEpochError(
        f"The streams group member has a {'smaller' if is_behind else 'greater'} member epoch ({epoch}) than the one "
        f"known by the group coordinator ({current.epoch}). The member must abandon all its partitions and rejoin."
    )


def check_tasks(configured: ConfiguredTopology, request: StreamsGroupHeartbeatRequest) -> None:
    """Check that the tasks that a member reports are tasks of the topology. Raises InvalidRequestError."""
    parts = configured.subtopologies or {}
    for role in (request.active_tasks, request.standby_tasks, request.warmup_tasks):
        for tasks in role or ():
            part = parts.get(tasks.subtopology_id)
            if part is None:
                raise InvalidRequestError(f"Subtopology {tasks.subtopology_id} does not exist in the topology.")
            for partition in tasks.partitions:
                if not 0 <= partition < part.tasks:
                    raise InvalidRequestError(
                        f"Task {partition} for subtopology {tasks.subtopology_id} is invalid. Number of tasks for this "
                        f"subtopology: {part.tasks}"
                    )
