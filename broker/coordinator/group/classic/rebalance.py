"""Rebalances of a classic group, and the timers that drive them.

    JoinGroup of a member ........ any state but Dead -> PreparingRebalance, the request waits; ``join`` says which
                                   requests begin no rebalance
    all joined, or timeout ....... PreparingRebalance -> CompletingRebalance, all JoinGroups are answered
    SyncGroup of the leader ...... the assignment is appended to the log; then -> Stable, all SyncGroups are answered
    a member is late or leaves ... -> PreparingRebalance again

``join`` and ``sync`` decide about requests; this module has the transitions of state that both use, and those that a
timer causes. The timers, by key: ("heartbeat", group, member) the session; ("join", group) the end of
PreparingRebalance; ("sync", group) members that joined but never sent SyncGroup. A member keeps the Deferred of its
waiting request, which is completed exactly once: with the outcome, or with an error.

A record of the group is written only for a new group, the leader's assignment, an empty generation and a static
member's new id. While serving, such a record is not replayed (``CoordinatorResult.replay``): the group is changed
before the append, or in its callback.

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

Step = CoordinatorResult[None] | None
"""Records and callback of a rebalance's step, which are added to the result of the request or timer that caused it;
None if there is nothing to append."""


def append_error_for_client(error: KafkaError) -> KafkaError:
    """Return the error for a group's client when an append to the group's partition has failed."""
    if isinstance(error, UnknownTopicOrPartitionError):
        return CoordinatorNotAvailableError()
    if isinstance(error, NotLeaderOrFollowerError | KafkaStorageError):
        return NotCoordinatorError()
    if isinstance(error, MessageTooLargeError | RecordListTooLargeError):
        return UnknownServerError()
    return error


def current_generation(group: ClassicGroup, member_id: str) -> JoinGroupResponse:
    """Build the JoinGroup response for the current generation; the leader's has the members' subscriptions."""
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
    """Build the SyncGroup response for the current generation."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )


