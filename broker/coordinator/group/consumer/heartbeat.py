"""ConsumerGroupHeartbeat: members of a consumer group join, stay, change their subscription, and leave (KIP-848).

The member is found or created and its epoch is checked; then the steps of ``draft`` process its request. They only add
records; the group changes when these are appended and replayed. A heartbeat without changes adds none. Timers are in
``clocks``; ``migration`` converts classic groups to consumer groups and back.

Source: ConsumerGroupHeartbeat v0-1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.broker.coordinator.group.assignors import Assignment
from tidelog.broker.coordinator.group.classic.group import ClassicGroup
from tidelog.broker.coordinator.group.consumer.clocks import ConsumerClocks
from tidelog.broker.coordinator.group.consumer.draft import Draft, DraftSteps, draft_of, move_towards_target
from tidelog.broker.coordinator.group.consumer.group import (
    NEW_MEMBER,
    ConsumerGroup,
    ConsumerMember,
    CurrentAssignment,
    MemberState,
    Subscription,
)
from tidelog.broker.coordinator.group.consumer.reconciliation import is_subset
from tidelog.broker.coordinator.group.consumer.records import (
    current_record,
    epoch_record,
    member_record,
    member_tombstones,
    target_epoch_record,
    target_record,
)
from tidelog.broker.coordinator.group.migration import Migration
from tidelog.broker.coordinator.group.records import group_tombstone
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord, CoordinatorResult, TimerResult
from tidelog.protocol.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InvalidRequestError,
    KafkaError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
)
from tidelog.protocol.messages.consumer_group_heartbeat import Assignment as AssignmentResponse
from tidelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitionsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.coordinator.config import GroupConfig
    from tidelog.broker.coordinator.runtime.timer import CoordinatorTimer
    from tidelog.broker.requests.context import RequestContext

logger = logging.getLogger(__name__)

JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2
FIRST_EPOCH = 1

T = TypeVar("T")

GroupSettings = Callable[[str], Mapping[str, str]]
"""Function from group id to the group's own configuration (the GROUP config resource), as texts."""
HeartbeatResult = CoordinatorResult[ConsumerGroupHeartbeatResponse]


