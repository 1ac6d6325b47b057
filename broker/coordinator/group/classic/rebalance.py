"""Rebalances of a classic group, and the timers that drive them.

    JoinGroup of a member ........ Empty/Stable -> PreparingRebalance, the request waits
    all joined, or time is up .... PreparingRebalance -> CompletingRebalance, all JoinGroups are answered
    SyncGroup of the leader ...... the assignment is appended to the log; then -> Stable, all SyncGroups are answered
    a member is late or leaves ... -> PreparingRebalance again

``join`` and ``sync`` hold what requests ask; this module holds the moves they share and what the
clocks do. Clocks, by key: ("heartbeat", group, member) the session; ("join", group) the end of PreparingRebalance;
("sync", group) members that joined but never sent SyncGroup. A request that waits holds a Deferred in its member; it
is completed exactly once: with the outcome, or with the error that makes the client join again.

Only the leader's assignment and an empty generation go to the log. The group object already is what such a record
says, so those records are not replayed while serving (``CoordinatorResult.replay``).

Source: JoinGroup v0-9, SyncGroup v0-5; KIP-134 (initial delay), KIP-345 (static members).
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinator.group.classic.group import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
    ClassicMember,
)
from tidelog.broker.coordinator.group.records import group_metadata_record
from tidelog.broker.coordinator.runtime.result import CoordinatorResult
from tidelog.protocol.errors import (
    NONE,
    CoordinatorNotAvailableError,
    KafkaError,
    KafkaStorageError,
    MessageTooLargeError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
    RebalanceInProgressError,
    RecordListTooLargeError,
    UnknownMemberIdError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from tidelog.protocol.messages.sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from tidelog.broker.coordinator.config import GroupConfig
    from tidelog.broker.coordinator.runtime.timer import CoordinatorTimer
    from tidelog.broker.loop.deferred import Deferred
    from tidelog.log.system.time import Time

logger = logging.getLogger(__name__)

#: What a step of a rebalance adds to the answer of the request that caused it.
Step = CoordinatorResult[None] | None


def append_error_for_client(error: KafkaError) -> KafkaError:
    """Return the error a group's client gets when the append to the group's partition failed."""
    if isinstance(error, UnknownTopicOrPartitionError):
        return CoordinatorNotAvailableError()
    if isinstance(error, NotLeaderOrFollowerError | KafkaStorageError):
        return NotCoordinatorError()
    if isinstance(error, MessageTooLargeError | RecordListTooLargeError):
        return UnknownServerError()
    return error


def current_generation(group: ClassicGroup, member_id: str) -> JoinGroupResponse:
    """Build the JoinGroup answer of the generation as it stands; the leader gets the members' subscriptions."""
    members = []
    if group.leader_id == member_id:
        protocol = group.protocol_name or ""
        members = [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.protocols.get(protocol, b""),
            )
            for member in group.members.values()
        ]
    return JoinGroupResponse(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or "",
        member_id=member_id,
        members=members,
    )


