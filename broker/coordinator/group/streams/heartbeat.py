"""StreamsGroupHeartbeat: members of a streams group join, stay, change and leave (KIP-1071).

    1. the member is found or created, and its epoch is checked
    2. the first member's topology becomes the group's; it is compared with the existing topics (``topology``)
    3. if the member, the topology, its topics or the settings changed, the group epoch rises
    4. if the group epoch is above the target's, the assignor computes a new target. A group whose first member joins
       waits for an initial delay before that, in which others may join; later the last target must be at least as
       old as the assignment interval
    5. the member goes one step towards its target (``reconciliation``)

The steps only add records; ``replay`` changes the group when these are in the log. A heartbeat that changes nothing
adds no record. Missing internal topics (repartition and changelog topics) are returned to the caller, which begins to
create them. A later heartbeat finds them.

Timers: ("streams-session", group, member), ("streams-revoke", group, member), ("streams-delay", group). Loop thread
only. Source: StreamsGroupHeartbeat v0 as of Kafka 4.3, which refuses static members, patterns and warm-up tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.group.assignment_interval import AssignmentInterval, assign_at_once, may_assign
from tidelog.broker.coordinator.group.classic.group import ClassicGroup
from tidelog.broker.coordinator.group.records import group_tombstone
from tidelog.broker.coordinator.group.share.heartbeat import topics_hash
from tidelog.broker.coordinator.group.streams.assignor import TaskMember, assign_sticky
from tidelog.broker.coordinator.group.streams.checks import (
    JOIN_EPOCH,
    LEAVE_EPOCHS,
    check_epoch,
    check_request,
    check_tasks,
    owned_of,
)
from tidelog.broker.coordinator.group.streams.group import (
    NEW_STREAMS_MEMBER,
    NO_TASKS,
    StreamsAssignment,
    StreamsGroup,
    StreamsMember,
    StreamsMemberSpec,
    StreamsMemberState,
    TaskSet,
)
from tidelog.broker.coordinator.group.streams.reconciliation import HeldTasks, find_held_by_others, reconcile_tasks
from tidelog.broker.coordinator.group.streams.records import (
    GroupEpoch,
    streams_current_record,
    streams_epoch_record,
    streams_member_record,
    streams_member_tombstones,
    streams_target_epoch_record,
    streams_target_record,
    topology_record,
)
from tidelog.broker.coordinator.group.streams.response import endpoints_response, tasks_response, update_spec
from tidelog.broker.coordinator.group.streams.topology import (
    ConfiguredTopology,
    InternalTopic,
    Status,
    StatusCode,
    Topology,
    configure,
    topology_of,
)
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord, CoordinatorResult, TimerResult
from tidelog.protocol.errors import (
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InvalidRequestError,
    KafkaError,
    UnknownMemberIdError,
)
from tidelog.protocol.messages.streams_group_heartbeat import Status as StatusResponse
from tidelog.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.coordinator.group.streams.config import StreamsConfig
    from tidelog.broker.coordinator.runtime.timer import CoordinatorTimer
    from tidelog.broker.metadata.image import MetadataCache
    from tidelog.broker.requests.context import RequestContext
    from tidelog.log.system.time import Time

logger = logging.getLogger(__name__)

HeartbeatResult = CoordinatorResult[StreamsGroupHeartbeatResponse]


@dataclass(slots=True)
class StreamsDecision:
    """Result of a heartbeat, and the internal topics to create."""

    result: HeartbeatResult
    missing: tuple[InternalTopic, ...] = ()


@dataclass(slots=True)
class Draft:
    """Change by one heartbeat: the group before it, the member after it, and the records so far."""

    group: StreamsGroup
    config: StreamsConfig
    member_id: str
    spec: StreamsMemberSpec
    current: StreamsAssignment
    target: TaskSet
    topology: Topology
    epoch: int
    assignment_epoch: int
    endpoint_epoch: int
    shutdown_member: str | None
    configured: ConfiguredTopology = ConfiguredTopology()  # noqa: RUF009 - immutable
    records: list[CoordinatorRecord] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)

    def add_status(self, code: StatusCode, detail: str) -> None:
        self.statuses.append(Status(code, detail))


class StreamsHeartbeats:
    """Answers heartbeats to the streams groups of one partition of ``__consumer_offsets``. Loop thread only."""

    def __init__(
        self,
        groups: MutableMapping[str, Any],
        *,
        timer: CoordinatorTimer,
        time: Time,
        config: Callable[[str], StreamsConfig],
        metadata: MetadataCache,
        interval_ms: AssignmentInterval = assign_at_once,
    ) -> None:
        """``config`` returns a group's current configuration."""
        self._groups = groups
        self._timer = timer
        self._time = time
        self._config = config
        self._metadata = metadata
        self._interval_ms = interval_ms

    def heartbeat(self, context: RequestContext, request: StreamsGroupHeartbeatRequest) -> StreamsDecision:
        """Answer StreamsGroupHeartbeat. Raises InvalidRequestError, StreamsInvalidTopologyError, GroupIdNotFoundError,
        GroupMaxSizeReachedError, UnknownMemberIdError, FencedMemberEpochError.
        """
        check_request(request)
        if request.member_epoch in LEAVE_EPOCHS:
            return StreamsDecision(self._leave(request))
        draft = self._find(request)
        before = draft.current
        changed = update_member(draft, context, request)
        self._raise_epoch(draft, request, changed)
        self._update_target(draft)
        move_towards_target(draft, owned_of(request))
        response = StreamsGroupHeartbeatResponse(
            member_id=draft.member_id,
            member_epoch=draft.current.epoch,
            heartbeat_interval_ms=draft.config.heartbeat_interval_ms,
        )
        self._add_tasks(draft, request, before, response)
        add_statuses(draft, response)
        self._schedule_session(request.group_id, draft.member_id, draft.config.session_timeout_ms)
        self._watch_revocation(draft)
        result = CoordinatorResult(response, draft.records, self._build_append_callback(draft))
        return StreamsDecision(result, draft.configured.missing)

    def _build_append_callback(self, draft: Draft) -> Callable[[KafkaError | None], None]:
        """Build the callback after the append, which sets the soft state of the group."""
        version = self._metadata.changes
        is_known = draft.group.group_id in self._groups

        def on_append(error: KafkaError | None) -> None:
            if error is not None:
                raise error
            group = self._groups[draft.group.group_id]
            group.metadata_version = version
            group.configured = draft.configured
            group.shutdown_member = draft.shutdown_member
            if is_known:  # as in Kafka, a group that this heartbeat creates keeps the epoch 0; the response has it too
                group.endpoint_epoch = draft.endpoint_epoch

        return on_append

    # -- 1. the member ------------------------------------------------------------------------------------------

    def _find(self, request: StreamsGroupHeartbeatRequest) -> Draft:
        records: list[CoordinatorRecord] = []
        config = self._config(request.group_id)
        group = self._find_group(request, config.max_size, records)
        member = group.members.get(request.member_id)
        spec, current = StreamsMemberSpec(), NEW_STREAMS_MEMBER
        if member is not None:
            spec, current = member.spec, member.current
            check_epoch(current, request)
        elif request.member_epoch != JOIN_EPOCH:
            raise UnknownMemberIdError(f"Member {request.member_id} is not a member of group {group.group_id}.")
        return Draft(
            group,
            config,
            request.member_id,
            spec,
            current,
            target=group.target_of(request.member_id),
            topology=update_topology(group, request, records),
            epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            endpoint_epoch=group.endpoint_epoch,
            shutdown_member=group.shutdown_member,
            records=records,
        )

    def _find_group(
        self, request: StreamsGroupHeartbeatRequest, max_size: int, records: list[CoordinatorRecord]
    ) -> StreamsGroup:
        group = self._groups.get(request.group_id)
        is_joining = request.member_epoch == JOIN_EPOCH
        if group is None and not is_joining:
            raise GroupIdNotFoundError(f"Streams group {request.group_id} not found.")
        if is_joining and isinstance(group, ClassicGroup) and group.is_empty:
            records.append(group_tombstone(request.group_id))  # the group changes its protocol, and keeps its offsets
            group = None
        if group is None:
            return StreamsGroup(request.group_id)
        if not isinstance(group, StreamsGroup):
            raise GroupIdNotFoundError(f"Group {request.group_id} is not a streams group.")
        if is_joining and len(group.members) >= max_size and request.member_id not in group.members:
            raise GroupMaxSizeReachedError(f"The streams group has reached its maximum capacity of {max_size} members.")
        return group

    # -- 2. the topology ----------------------------------------------------------------------------------------

    def _configure(self, draft: Draft) -> int:
        """Compare the topology with the existing topics. Returns the hash of the topics that the topology
        needs."""
        group = draft.group
        if group.configured is not None and group.metadata_version == self._metadata.changes:
            draft.configured = group.configured
            return group.metadata_hash
        images = (self._metadata.find(name) for name in sorted(draft.topology.required_topics))
        metadata_hash = topics_hash(image for image in images if image is not None)
        draft.configured = configure(draft.topology, self._partition_count)
        return metadata_hash

    def _partition_count(self, topic: str) -> int | None:
        image = self._metadata.find(topic)
        return None if image is None else image.partition_count

    # -- 3. the epoch -------------------------------------------------------------------------------------------

    def _raise_epoch(self, draft: Draft, request: StreamsGroupHeartbeatRequest, changed: bool) -> None:
        """Raise the group epoch if something changed, and start the initial delay of a group without members."""
        group, config = draft.group, draft.config
        metadata_hash = self._configure(draft)
        validated_epoch = -1
        if draft.configured.is_ready:
            validated_epoch = draft.topology.epoch
            check_tasks(draft.configured, request)
        state = GroupEpoch(draft.epoch + 1, metadata_hash, validated_epoch, config.assignment_configs)
        known = GroupEpoch(draft.epoch + 1, group.metadata_hash, group.validated_epoch, group.assignment_configs)
        if changed or state != known:
            draft.epoch += 1
            draft.records.append(streams_epoch_record(group.group_id, state))
            logger.info("streams group %s raises its epoch to %d", group.group_id, draft.epoch)
        delay_ms = config.initial_rebalance_delay_ms
        key = ("streams-delay", group.group_id)
        if group.is_empty and delay_ms and not self._timer.is_scheduled(key):
            self._timer.schedule(key, delay_ms, lambda: self._assign_delayed(group.group_id))

    # -- 4. the target ------------------------------------------------------------------------------------------

    def _update_target(self, draft: Draft) -> None:
        group = draft.group
        if self._timer.is_scheduled(("streams-delay", group.group_id)):
            draft.add_status(
                StatusCode.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured initial rebalance delay."
            )
            draft.target = NO_TASKS
            return
        if draft.epoch <= group.assignment_epoch:
            return
        if not self._may_assign(group):
            draft.add_status(
                StatusCode.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured assignment interval."
            )
            return
        members = {name: member.spec.process_id for name, member in group.members.items()}
        members[draft.member_id] = draft.spec.process_id
        target = self._assign(group, draft.epoch, members, draft.configured, draft.records)
        draft.target, draft.assignment_epoch = target[draft.member_id], draft.epoch

    def _may_assign(self, group: StreamsGroup) -> bool:
        interval_ms = self._interval_ms("streams", group.group_id)
        return may_assign(group.assigned_at_ms, interval_ms, self._time.milliseconds())

    def _assign(
        self,
        group: StreamsGroup,
        epoch: int,
        processes: Mapping[str, str],
        configured: ConfiguredTopology,
        records: list[CoordinatorRecord],
    ) -> dict[str, TaskSet]:
        """Compute the targets of all members, and add their records. The targets are empty while the topology is not
        ready."""
        replicas = self._config(group.group_id).num_standby_replicas
        target = dict.fromkeys(processes, NO_TASKS)
        if configured.is_ready and configured.subtopologies is not None:
            members = {name: TaskMember(process, group.target_of(name)) for name, process in processes.items()}
            target = assign_sticky(members, configured.subtopologies.values(), replicas)
        for member_id, tasks in target.items():
            if group.target.get(member_id) != tasks:
                records.append(streams_target_record(group.group_id, member_id, tasks))
        records.append(streams_target_epoch_record(group.group_id, epoch, self._time.milliseconds()))
        return target

    def _assign_delayed(self, group_id: str) -> TimerResult:
        """Compute the targets after the initial delay."""
        group = self._groups.get(group_id)
        if not isinstance(group, StreamsGroup) or group.is_empty or group.configured is None:
            return None
        if group.epoch <= group.assignment_epoch or not self._may_assign(group):
            return None
        records: list[CoordinatorRecord] = []
        processes = {name: member.spec.process_id for name, member in group.members.items()}
        self._assign(group, group.epoch, processes, group.configured, records)
        return CoordinatorResult(None, records)

    # -- the response -------------------------------------------------------------------------------------------

    def _add_tasks(
        self,
        draft: Draft,
        request: StreamsGroupHeartbeatRequest,
        before: StreamsAssignment,
        response: StreamsGroupHeartbeatResponse,
    ) -> None:
        if request.member_epoch == JOIN_EPOCH or before.assigned != draft.current.assigned:
            response.active_tasks, response.standby_tasks, response.warmup_tasks = map(
                tasks_response, draft.current.assigned
            )
            if draft.spec.user_endpoint is not None:
                draft.endpoint_epoch += 1
        if draft.endpoint_epoch != request.endpoint_information_epoch:
            members = [
                (member.spec, member.current) for name, member in draft.group.members.items() if name != draft.member_id
            ]
            response.partitions_by_user_endpoint = endpoints_response(
                [*members, (draft.spec, draft.current)], draft.configured, self._partition_count
            )
        if draft.group.group_id in self._groups:
            response.endpoint_information_epoch = draft.endpoint_epoch

    # -- leaving ------------------------------------------------------------------------------------------------

    def _leave(self, request: StreamsGroupHeartbeatRequest) -> HeartbeatResult:
        group = self._groups.get(request.group_id)
        if group is None:
            raise GroupIdNotFoundError(f"Group {request.group_id} not found.")
        if not isinstance(group, StreamsGroup):
            raise GroupIdNotFoundError(f"Group {request.group_id} is not a streams group.")
        member = group.members.get(request.member_id)
        if member is None:
            raise UnknownMemberIdError(f"Member {request.member_id} is not a member of group {group.group_id}.")
        response = StreamsGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch, status=[]
        )
        ends = request.member_id if request.shutdown_application else None
        return CoordinatorResult(response, *self._removal(group, member, ends))

    def _removal(
        self, group: StreamsGroup, member: StreamsMember, ends_application: str | None = None
    ) -> tuple[list[CoordinatorRecord], Callable[[KafkaError | None], None]]:
        """Build the records and the callback that remove a member. Another member's next heartbeat reassigns the
        removed member's tasks."""
        group_id, member_id = group.group_id, member.member_id
        records = streams_member_tombstones(group_id, member_id)
        epoch = GroupEpoch(group.epoch + 1, group.metadata_hash, group.validated_epoch, group.assignment_configs)
        records.append(streams_epoch_record(group_id, epoch))

        def on_append(error: KafkaError | None) -> None:
            if error is not None:
                raise error
            for kind in ("streams-session", "streams-revoke"):
                self._timer.cancel((kind, group_id, member_id))
            if group.members and group.shutdown_member is None:
                group.shutdown_member = ends_application
            logger.info("streams group %s removes %s", group_id, member_id)

        return records, on_append

    # -- timers -------------------------------------------------------------------------------------------------

    def _schedule_session(self, group_id: str, member_id: str, timeout_ms: int) -> None:
        self._timer.schedule(
            ("streams-session", group_id, member_id), timeout_ms, lambda: self._expire(group_id, member_id, None)
        )

    def _watch_revocation(self, draft: Draft) -> None:
        """Start the revocation timer of a member that must revoke tasks, unless the timer runs already. If the member
        has no tasks to revoke, stop the timer."""
        group_id, member_id, epoch = draft.group.group_id, draft.member_id, draft.current.epoch
        key = ("streams-revoke", group_id, member_id)
        if draft.current.state is not StreamsMemberState.UNREVOKED_TASKS:
            self._timer.cancel(key)
        elif not self._timer.is_scheduled(key):
            self._timer.schedule(key, draft.spec.rebalance_timeout_ms, lambda: self._expire(group_id, member_id, epoch))

    def _expire(self, group_id: str, member_id: str, epoch: int | None) -> TimerResult:
        """Remove a member one of whose timers has fired. With an ``epoch``, only if the member is still in it."""
        group = self._groups.get(group_id)
        if not isinstance(group, StreamsGroup):
            return None
        member = group.members.get(member_id)
        if member is None or (epoch is not None and member.current.epoch != epoch):
            return None
        timeout_ms = self._config(group_id).session_timeout_ms
        self._schedule_session(group_id, member_id, timeout_ms)  # tries again if the append fails
        return CoordinatorResult(None, *self._removal(group, member))

    def start_clocks(self, group: StreamsGroup) -> None:
        """Start the session timers of all members after the group was loaded, with full timeouts."""
        timeout_ms = self._config(group.group_id).session_timeout_ms
        for member in group.members.values():
            self._schedule_session(group.group_id, member.member_id, timeout_ms)


