"""ShareGroupHeartbeat: members of a share group join, stay, change their subscription, and leave (KIP-932).

    1. the member is found or created, and its epoch is checked
    2. if the member is new or its topics changed, or any subscribed topic of the group changed, the group epoch rises
    3. subscribed partitions without a share state are returned to the caller, which creates their states in
       ``__share_group_state`` before it appends the result: so all assigned partitions have a state, even after a crash
    4. if the group epoch is above the target's, a new target is needed, unless the last one is younger than the group's
       assignment interval. The caller runs the assignor, in steps, and calls ``heartbeat`` again with its result

A heartbeat that changes nothing adds no record. Timer: ("share-session", group, member).

Source: ShareGroupHeartbeat v1.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.group.assignment_interval import AssignmentInterval, assign_at_once, may_assign
from tidelog.broker.coordinator.group.assignors import Assignment, MemberSpec
from tidelog.broker.coordinator.group.share.assignor import ComputedAssignment, Subscriptions
from tidelog.broker.coordinator.group.share.group import (
    NEW_SHARE_MEMBER,
    InitializedTopic,
    InitializedTopics,
    ShareAssignment,
    ShareGroup,
    ShareSubscription,
)
from tidelog.broker.coordinator.group.share.records import (
    initialized_record,
    share_current_record,
    share_epoch_record,
    share_member_record,
    share_member_tombstones,
    share_target_epoch_record,
    share_target_record,
)
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord, CoordinatorResult, TimerResult
from tidelog.protocol.errors import (
    FencedMemberEpochError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InvalidRequestError,
    KafkaError,
    UnknownMemberIdError,
)
from tidelog.protocol.messages.share_group_heartbeat import Assignment as AssignmentResponse
from tidelog.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from tidelog.broker.coordinator.runtime.timer import CoordinatorTimer
    from tidelog.broker.metadata.image import MetadataCache, TopicImage
    from tidelog.broker.requests.context import RequestContext
    from tidelog.broker.share.config import ShareConfig
    from tidelog.log.system.time import Time

logger = logging.getLogger(__name__)

JOIN_EPOCH, LEAVE_EPOCH = 0, -1

HeartbeatResult = CoordinatorResult[ShareGroupHeartbeatResponse]
UninitializedPartitions = dict[bytes, frozenset[int]]
"""Topic id -> partitions that need a state."""


@dataclass(slots=True)
class Decision:
    """Result of a heartbeat, with the partitions that need a state and the assignor's input if a new target is needed.

    The caller creates the states of those partitions in the group's ``epoch``, runs the assignor, and calls
    ``heartbeat`` again. It appends the result once it has created all states that the decision names, and no input is
    left. Until a result is replayed, each further decision names the created states again."""

    result: HeartbeatResult
    epoch: int = 0
    uninitialized: UninitializedPartitions | None = None
    unassigned: Subscriptions | None = None


@dataclass(slots=True)
class Draft:
    """Change by one heartbeat: the group before it, the member after it, and the records so far."""

    group: ShareGroup
    member_id: str
    subscription: ShareSubscription
    current: ShareAssignment
    records: list[CoordinatorRecord]
    target: Assignment
    epoch: int
    assignment_epoch: int
    initialized: InitializedTopics

    def subscriptions(self) -> dict[str, ShareSubscription]:
        """Return the subscriptions of all members after the change, by member id."""
        found = {member_id: member.subscription for member_id, member in self.group.members.items()}
        found[self.member_id] = self.subscription
        return found


class ShareHeartbeats:
    """Answers heartbeats to the share groups of one partition of ``__consumer_offsets``. Loop thread only."""

    def __init__(
        self,
        groups: MutableMapping[str, Any],
        *,
        timer: CoordinatorTimer,
        time: Time,
        config: Callable[[str], ShareConfig],
        metadata: MetadataCache,
        on_member_gone: Callable[[str, str], object],
        interval_ms: AssignmentInterval = assign_at_once,
    ) -> None:
        """``config`` returns a group's configuration; ``on_member_gone(group_id, member_id)`` is called when a member
        has left or timed out.
        """
        self._groups = groups
        self._timer = timer
        self._time = time
        self._config = config
        self._metadata = metadata
        self._on_member_gone = on_member_gone
        self._interval_ms = interval_ms

    def heartbeat(
        self, context: RequestContext, request: ShareGroupHeartbeatRequest, assigned: ComputedAssignment | None = None
    ) -> Decision:
        """Return the decision on a heartbeat. ``assigned`` is the assignor's result for the previous decision on this
        heartbeat.

        Raises InvalidRequestError, GroupIdNotFoundError, GroupMaxSizeReachedError, UnknownMemberIdError,
        FencedMemberEpochError.
        """
        check_request(request)
        if request.member_epoch == LEAVE_EPOCH:
            return Decision(self._leave(request))
        group = self._find_group(request)
        draft = self._find_member(group, request)
        before = draft.current
        self._update_subscription(draft, context, request)
        uninitialized = self._initialize(draft)
        unassigned = None
        if draft.epoch > group.assignment_epoch and self._may_assign(group):
            unassigned = self._update_target(draft, assigned)
        if draft.current.epoch != draft.assignment_epoch or draft.current.assigned != draft.target:
            draft.current = ShareAssignment(draft.assignment_epoch, before.epoch, draft.target)
            draft.records.append(share_current_record(group.group_id, draft.member_id, draft.current))
        response = ShareGroupHeartbeatResponse(
            member_id=draft.member_id,
            member_epoch=draft.current.epoch,
            heartbeat_interval_ms=self._config(group.group_id).heartbeat_interval_ms,
        )
        if request.subscribed_topic_names is not None or before.assigned != draft.current.assigned:
            response.assignment = assignment_response(draft.current.assigned)
        self._schedule_session(group.group_id, draft.member_id)
        result = CoordinatorResult(response, draft.records, self._build_append_callback(draft))
        return Decision(result, draft.epoch, uninitialized, unassigned)

    def _build_append_callback(self, draft: Draft) -> Callable[[KafkaError | None], None]:
        """Build the callback after the append, which notes the version of the metadata that the draft was made with."""
        version = self._metadata.changes

        def on_append(error: KafkaError | None) -> None:
            if error is not None:
                raise error
            self._groups[draft.group.group_id].metadata_version = version

        return on_append

    # -- 1. the member ------------------------------------------------------------------------------------------

    def _find_group(self, request: ShareGroupHeartbeatRequest) -> ShareGroup:
        group = self._groups.get(request.group_id)
        if group is None and request.member_epoch == JOIN_EPOCH:
            return ShareGroup(request.group_id)
        if group is None:
            raise GroupIdNotFoundError(f"Share group {request.group_id} not found.")
        if not isinstance(group, ShareGroup):
            raise GroupIdNotFoundError(f"Group {request.group_id} is not a share group.")
        if len(group.members) >= self._config(group.group_id).max_size and request.member_id not in group.members:
            raise GroupMaxSizeReachedError
        return group

    def _find_member(self, group: ShareGroup, request: ShareGroupHeartbeatRequest) -> Draft:
        member = group.members.get(request.member_id)
        subscription, current = ShareSubscription(), NEW_SHARE_MEMBER
        if member is not None:
            subscription, current = member.subscription, member.current
            check_epoch(current, request.member_epoch)
        elif request.member_epoch != JOIN_EPOCH:
            raise UnknownMemberIdError(f"Member {request.member_id} is not a member of group {group.group_id}.")
        return Draft(
            group,
            request.member_id,
            subscription,
            current,
            [],
            target=group.target_of(request.member_id),
            epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            initialized=group.initialized,
        )

    # -- 2. the subscription ------------------------------------------------------------------------------------

    def _update_subscription(self, draft: Draft, context: RequestContext, request: ShareGroupHeartbeatRequest) -> None:
        group, before = draft.group, draft.subscription
        names = request.subscribed_topic_names
        draft.subscription = ShareSubscription(
            request.rack_id or before.rack_id,
            context.client_id or "",
            f"/{context.client_host}",
            before.topic_names if names is None else tuple(sorted(set(names))),
        )
        is_new = draft.member_id not in group.members
        if is_new or draft.subscription != before:
            draft.records.append(share_member_record(group.group_id, draft.member_id, draft.subscription))
        changed = is_new or draft.subscription.topic_names != before.topic_names
        if not changed and group.metadata_version == self._metadata.changes:
            return
        metadata_hash = topics_hash(self._images(draft))
        if changed or metadata_hash != group.metadata_hash:
            draft.epoch += 1
            draft.records.append(share_epoch_record(group.group_id, draft.epoch, metadata_hash))
            logger.info("share group %s raises its epoch to %d", group.group_id, draft.epoch)

    def _images(self, draft: Draft) -> list[TopicImage]:
        distinct = {subscription.topic_names for subscription in draft.subscriptions().values()}
        names = {name for topic_names in distinct for name in topic_names}
        return [image for name in sorted(names) if (image := self._metadata.find(name)) is not None]

    # -- 3. states of share partitions --------------------------------------------------------------------------

    def _initialize(self, draft: Draft) -> UninitializedPartitions | None:
        """Add a record that lists subscribed partitions without a share state as initialized, and return them.

        Returns None if the group's epoch has not risen: then neither topics nor subscriptions have changed.
        """
        if draft.epoch == draft.group.epoch:
            return None
        missing: UninitializedPartitions = {}
        initialized = dict(draft.initialized)
        for image in self._images(draft):
            known = initialized.get(image.topic_id)
            every = frozenset(range(image.partition_count))
            lacking = every if known is None else every - known.partitions
            if lacking:
                missing[image.topic_id] = lacking
                initialized[image.topic_id] = InitializedTopic(image.name, every)
        if missing:
            draft.initialized = initialized
            deleting = {topic_id: name for topic_id, name in draft.group.deleting.items() if topic_id not in missing}
            draft.records.append(initialized_record(draft.group.group_id, initialized, deleting))
        return missing

    # -- 4. the target ------------------------------------------------------------------------------------------

    def _may_assign(self, group: ShareGroup) -> bool:
        interval_ms = self._interval_ms("share", group.group_id)
        return may_assign(group.assigned_at_ms, interval_ms, self._time.milliseconds())

    def _update_target(self, draft: Draft, assigned: ComputedAssignment | None) -> Subscriptions | None:
        """Add the records of a new target. If ``assigned`` is not the assignor's result for the current input, nothing
        is added, and the input is returned."""
        group = draft.group
        counts = {image.topic_id: image.partition_count for image in self._images(draft)}
        subscribed = draft.subscriptions()
        found = {names: self._topic_ids(names) for names in {one.topic_names for one in subscribed.values()}}
        members = {
            member_id: MemberSpec(found[subscription.topic_names], assigned=group.target_of(member_id))
            for member_id, subscription in subscribed.items()
        }
        subscriptions = Subscriptions(members, counts)
        if assigned is None or assigned.subscriptions != subscriptions:
            return subscriptions
        for member_id, assignment in assigned.target.items():
            if member_id not in group.target or group.target[member_id] != assignment:
                draft.records.append(share_target_record(group.group_id, member_id, assignment))
        draft.records.append(share_target_epoch_record(group.group_id, draft.epoch, self._time.milliseconds()))
        draft.target = assigned.target[draft.member_id]
        draft.assignment_epoch = draft.epoch
        return None

    def _topic_ids(self, names: Iterable[str]) -> frozenset[bytes]:
        return frozenset(image.topic_id for name in names if (image := self._metadata.find(name)) is not None)

    # -- leaving ------------------------------------------------------------------------------------------------

    def _leave(self, request: ShareGroupHeartbeatRequest) -> HeartbeatResult:
        group = self._groups.get(request.group_id)
        if not isinstance(group, ShareGroup):
            raise GroupIdNotFoundError(f"Share group {request.group_id} not found.")
        if request.member_id not in group.members:
            raise UnknownMemberIdError(f"Member {request.member_id} is not a member of group {group.group_id}.")
        response = ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE_EPOCH)
        return CoordinatorResult(response, *self._removal(group, request.member_id))

    def _removal(
        self, group: ShareGroup, member_id: str
    ) -> tuple[list[CoordinatorRecord], Callable[[KafkaError | None], None]]:
        """Build the records and the callback that remove a member. Another member's next heartbeat reassigns the
        removed member's partitions."""
        records = share_member_tombstones(group.group_id, member_id)
        records.append(share_epoch_record(group.group_id, group.epoch + 1, group.metadata_hash))

        def on_append(error: KafkaError | None) -> None:
            if error is not None:
                raise error
            self._timer.cancel(("share-session", group.group_id, member_id))
            logger.info("share group %s removes %s", group.group_id, member_id)
            self._on_member_gone(group.group_id, member_id)

        return records, on_append

    # -- sessions -----------------------------------------------------------------------------------------------

    def _schedule_session(self, group_id: str, member_id: str) -> None:
        self._timer.schedule(
            ("share-session", group_id, member_id),
            self._config(group_id).session_timeout_ms,
            lambda: self._expire(group_id, member_id),
        )

    def _expire(self, group_id: str, member_id: str) -> TimerResult:
        group = self._groups.get(group_id)
        if not isinstance(group, ShareGroup) or member_id not in group.members:
            return None
        self._schedule_session(group_id, member_id)  # tries again if the append fails
        return CoordinatorResult(None, *self._removal(group, member_id))

    def start_clocks(self, group: ShareGroup) -> None:
        """Start the session timers of all members after the group was loaded, with full timeouts."""
        for member_id in group.members:
            self._schedule_session(group.group_id, member_id)