class ConsumerHeartbeats:
    """Answers heartbeats to the consumer groups of one partition of ``__consumer_offsets``. Loop thread only."""

    def __init__(
        self,
        groups: MutableMapping[str, Any],
        *,
        timer: CoordinatorTimer,
        steps: DraftSteps,
        config: GroupConfig,
        migration: Migration,
        new_uuid: Callable[[], str],
        settings: GroupSettings,
    ) -> None:
        self._groups = groups
        self._config = config
        self._settings = settings
        self.steps = steps
        self.migration = migration
        self.new_uuid = new_uuid
        self.clocks = ConsumerClocks(timer, self._session_timeout_ms, self._expire)

    def _session_timeout_ms(self, group_id: str) -> int:
        own = self._settings(group_id).get("consumer.session.timeout.ms")
        return self._config.group_consumer_session_timeout_ms if own is None else int(own)

    def _heartbeat_interval_ms(self, group_id: str) -> int:
        own = self._settings(group_id).get("consumer.heartbeat.interval.ms")
        return self._config.group_consumer_heartbeat_interval_ms if own is None else int(own)

    def heartbeat(self, context: RequestContext, request: ConsumerGroupHeartbeatRequest) -> HeartbeatResult:
        """Answer ConsumerGroupHeartbeat. Raises InvalidRequestError, UnsupportedAssignorError, GroupIdNotFoundError,
        GroupMaxSizeReachedError, UnknownMemberIdError, FencedMemberEpochError, UnreleasedInstanceIdError,
        FencedInstanceIdError, InvalidRegularExpressionError.
        """
        check_request(request, context.api_version, self.steps.assignors)
        if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            return self._leave(request)
        draft = self._find(request)
        before = draft.current
        self.steps.apply_subscription(draft, update_subscription(draft.subscription, context, request), context)
        self.steps.update_target(draft)
        move_towards_target(draft, owned_of(request))
        response = ConsumerGroupHeartbeatResponse(
            member_id=draft.member_id,
            member_epoch=draft.current.epoch,
            heartbeat_interval_ms=self._heartbeat_interval_ms(request.group_id),
        )
        if is_full(request) or before.assigned != draft.current.assigned:
            response.assignment = assignment_response(draft.current.assigned)
        self.clocks.restart_session(draft.group.group_id, draft.member_id, draft.subscription)
        self.clocks.watch_revocation(draft.group.group_id, draft.member_id, draft.subscription, draft.current)
        return CoordinatorResult(response, draft.records, self.build_append_callback(draft))

    def build_append_callback(self, draft: Draft) -> Callable[[KafkaError | None], None]:
        """Build the callback that finishes a request once its records are appended: timers and soft state."""
        version = self.steps.metadata.changes

        def on_append(error: KafkaError | None) -> None:
            if error is not None:
                raise error
            group = self._groups[draft.group.group_id]
            group.metadata_version = version
            if draft.replaced not in (None, draft.member_id):
                self.clocks.cancel(group.group_id, draft.replaced)
            if draft.upgraded is not None:
                self.migration.finish_upgrade(draft.upgraded)
                for member in group.members.values():
                    if member.member_id != draft.member_id:
                        self.clocks.restart_session(group.group_id, member.member_id, member.subscription)

        return on_append

    # -- the member ---------------------------------------------------------------------------------------------

    def _find(self, request: ConsumerGroupHeartbeatRequest) -> Draft:
        """Find or create the group and the member of a request."""
        group = self._groups.get(request.group_id)
        records: list[CoordinatorRecord] = []
        if isinstance(group, ConsumerGroup):
            self.check_size(group, request.member_id, request.instance_id)
            return self._find_member(group, request, records)
        if request.member_epoch != JOIN_EPOCH:
            raise GroupIdNotFoundError(f"Consumer group {request.group_id} not found.")
        if group is None:
            return self._find_member(new_group(request.group_id, records), request, records)
        if not isinstance(group, ClassicGroup):
            raise GroupIdNotFoundError(f"Group {request.group_id} is not a consumer group.")
        if group.is_empty:  # it becomes a consumer group, and keeps its offsets
            records.append(group_tombstone(request.group_id))
            return self._find_member(new_group(request.group_id, records), request, records)
        upgraded = self.migration.upgrade(group, records)
        self.check_size(upgraded, request.member_id, request.instance_id)
        draft = self._find_member(upgraded, request, records)
        draft.upgraded = group
        return draft

    def check_size(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
        """Raise GroupMaxSizeReachedError if a new member would exceed the group's maximum size."""
        is_known = member_id in group.members or instance_id in group.static_members
        if len(group.members) >= self._config.group_consumer_max_size and not is_known:
            raise GroupMaxSizeReachedError

    def _find_member(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, records: list[CoordinatorRecord]
    ) -> Draft:
        member_id = request.member_id or self.new_uuid()
        if request.member_epoch == JOIN_EPOCH and request.instance_id in group.static_members:
            old = group.members[group.static_members[request.instance_id or ""]]
            if old.subscription.classic is None and old.current.epoch != LEAVE_STATIC_EPOCH:
                raise UnreleasedInstanceIdError
            return self.replace_static(group, request.instance_id or "", member_id, records)
        if request.instance_id is not None and group.static_members.get(request.instance_id, member_id) != member_id:
            raise FencedInstanceIdError
        member = group.members.get(member_id)
        if member is None:
            if request.member_epoch != JOIN_EPOCH:
                raise UnknownMemberIdError
            return self.draft_member_or_new(group, member_id, records)
        draft = self.draft_member(group, member, records)
        if request.member_epoch == JOIN_EPOCH and draft.current.epoch != JOIN_EPOCH:
            draft.current = NEW_MEMBER  # the client lost its epoch, and gave up its partitions
        elif request.member_epoch != draft.current.epoch:
            check_epoch(draft.current, request)
        return draft

    @staticmethod
    def draft_member(group: ConsumerGroup, member: ConsumerMember, records: list[CoordinatorRecord]) -> Draft:
        """Draft a change of a known member."""
        return draft_of(group, member.member_id, member.subscription, member.current, records)

    def draft_member_or_new(self, group: ConsumerGroup, member_id: str, records: list[CoordinatorRecord]) -> Draft:
        """Draft a change of a known or new member."""
        member = group.members.get(member_id)
        if member is not None:
            return self.draft_member(group, member, records)
        return draft_of(group, member_id, Subscription(), NEW_MEMBER, records)

    @staticmethod
    def replace_static(
        group: ConsumerGroup, instance_id: str, member_id: str, records: list[CoordinatorRecord]
    ) -> Draft:
        """Draft the return of a static member, whose id may be new, with the assignment of its old incarnation."""
        old_id = group.static_members[instance_id]
        old = group.members[old_id]
        draft = draft_of(group, member_id, old.subscription, replace(old.current, epoch=0, previous_epoch=0), records)
        draft.target = group.target_of(old_id)
        draft.replaced = old_id
        records += member_tombstones(group.group_id, old_id)
        records += [
            member_record(group.group_id, member_id, old.subscription),
            target_record(group.group_id, member_id, draft.target),
            current_record(group.group_id, member_id, draft.current),
        ]
        return draft

    # -- leaving ------------------------------------------------------------------------------------------------

    def _leave(self, request: ConsumerGroupHeartbeatRequest) -> HeartbeatResult:
        group = self._groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            raise GroupIdNotFoundError(f"Consumer group {request.group_id} not found.")
        member = leaving_member(group, request)
        response = ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            # The member is expected to return: it keeps its partitions until its session times out.
            current = replace(member.current, epoch=LEAVE_STATIC_EPOCH, pending_revocation={}, state=MemberState.STABLE)
            return CoordinatorResult(response, [current_record(group.group_id, member.member_id, current)])
        return self._remove(group, member, response)

    def _remove(self, group: ConsumerGroup, member: ConsumerMember, response: T) -> CoordinatorResult[T]:
        """Remove a member. Another member's next heartbeat reassigns the removed member's partitions, unless the group
        becomes classic."""
        group_id, member_id = group.group_id, member.member_id
        become_classic: Callable[[KafkaError | None], None] | None = None
        if self.migration.may_downgrade(group, member_id, replaced=False):
            records, become_classic = self.downgrade(group, member_id, None)
        else:
            records = member_tombstones(group_id, member_id)
            records.append(epoch_record(group_id, group.epoch + 1, group.metadata_hash))

        def on_append(error: KafkaError | None) -> None:
            if error is not None:
                raise error
            self.clocks.cancel(group_id, member_id)
            logger.info("group %s removes %s", group_id, member_id)
            if become_classic is not None:
                become_classic(None)

        return CoordinatorResult(response, records, on_append, replay=become_classic is None)

    def downgrade(
        self, group: ConsumerGroup, leaving_id: str, joining: ConsumerMember | None
    ) -> tuple[list[CoordinatorRecord], Callable[[KafkaError | None], None]]:
        """Build the records of a downgrade, and the callback that replaces the group and stops its members' timers once
        the records are in the log."""
        records, replace_group = self.migration.downgrade(group, leaving_id, joining)

        def on_append(error: KafkaError | None) -> None:
            replace_group(error)
            for member_id in group.members:
                self.clocks.cancel(group.group_id, member_id)

        return records, on_append

    def _expire(self, group_id: str, member_id: str, epoch: int | None) -> TimerResult:
        """Remove a member one of whose timers has fired. With an ``epoch``, only if the member is still in it."""
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return None
        member = group.members.get(member_id)
        if member is None or (epoch is not None and member.current.epoch != epoch):
            return None
        result = self._remove(group, member, None)
        self.clocks.restart_session(group_id, member_id, member.subscription)  # to try again if the append fails
        return result


def new_group(group_id: str, records: list[CoordinatorRecord]) -> ConsumerGroup:
    """Build a group without members. Its epoch and its target's are 1: a member that got epoch 0 would join again with
    its next heartbeat."""
    group = ConsumerGroup(group_id)
    group.epoch = group.assignment_epoch = FIRST_EPOCH
    records += [epoch_record(group_id, FIRST_EPOCH, 0), target_epoch_record(group_id, FIRST_EPOCH, 0)]
    return group


def leaving_member(group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> ConsumerMember:
    """Return the member that sent a request to leave. Raises UnknownMemberIdError, FencedInstanceIdError."""
    member = group.members.get(request.member_id)
    if request.instance_id is not None:
        known_id = group.static_members.get(request.instance_id)
        if known_id is not None and known_id != request.member_id:
            raise FencedInstanceIdError
    if member is None:
        raise UnknownMemberIdError
    return member


def check_request(request: ConsumerGroupHeartbeatRequest, version: int, assignors: Collection[str]) -> None:
    """Check the fields of a request, without the group. Raises InvalidRequestError, UnsupportedAssignorError."""
    for name, value in (("InstanceId", request.instance_id), ("RackId", request.rack_id)):
        if value == "":
            raise InvalidRequestError(f"{name} can't be empty.")
    if not request.member_id and (version >= 1 or request.member_epoch != JOIN_EPOCH):
        raise InvalidRequestError("MemberId can't be empty.")
    if request.member_epoch == JOIN_EPOCH:
        check_join(request)
    elif request.member_epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise InvalidRequestError("InstanceId can't be null.")
    elif request.member_epoch < LEAVE_STATIC_EPOCH:
        raise InvalidRequestError("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise UnsupportedAssignorError(
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}."
        )


def check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    """Check a request to join. Raises InvalidRequestError."""
    if request.rebalance_timeout_ms == -1:
        raise InvalidRequestError("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise InvalidRequestError("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise InvalidRequestError("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when joining.")


def check_epoch(current: CurrentAssignment, request: ConsumerGroupHeartbeatRequest) -> None:
    """Check a heartbeat whose epoch is not the member's current one. The previous epoch is accepted, as the response
    with the new one may be lost, if the member reports only partitions that are assigned to it. Raises
    FencedMemberEpochError.
    """
    if request.member_epoch == current.previous_epoch and is_subset(owned_of(request), current.assigned):
        return
    raise FencedMemberEpochError(
        f"The member's epoch is {current.epoch}, not {request.member_epoch}: it must give up its partitions and rejoin."
    )


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Return whether a request has all fields: a member sends them when it joins, and after an error, when it does not
    know what the broker has received."""
    if request.member_epoch == JOIN_EPOCH:
        return True
    subscribed = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.rebalance_timeout_ms != -1 and subscribed and request.topic_partitions is not None


def owned_of(request: ConsumerGroupHeartbeatRequest) -> dict[bytes, frozenset[int]] | None:
    """Return the partitions that the member reports to own, None if the request has no such field."""
    if request.topic_partitions is None:
        return None
    return {bytes(topic.topic_id): frozenset(topic.partitions) for topic in request.topic_partitions}


def update_subscription(
    before: Subscription, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> Subscription:
    """Return the subscription, updated with the fields of the request. An empty pattern removes the pattern."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    return Subscription(
        instance_id=request.instance_id or before.instance_id,
        rack_id=request.rack_id or before.rack_id,
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
        topic_names=before.topic_names if names is None else tuple(sorted(set(names))),
        topic_regex=before.topic_regex if regex is None else (regex or None),
        rebalance_timeout_ms=(
            before.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        server_assignor=request.server_assignor or before.server_assignor,
    )


def assignment_response(assigned: Assignment) -> AssignmentResponse:
    """Convert an assignment to its field in the response."""
    return AssignmentResponse(
        topic_partitions=[
            TopicPartitionsResponse(topic_id=topic_id, partitions=sorted(indexes))
            for topic_id, indexes in assigned.items()
        ]
    )
