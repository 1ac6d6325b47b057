"""ConsumerGroupHeartbeat: how members of a consumer group join, live, change, and leave (KIP-848).

    1. the member is found or made, its epoch checked
    2. what it says of itself is compared with what is known; a changed subscription, or topics that changed below it,
       raise the group epoch
    3. a group epoch ahead of the target makes the assignor work out a new target, for all members
    4. the member goes one step towards its target (``consumer_reconciliation``)

Each step adds records; none changes the group, ``replay`` does when they are in the log. A heartbeat that says
nothing new adds none. Clocks: ("session", group, member), ("revoke", group, member) while it has yet to give partitions
back.

Source: ConsumerGroupHeartbeat v0-1.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from broker.coordinator.assignors import ASSIGNORS, Assignment, MemberSpec
from broker.coordinator.classic_group import ClassicGroup
from broker.coordinator.consumer_group import (
    NEW_MEMBER,
    ConsumerGroup,
    ConsumerMember,
    CurrentAssignment,
    MemberState,
    ResolvedRegex,
    Subscription,
)
from broker.coordinator.consumer_reconciliation import is_subset, reconcile
from broker.coordinator.consumer_records import (
    current_record,
    epoch_record,
    member_record,
    member_tombstones,
    regex_record,
    target_epoch_record,
    target_record,
)
from broker.coordinator.group_records import group_tombstone
from broker.coordinator.result import CoordinatorRecord, CoordinatorResult, TimerResult
from broker.coordinator.topic_patterns import matching_topics
from protocol.errors import (
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
from protocol.messages.consumer_group_heartbeat import Assignment as AssignmentResponse
from protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitionsResponse,
)

if TYPE_CHECKING:
    from broker.broker import RequestContext
    from broker.coordinator.config import GroupConfig
    from broker.coordinator.timer import CoordinatorTimer
    from broker.metadata import MetadataCache
    from log.time import Time

logger = logging.getLogger(__name__)

JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2
DEFAULT_ASSIGNOR = "uniform"

HeartbeatResult = CoordinatorResult[ConsumerGroupHeartbeatResponse]


@dataclass(slots=True)
class Draft:
    """One heartbeat in the works: the group as it is, the member as it will be, the records so far."""

    group: ConsumerGroup
    member_id: str
    subscription: Subscription
    current: CurrentAssignment
    records: list[CoordinatorRecord]
    target: Assignment
    replaced: str | None = None
    epoch: int = 0
    assignment_epoch: int = 0
    regexes: dict[str, ResolvedRegex] | None = None

    def subscriptions(self) -> dict[str, Subscription]:
        """All members as they will be."""
        found = {member_id: member.subscription for member_id, member in self.group.members.items()}
        if self.replaced is not None:
            found.pop(self.replaced, None)
        found[self.member_id] = self.subscription
        return found

    def topics_of(self, subscription: Subscription) -> tuple[str, ...]:
        """Names that a member will read, patterns resolved."""
        regexes = self.group.regexes if self.regexes is None else self.regexes
        resolved = regexes.get(subscription.topic_regex) if subscription.topic_regex else None
        return subscription.topic_names + (resolved.topics if resolved is not None else ())


class ConsumerHeartbeats:
    """Heartbeats of the consumer groups of one partition. Loop thread only."""

    def __init__(
        self,
        groups: MutableMapping[str, Any],
        *,
        timer: CoordinatorTimer,
        time: Time,
        config: GroupConfig,
        metadata: MetadataCache,
        new_uuid: Callable[[], str],
    ) -> None:
        self._groups = groups
        self._timer = timer
        self._time = time
        self._config = config
        self._metadata = metadata
        self._new_uuid = new_uuid

    def heartbeat(self, context: RequestContext, request: ConsumerGroupHeartbeatRequest) -> HeartbeatResult:
        """Raises InvalidRequestError, UnsupportedAssignorError, GroupIdNotFoundError, GroupMaxSizeReachedError,
        UnknownMemberIdError, FencedMemberEpochError, UnreleasedInstanceIdError, FencedInstanceIdError,
        InvalidRegularExpressionError.
        """
        check_request(request, context.api_version)
        if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            return self._leave(request)
        records: list[CoordinatorRecord] = []
        group = self._find_group(request, records)
        draft = self._find_member(group, request, records)
        before = draft.current
        self._update_subscription(draft, context, request)
        if draft.epoch > group.assignment_epoch:
            self._update_target(draft)
        owned = owned_of(request)
        take_a_step(draft, owned)
        response = ConsumerGroupHeartbeatResponse(
            member_id=draft.member_id,
            member_epoch=draft.current.epoch,
            heartbeat_interval_ms=self._config.group_consumer_heartbeat_interval_ms,
        )
        if is_full(request) or before.assigned != draft.current.assigned:
            response.assignment = assignment_response(draft.current.assigned)
        self._schedule_clocks(draft)
        return CoordinatorResult(response, records, self._settle(draft))

    def _settle(self, draft: Draft) -> Callable[[KafkaError | None], None]:
        version = self._metadata.changes

        def on_append(error: KafkaError | None) -> None:
            if error is not None:
                raise error
            self._groups[draft.group.group_id].metadata_version = version

        return on_append

    # -- 1. the member ------------------------------------------------------------------------------------------

    def _find_group(self, request: ConsumerGroupHeartbeatRequest, records: list[CoordinatorRecord]) -> ConsumerGroup:
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            self._check_size(group, request)
            return group
        if request.member_epoch != JOIN_EPOCH:
            raise GroupIdNotFoundError(f"Consumer group {request.group_id} not found.")
        if isinstance(group, ClassicGroup):
            if not group.is_empty:
                raise GroupIdNotFoundError(f"Group {request.group_id} is not a consumer group.")
            records.append(group_tombstone(request.group_id))  # an empty group changes its protocol, its offsets stay
        return ConsumerGroup(request.group_id)

    def _check_size(self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> None:
        is_known = request.member_id in group.members or request.instance_id in group.static_members
        if len(group.members) >= self._config.group_consumer_max_size and not is_known:
            raise GroupMaxSizeReachedError

    def _find_member(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, records: list[CoordinatorRecord]
    ) -> Draft:
        member_id = request.member_id or self._new_uuid()
        if request.member_epoch == JOIN_EPOCH and request.instance_id in group.static_members:
            return self._replace_static(group, request.instance_id or "", member_id, records)
        if request.instance_id is not None and group.static_members.get(request.instance_id, member_id) != member_id:
            raise FencedInstanceIdError
        member = group.members.get(member_id)
        if member is None:
            if request.member_epoch != JOIN_EPOCH:
                raise UnknownMemberIdError
            return draft_of(group, member_id, Subscription(), NEW_MEMBER, records)
        current = member.current
        if request.member_epoch == JOIN_EPOCH and current.epoch != JOIN_EPOCH:
            current = NEW_MEMBER  # it lost its epoch, and with it whatever it held
        elif request.member_epoch != current.epoch:
            check_epoch(current, request)
        return draft_of(group, member_id, member.subscription, current, records)

    def _replace_static(
        self, group: ConsumerGroup, instance_id: str, member_id: str, records: list[CoordinatorRecord]
    ) -> Draft:
        """The instance is back: once its last incarnation has left it takes over what that one had."""
        old_id = group.static_members[instance_id]
        old = group.members[old_id]
        if old.current.epoch != LEAVE_STATIC_EPOCH:
            raise UnreleasedInstanceIdError
        draft = draft_of(group, member_id, old.subscription, replace(old.current, epoch=0, previous_epoch=0), records)
        draft.target = group.target_of(old_id)
        draft.replaced = old_id
        records += member_tombstones(group.group_id, old_id)
        records += [
            member_record(group.group_id, member_id, old.subscription),
            target_record(group.group_id, member_id, draft.target),
            current_record(group.group_id, member_id, draft.current),
        ]
        self._cancel_clocks(group.group_id, old_id)
        return draft

    # -- 2. what it says ----------------------------------------------------------------------------------------

    def _update_subscription(
        self, draft: Draft, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> None:
        group, before = draft.group, draft.subscription
        draft.subscription = updated_subscription(before, context, request)
        is_new = draft.member_id not in group.members
        if is_new or draft.subscription != before:
            draft.records.append(member_record(group.group_id, draft.member_id, draft.subscription))
        changed = (is_new and draft.replaced is None) or (
            (draft.subscription.topic_names, draft.subscription.topic_regex) != (before.topic_names, before.topic_regex)
        )
        if not changed and group.metadata_version == self._metadata.changes:
            return
        self._resolve_regexes(draft)
        metadata_hash = self._metadata_hash(draft)
        if changed or metadata_hash != group.metadata_hash:
            draft.epoch += 1
            draft.records.append(epoch_record(group.group_id, draft.epoch, metadata_hash))
            logger.info("group %s raises its epoch to %d", group.group_id, draft.epoch)

    def _resolve_regexes(self, draft: Draft) -> None:
        group = draft.group
        wanted = {s.topic_regex for s in draft.subscriptions().values() if s.topic_regex}
        resolved = dict(group.regexes)
        for regex in wanted:
            topics = matching_topics(regex, (n for n, image in self._metadata.topics.items() if not image.is_internal))
            known = resolved.get(regex)
            if known is None or known.topics != topics:
                version = self._metadata.changes
                resolved[regex] = ResolvedRegex(topics, version, self._time.milliseconds())
                draft.records.append(regex_record(group.group_id, regex, resolved[regex]))
        for regex in set(resolved) - wanted:
            del resolved[regex]
            draft.records.append(regex_record(group.group_id, regex, None))
        draft.regexes = resolved

    def _metadata_hash(self, draft: Draft) -> int:
        """A number that changes when subscribed topics come, go, or grow."""
        names = {n for s in draft.subscriptions().values() for n in draft.topics_of(s)}
        images = (image for name in sorted(names) if (image := self._metadata.find(name)) is not None)
        text = "\n".join(f"{image.name} {image.topic_id.hex()} {image.partition_count}" for image in images)
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)

    # -- 3. the target ------------------------------------------------------------------------------------------

    def _update_target(self, draft: Draft) -> None:
        group = draft.group
        subscriptions = draft.subscriptions()
        members: dict[str, MemberSpec] = {}
        counts: dict[bytes, int] = {}
        for member_id, subscription in subscriptions.items():
            names = draft.topics_of(subscription)
            images = [image for name in names if (image := self._metadata.find(name)) is not None]
            counts.update((image.topic_id, image.partition_count) for image in images)
            assigned = draft.target if member_id == draft.member_id else group.target_of(member_id)
            members[member_id] = MemberSpec(frozenset(i.topic_id for i in images), subscription.instance_id, assigned)
        target = ASSIGNORS[preferred_assignor(subscriptions)](members, counts)
        for member_id, assignment in target.items():
            if member_id not in group.target or group.target[member_id] != assignment:
                draft.records.append(target_record(group.group_id, member_id, assignment))
        draft.records.append(target_epoch_record(group.group_id, draft.epoch, self._time.milliseconds()))
        draft.target = target[draft.member_id]
        draft.assignment_epoch = draft.epoch

    # -- leaving ------------------------------------------------------------------------------------------------

    def _leave(self, request: ConsumerGroupHeartbeatRequest) -> HeartbeatResult:
        group = self._groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            raise GroupIdNotFoundError(f"Consumer group {request.group_id} not found.")
        member = leaving_member(group, request)
        response = ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            # It will be back: its partitions wait for it as long as its session lasts.
            current = replace(member.current, epoch=LEAVE_STATIC_EPOCH, pending_revocation={}, state=MemberState.STABLE)
            return CoordinatorResult(response, [current_record(group.group_id, member.member_id, current)])
        return CoordinatorResult(response, self._remove(group, member))

    def _remove(self, group: ConsumerGroup, member: ConsumerMember) -> list[CoordinatorRecord]:
        """The member is out; the next heartbeat of another hands its partitions on."""
        self._cancel_clocks(group.group_id, member.member_id)
        records = member_tombstones(group.group_id, member.member_id)
        records.append(epoch_record(group.group_id, group.epoch + 1, group.metadata_hash))
        logger.info("group %s loses %s", group.group_id, member.member_id)
        return records

    # -- clocks -------------------------------------------------------------------------------------------------

    def _schedule_clocks(self, draft: Draft) -> None:
        group_id, member_id = draft.group.group_id, draft.member_id
        self._schedule_session(group_id, member_id)
        self._schedule_revocation(group_id, member_id, draft.current, draft.subscription)

    def _schedule_session(self, group_id: str, member_id: str) -> None:
        self._timer.schedule(
            ("session", group_id, member_id),
            self._config.group_consumer_session_timeout_ms,
            lambda: self._expire(group_id, member_id, None),
        )

    def _schedule_revocation(
        self, group_id: str, member_id: str, current: CurrentAssignment, subscription: Subscription
    ) -> None:
        key = ("revoke", group_id, member_id)
        if current.state is not MemberState.UNREVOKED_PARTITIONS:
            self._timer.cancel(key)
        elif not self._timer.is_scheduled(key):
            epoch = current.epoch
            self._timer.schedule(
                key, subscription.rebalance_timeout_ms, lambda: self._expire(group_id, member_id, epoch)
            )

    def _cancel_clocks(self, group_id: str, member_id: str) -> None:
        self._timer.cancel(("session", group_id, member_id))
        self._timer.cancel(("revoke", group_id, member_id))

    def _expire(self, group_id: str, member_id: str, epoch: int | None) -> TimerResult:
        """The session is over, or the member still has not given back what it lost in this epoch."""
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return None
        member = group.members.get(member_id)
        if member is None or (epoch is not None and member.current.epoch != epoch):
            return None
        records = self._remove(group, member)
        self._schedule_session(group_id, member_id)  # should the append fail, it is tried again
        return CoordinatorResult(None, records)

    def start_clocks(self, group: ConsumerGroup) -> None:
        """After loading every member has a whole session to show up."""
        for member in group.members.values():
            self._schedule_session(group.group_id, member.member_id)
            self._schedule_revocation(group.group_id, member.member_id, member.current, member.subscription)


def draft_of(
    group: ConsumerGroup,
    member_id: str,
    subscription: Subscription,
    current: CurrentAssignment,
    records: list[CoordinatorRecord],
) -> Draft:
    """A draft that changes nothing yet."""
    return Draft(
        group,
        member_id,
        subscription,
        current,
        records,
        target=group.target_of(member_id),
        epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
    )


def take_a_step(draft: Draft, owned: dict[bytes, frozenset[int]] | None) -> None:
    """The member goes one step towards its target."""
    group = draft.group
    owners = group.owners
    if draft.replaced is not None:
        owners = {p: draft.member_id if o == draft.replaced else o for p, o in owners.items()}
    known = group.members.get(draft.member_id)
    draft.current = reconcile(
        owners,
        draft.member_id,
        draft.current,
        target=draft.target,
        target_epoch=draft.assignment_epoch,
        owned=owned,
    )
    if known is None or known.current != draft.current:
        draft.records.append(current_record(group.group_id, draft.member_id, draft.current))


def leaving_member(group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> ConsumerMember:
    """Who wants to go. Raises UnknownMemberIdError, FencedInstanceIdError."""
    member = group.members.get(request.member_id)
    if request.instance_id is not None:
        known_id = group.static_members.get(request.instance_id)
        if known_id is not None and known_id != request.member_id:
            raise FencedInstanceIdError
    if member is None:
        raise UnknownMemberIdError
    return member


def check_request(request: ConsumerGroupHeartbeatRequest, version: int) -> None:
    """What can be said without the group. Raises InvalidRequestError, UnsupportedAssignorError."""
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
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        raise UnsupportedAssignorError(
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(ASSIGNORS)}."
        )


def check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    """Raises InvalidRequestError."""
    if request.rebalance_timeout_ms == -1:
        raise InvalidRequestError("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise InvalidRequestError("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise InvalidRequestError("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when joining.")


def check_epoch(current: CurrentAssignment, request: ConsumerGroupHeartbeatRequest) -> None:
    """The epoch of before is accepted from who lost the answer that raised it. Raises FencedMemberEpochError."""
    if request.member_epoch == current.previous_epoch and is_subset(owned_of(request), current.assigned):
        return
    raise FencedMemberEpochError(
        f"The member's epoch is {current.epoch}, not {request.member_epoch}: it must give up its partitions and rejoin."
    )


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the member tells everything, because it joins or is not sure what arrived."""
    if request.member_epoch == JOIN_EPOCH:
        return True
    subscribed = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.rebalance_timeout_ms != -1 and subscribed and request.topic_partitions is not None


def owned_of(request: ConsumerGroupHeartbeatRequest) -> dict[bytes, frozenset[int]] | None:
    """What the member says it holds, None when it says nothing."""
    if request.topic_partitions is None:
        return None
    return {bytes(topic.topic_id): frozenset(topic.partitions) for topic in request.topic_partitions}


def updated_subscription(
    before: Subscription, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> Subscription:
    """What is known with what the request says laid over it; an empty pattern takes the pattern away."""
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


def preferred_assignor(subscriptions: dict[str, Subscription]) -> str:
    """The one most members ask for."""
    votes: dict[str, int] = {}
    for subscription in subscriptions.values():
        if subscription.server_assignor is not None:
            votes[subscription.server_assignor] = votes.get(subscription.server_assignor, 0) + 1
    return max(votes, key=lambda name: votes[name]) if votes else DEFAULT_ASSIGNOR


def assignment_response(assigned: Assignment) -> AssignmentResponse:
    """An assignment as the answer holds it."""
    return AssignmentResponse(
        topic_partitions=[
            TopicPartitionsResponse(topic_id=topic_id, partitions=sorted(indexes))
            for topic_id, indexes in assigned.items()
        ]
    )