def check_request(request: ShareGroupHeartbeatRequest) -> None:
    """Check the fields of a request, without the group. Raises InvalidRequestError."""
    if not request.member_id.strip():
        raise InvalidRequestError("MemberId can't be empty.")
    if not request.group_id.strip():
        raise InvalidRequestError("GroupId can't be empty.")
    if request.rack_id == "":
        raise InvalidRequestError("RackId can't be empty.")
    if request.member_epoch == JOIN_EPOCH:
        if not request.subscribed_topic_names:
            raise InvalidRequestError("SubscribedTopicNames must be set in first request.")
    elif request.member_epoch < LEAVE_EPOCH:
        raise InvalidRequestError("MemberEpoch is invalid.")


def check_epoch(current: ShareAssignment, epoch: int) -> None:
    """Check the epoch of a member's heartbeat. The previous epoch is accepted too, as the response with the new one may
    be lost, and JOIN_EPOCH, with which a member rejoins. Raises FencedMemberEpochError.
    """
    if epoch not in (current.epoch, current.previous_epoch, JOIN_EPOCH):
        raise FencedMemberEpochError(
            f"The share group member has a member epoch ({epoch}) other than the one known by the group coordinator "
            f"({current.epoch}). The member must abandon all its partitions and rejoin."
        )


def topics_hash(images: Iterable[TopicImage]) -> int:
    """Compute a hash of topics, their ids and partition counts."""
    text = "\n".join(f"{image.name} {image.topic_id.hex()} {image.partition_count}" for image in images)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def assignment_response(assigned: Assignment) -> AssignmentResponse:
    """Convert an assignment to its field in the response."""
    return AssignmentResponse(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=sorted(indexes)) for topic_id, indexes in assigned.items()
        ]
    )