class ClassicRebalance:
    """Carries out the rebalances of the classic groups of one partition. Loop thread only."""

    def __init__(
        self, groups: MutableMapping[str, Any], *, timer: CoordinatorTimer, time: Time, config: GroupConfig
    ) -> None:
        self.groups = groups
        self.timer = timer
        self.time = time
        self.config = config

    # -- sessions -----------------------------------------------------------------------------------------------

    def schedule_session(self, group: ClassicGroup, member: ClassicMember) -> None:
        """Restart the member's session timer."""
        self.schedule_expiration(group, member.member_id, member.session_timeout_ms)

    def schedule_expiration(self, group: ClassicGroup, member_id: str, timeout_ms: int) -> None:
        """Schedule the removal of a member, or of a member id that has not joined."""
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
        logger.info("group %s removes %s: its session timed out", group.group_id, member_id)
        return self.remove_member(group, member, f"session of {member_id} timed out")

    def watch(self, group: ClassicGroup, member: ClassicMember, awaiting: Deferred[Any]) -> None:
        """Restart the member's session timer if the connection of its waiting request closes. The member may rejoin
        until the timer fires."""

        def on_abandon() -> None:
            if group.members.get(member.member_id) is member:
                self.schedule_session(group, member)

        awaiting.on_abandon(on_abandon)

    def remove_member(self, group: ClassicGroup, member: ClassicMember, reason: str) -> Step:
        """Remove a member, and begin a rebalance without it or go on with the current one."""
        self.drop(group, member)
        if group.state is STABLE or group.state is COMPLETING_REBALANCE:
            return self.prepare_rebalance(group, reason)
        return self.maybe_complete(group)

    def drop(self, group: ClassicGroup, member: ClassicMember) -> None:
        """Remove a member. Its waiting requests are answered UNKNOWN_MEMBER_ID, so that a living client rejoins."""
        group.complete_join(member, JoinGroupResponse(error_code=UnknownMemberIdError.code))
        group.complete_sync(member, SyncGroupResponse(error_code=UnknownMemberIdError.code))
        group.remove(member.member_id)
        self.cancel_session(group, member.member_id)

    # -- the rebalance ------------------------------------------------------------------------------------------

    def rebalance_or_complete(self, group: ClassicGroup, reason: str) -> Step:
        """Begin a rebalance, or go on with the current one."""
        if group.can_rebalance:
            return self.prepare_rebalance(group, reason)
        return self.maybe_complete(group)

    def prepare_rebalance(self, group: ClassicGroup, reason: str) -> Step:
        """Begin a rebalance, for which all members must rejoin. Waiting SyncGroups get REBALANCE_IN_PROGRESS."""
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
            return None  # the initial delay is running; its timer completes the join phase
        return self.complete_join(group)

    def complete_join(self, group: ClassicGroup) -> Step:
        """Begin the next generation: remove dynamic members that have not rejoined, and answer all JoinGroups."""
        self.timer.cancel(("join", group.group_id))
        for member in [m for m in group.members.values() if m.group_instance_id is None and not _has_joined(m)]:
            logger.info("group %s removes %s, which has not rejoined", group.group_id, member.member_id)
            group.remove(member.member_id)
            self.cancel_session(group, member.member_id)
        if group.state is DEAD:
            return None
        if group.members and not group.elect_joined_leader():
            # Only static members are left, and none has rejoined: wait until one rejoins or times out.
            self._schedule_join(group)
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
        """Answer all waiting SyncGroups: with the assignments, or with the error."""
        for member in list(group.members.values()):
            if member.awaiting_sync is None:
                continue
            self.schedule_session(group, member)  # the session may have timed out while the request waited
            if error_code == NONE:
                group.complete_sync(member, current_assignment(group, member))
            else:
                group.complete_sync(member, SyncGroupResponse(error_code=error_code))

    def refuse_all(self, group: ClassicGroup, error_code: int) -> None:
        """Answer all waiting requests with an error. The group does not change."""
        for member in list(group.members.values()):
            group.complete_join(member, JoinGroupResponse(error_code=error_code, member_id=member.member_id))
            group.complete_sync(member, SyncGroupResponse(error_code=error_code))

    # -- timers -------------------------------------------------------------------------------------------------

    def _schedule_initial(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
        self.timer.schedule(
            ("join", group.group_id), delay_ms, lambda: self._initial_delay_over(group, delay_ms, remaining_ms)
        )

    def _initial_delay_over(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> Step:
        if self.groups.get(group.group_id) is not group or group.state is not PREPARING_REBALANCE:
            return None
        if group.new_member_added and remaining_ms:  # KIP-134: each new member extends the delay
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
        """Remove members that joined but never sent SyncGroup, and begin a rebalance."""
        if self.groups.get(group.group_id) is not group or group.generation_id != generation_id:
            return None
        if group.state not in (COMPLETING_REBALANCE, STABLE) or not group.pending_sync_members:
            return None
        late = sorted(group.pending_sync_members)
        for member_id in late:
            group.remove(member_id)
            self.cancel_session(group, member_id)
        return self.prepare_rebalance(group, f"no SyncGroup from {late}")


def end_group(rebalance: ClassicRebalance, group: ClassicGroup, error_code: int) -> None:
    """End a group that another one replaces, or that could not be stored: stop its timers, and answer all waiting
    requests with an error."""
    rebalance.refuse_all(group, error_code)
    for kind in ("join", "sync"):
        rebalance.timer.cancel((kind, group.group_id))
    for member_id in [*group.members, *group.pending_join_members]:
        rebalance.cancel_session(group, member_id)
    group.transition_to(DEAD, rebalance.time.milliseconds())


def _has_joined(member: ClassicMember) -> bool:
    """Return whether a member waits in JoinGroup on an open connection. A dynamic member that does not is removed
    when the next generation begins."""
    return member.awaiting_join is not None and not member.awaiting_join.abandoned


def _waits(member: ClassicMember) -> bool:
    """Return whether a member waits in JoinGroup or SyncGroup on an open connection, and so has no session timeout. A
    new member times out even while it waits, because its client may be gone.
    """
    if member.is_new:
        return False
    waiting = (member.awaiting_join, member.awaiting_sync)
    return any(deferred is not None and not deferred.abandoned for deferred in waiting)