def current_assignment(group: ClassicGroup, member: ClassicMember) -> SyncGroupResponse:
    """Build the SyncGroup answer of the generation as it stands."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )


class ClassicRebalance:
    """Rebalances of the classic groups of one partition. Loop thread only."""

    def __init__(
        self, groups: MutableMapping[str, Any], *, timer: CoordinatorTimer, time: Time, config: GroupConfig
    ) -> None:
        self.groups = groups
        self.timer = timer
        self.time = time
        self.config = config

    # -- sessions -----------------------------------------------------------------------------------------------

    def schedule_session(self, group: ClassicGroup, member: ClassicMember) -> None:
        """Restart the member's session timer, after a sign of life."""
        self.schedule_expiration(group, member.member_id, member.session_timeout_ms)

    def schedule_expiration(self, group: ClassicGroup, member_id: str, timeout_ms: int) -> None:
        self.timer.schedule(
            ("heartbeat", group.group_id, member_id), timeout_ms, lambda: self._session_over(group, member_id)
        )

    def cancel_session(self, group: ClassicGroup, member_id: str) -> None:
        self.timer.cancel(("heartbeat", group.group_id, member_id))

    def _session_over(self, group: ClassicGroup, member_id: str) -> Step:
        if self.groups.get(group.group_id) is not group:
            return None
        if member_id in group.pending_join_members:
            group.remove(member_id)
            return self.maybe_complete(group)
        member = group.members.get(member_id)
        if member is None or _waits(member):
            return None
        logger.info("group %s removes %s: its session is over", group.group_id, member_id)
        return self.remove_member(group, member, f"session of {member_id} is over")

    def watch(self, group: ClassicGroup, member: ClassicMember, awaiting: Deferred[Any]) -> None:
        """Give the member one session to come back, should the connection close under its waiting request."""

        def on_abandon() -> None:
            if group.members.get(member.member_id) is member:
                self.schedule_session(group, member)

        awaiting.on_abandon(on_abandon)

    def remove_member(self, group: ClassicGroup, member: ClassicMember, reason: str) -> Step:
        """Drop a member and rebalance without it."""
        self.drop(group, member)
        if group.state is STABLE or group.state is COMPLETING_REBALANCE:
            return self.prepare_rebalance(group, reason)
        return self.maybe_complete(group)

    def drop(self, group: ClassicGroup, member: ClassicMember) -> None:
        """Forget a member; what it waits for is answered so that a living client joins again."""
        group.complete_join(member, JoinGroupResponse(error_code=UnknownMemberIdError.code))
        group.complete_sync(member, SyncGroupResponse(error_code=UnknownMemberIdError.code))
        group.remove(member.member_id)
        self.cancel_session(group, member.member_id)

    # -- the rebalance ------------------------------------------------------------------------------------------

    def rebalance_or_complete(self, group: ClassicGroup, reason: str) -> Step:
        """Begin a rebalance, or go on with the one under way."""
        if group.can_rebalance:
            return self.prepare_rebalance(group, reason)
        return self.maybe_complete(group)

    def prepare_rebalance(self, group: ClassicGroup, reason: str) -> Step:
        """Have all members join again; those that wait for an assignment hear so at once."""
        if group.state is COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
            self.answer_syncs(group, RebalanceInProgressError.code)
        group.pending_sync_members.clear()
        self.timer.cancel(("sync", group.group_id))
        initial = group.state is EMPTY
        group.transition_to(PREPARING_REBALANCE, self.time.milliseconds())
        logger.info("group %s rebalances after generation %d: %s", group.group_id, group.generation_id, reason)
        delay_ms = self.config.group_initial_rebalance_delay_ms
        if initial and delay_ms > 0:
            self._schedule_initial(group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
            return None
        if group.has_all_members_joined:
            return self.complete_join(group)
        self._schedule_join(group)
        return None

    def maybe_complete(self, group: ClassicGroup) -> Step:
        """Complete the join phase if no member is missing."""
        if group.state is not PREPARING_REBALANCE or not group.has_all_members_joined:
            return None
        if group.previous_state is EMPTY and group.members and self.config.group_initial_rebalance_delay_ms > 0:
            return None  # the initial delay gathers members; its clock completes the join
        return self.complete_join(group)

    def complete_join(self, group: ClassicGroup) -> Step:
        """Begin the generation: remove late dynamic members, answer all who joined."""
        self.timer.cancel(("join", group.group_id))
        for member in [m for m in group.members.values() if m.group_instance_id is None and not _has_joined(m)]:
            logger.info("group %s removes %s, which did not join again", group.group_id, member.member_id)
            group.remove(member.member_id)
            self.cancel_session(group, member.member_id)
        if group.state is DEAD:
            return None
        if group.members and not group.elect_joined_leader():
            self._schedule_join(group)  # only static members are left and none has joined: their sessions decide
            return None
        group.init_next_generation(self.time.milliseconds())
        if not group.members:
            logger.info("group %s is empty in generation %d", group.group_id, group.generation_id)
            return CoordinatorResult(None, records=[group_metadata_record(group)], replay=False)
        self._begin_generation(group)
        return None

    def _begin_generation(self, group: ClassicGroup) -> None:
        size = len(group.members)
        logger.info("group %s begins generation %d with %d members", group.group_id, group.generation_id, size)
        group.pending_sync_members.update(group.members)
        generation_id = group.generation_id
        self.timer.schedule(
            ("sync", group.group_id), group.rebalance_timeout_ms, lambda: self._sync_over(group, generation_id)
        )
        for member in list(group.members.values()):
            member.is_new = False
            self.schedule_session(group, member)
            group.complete_join(member, current_generation(group, member.member_id))

    def answer_syncs(self, group: ClassicGroup, error_code: int) -> None:
        """Answer all who wait in SyncGroup: with their assignment, or with the error."""
        for member in list(group.members.values()):
            if member.awaiting_sync is None:
                continue
            self.schedule_session(group, member)  # it may have run out while the member waited for the leader
            if error_code == NONE:
                group.complete_sync(member, current_assignment(group, member))
            else:
                group.complete_sync(member, SyncGroupResponse(error_code=error_code))

    def refuse_all(self, group: ClassicGroup, error_code: int) -> None:
        """Answer every waiting member with an error; the group stays as it is."""
        for member in list(group.members.values()):
            group.complete_join(member, JoinGroupResponse(error_code=error_code, member_id=member.member_id))
            group.complete_sync(member, SyncGroupResponse(error_code=error_code))

    # -- clocks -------------------------------------------------------------------------------------------------

    def _schedule_initial(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
        self.timer.schedule(
            ("join", group.group_id), delay_ms, lambda: self._initial_delay_over(group, delay_ms, remaining_ms)
        )

    def _initial_delay_over(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> Step:
        if self.groups.get(group.group_id) is not group or group.state is not PREPARING_REBALANCE:
            return None
        if group.new_member_added and remaining_ms:
            group.new_member_added = False
            next_delay_ms = min(self.config.group_initial_rebalance_delay_ms, remaining_ms)
            self._schedule_initial(group, next_delay_ms, max(remaining_ms - delay_ms, 0))
            return None
        return self.complete_join(group)

    def _schedule_join(self, group: ClassicGroup) -> None:
        self.timer.schedule(("join", group.group_id), group.rebalance_timeout_ms, lambda: self._join_over(group))

    def _join_over(self, group: ClassicGroup) -> Step:
        if self.groups.get(group.group_id) is not group or group.state is not PREPARING_REBALANCE:
            return None
        group.pending_join_members.clear()
        return self.complete_join(group)

    def _sync_over(self, group: ClassicGroup, generation_id: int) -> Step:
        """Remove members that joined and never sent SyncGroup."""
        if self.groups.get(group.group_id) is not group or group.generation_id != generation_id:
            return None
        if group.state not in (COMPLETING_REBALANCE, STABLE) or not group.pending_sync_members:
            return None
        late = sorted(group.pending_sync_members)
        for member_id in late:
            group.remove(member_id)
            self.cancel_session(group, member_id)
        return self.prepare_rebalance(group, f"no SyncGroup from {late}")


def _has_joined(member: ClassicMember) -> bool:
    """Return whether it waits for the generation on an open connection: members that left are assigned nothing."""
    return member.awaiting_join is not None and not member.awaiting_join.abandoned


def _waits(member: ClassicMember) -> bool:
    """Tell whether a member waits: a known one inside JoinGroup or SyncGroup lives while its connection does; a new one
    may have gone.
    """
    if member.is_new:
        return False
    waiting = (member.awaiting_join, member.awaiting_sync)
    return any(deferred is not None and not deferred.abandoned for deferred in waiting)