def update_member(draft: Draft, context: RequestContext, request: StreamsGroupHeartbeatRequest) -> bool:
    """Set the member's metadata from the request. Returns whether the member is new or has changed."""
    spec = update_spec(draft.spec, context, request)
    changed = spec != draft.spec or draft.member_id not in draft.group.members
    if changed:
        draft.records.append(streams_member_record(draft.group.group_id, draft.member_id, spec))
    draft.spec = spec
    if draft.group.topology is not None and spec.topology_epoch < draft.topology.epoch:
        draft.add_status(
            StatusCode.STALE_TOPOLOGY,
            f"The member's topology epoch {spec.topology_epoch} is behind the group's topology epoch "
            f"{draft.topology.epoch}.",
        )
    if request.shutdown_application and draft.shutdown_member is None:
        draft.shutdown_member = draft.member_id
        logger.info(
            "member %s of streams group %s requests the shutdown of the application",
            draft.member_id,
            draft.group.group_id,
        )
    return changed


def update_topology(
    group: StreamsGroup, request: StreamsGroupHeartbeatRequest, records: list[CoordinatorRecord]
) -> Topology:
    """Return the group's topology, which is that of the first member's request. Raises InvalidRequestError."""
    if request.topology is None:
        if group.topology is None:
            raise InvalidRequestError(f"The topology of streams group {group.group_id} is not known.")
        return group.topology
    topology = topology_of(request.topology)
    if group.topology is None:
        records.append(topology_record(group.group_id, topology))
        return topology
    if group.topology.epoch <= topology.epoch and group.topology != topology:
        raise InvalidRequestError("Topology updates are not supported yet.")
    return group.topology


def move_towards_target(draft: Draft, owned: TaskSet | None) -> None:
    """Move the member one step towards its target. ``owned`` are the tasks that it reports, None without a report."""
    group = draft.group

    def find_held() -> HeldTasks:
        return find_held_by_others(group.members.values(), draft.member_id, draft.spec.process_id)

    after = reconcile_tasks(
        draft.current, find_held, target=draft.target, target_epoch=draft.assignment_epoch, owned=owned
    )
    if after is not draft.current:
        draft.current = after
        draft.records.append(streams_current_record(group.group_id, draft.member_id, after))


def add_statuses(draft: Draft, response: StreamsGroupHeartbeatResponse) -> None:
    """Set the statuses of the response."""
    if draft.configured.problem is not None:
        draft.statuses.append(draft.configured.problem)
    if draft.shutdown_member is not None:
        draft.add_status(
            StatusCode.SHUTDOWN_APPLICATION,
            f"Streams group member {draft.shutdown_member} encountered a fatal error and requested a shutdown for "
            "the entire application.",
        )
    response.status = [StatusResponse(status_code=code, status_detail=detail) for code, detail in draft.statuses]
