"""SyncGroup, Heartbeat and LeaveGroup to a classic group.

SyncGroup: the leader's request has the assignment, which is appended to the log before any member gets it; the other
members' requests wait for this append. In a stable group every SyncGroup is answered at once. LeaveGroup v3+ has a
list of members, each answered with its own error; an admin client names static members by instance id only.

Source: SyncGroup v0-5, Heartbeat v0-4, LeaveGroup v0-5; KIP-345, KIP-559.
"""

from __future__ import annotations

import logging

from tidelog.broker.coordinator.group.classic.group import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
    ClassicMember,
)
from tidelog.broker.coordinator.group.classic.rebalance import (
    ClassicRebalance,
    Step,
    append_error_for_client,
    current_assignment,
)
from tidelog.broker.coordinator.group.records import group_metadata_record
from tidelog.broker.coordinator.runtime.result import CoordinatorResult
from tidelog.broker.loop.deferred import Deferred
from tidelog.protocol.errors import (
    NONE,
    CoordinatorNotAvailableError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    KafkaError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from tidelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

logger = logging.getLogger(__name__)

SyncResult = CoordinatorResult[Deferred[SyncGroupResponse]]


class ClassicSync:
    """Answers requests of a classic group's members after they have joined. Loop thread only."""

    def __init__(self, rebalance: ClassicRebalance) -> None:
        self._rebalance = rebalance
        self._timer = rebalance.timer

    # -- SyncGroup ----------------------------------------------------------------------------------------------

    def sync(self, group: ClassicGroup, request: SyncGroupRequest) -> SyncResult:
        """Answer SyncGroup. Raises UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError,
        InconsistentGroupProtocolError, RebalanceInProgressError, CoordinatorNotAvailableError.
        """
        self._validate(group, request)
        if group.state is PREPARING_REBALANCE:
            raise RebalanceInProgressError
        member = group.members[request.member_id]
        group.pending_sync_members.discard(request.member_id)
        if not group.pending_sync_members:
            self._timer.cancel(("sync", group.group_id))
        if group.state is STABLE:
            deferred: Deferred[SyncGroupResponse] = Deferred()
            deferred.complete(current_assignment(group, member))
            return CoordinatorResult(deferred)
        awaiting = self._wait(member)
        self._rebalance.watch(group, member, awaiting)
        if group.leader_id != request.member_id:
            return CoordinatorResult(awaiting)
        return self._assign(group, awaiting, request)

    @staticmethod
    def _wait(member: ClassicMember) -> Deferred[SyncGroupResponse]:
        replaced, awaiting = member.awaiting_sync, Deferred[SyncGroupResponse]()
        member.awaiting_sync = awaiting
        if replaced is not None:
            replaced.complete(SyncGroupResponse(error_code=RebalanceInProgressError.code))
        return awaiting

    def _assign(
        self, group: ClassicGroup, awaiting: Deferred[SyncGroupResponse], request: SyncGroupRequest
    ) -> SyncResult:
        assignments = {a.member_id: bytes(a.assignment) for a in request.assignments}

        def on_append(error: KafkaError | None) -> None:
            if error is not None:
                self._rebalance.answer_syncs(group, append_error_for_client(error).code)
                self._rebalance.prepare_rebalance(group, "the assignment could not be stored")
                return
            for member in group.members.values():
                member.assignment = assignments.get(member.member_id, b"")
            group.transition_to(STABLE, self._rebalance.time.milliseconds())
            self._rebalance.answer_syncs(group, NONE)

        record = group_metadata_record(group, assignments)
        return CoordinatorResult(awaiting, records=[record], on_append=on_append, replay=False)

    @staticmethod
    def _validate(group: ClassicGroup, request: SyncGroupRequest) -> None:
        if group.state is DEAD:
            raise CoordinatorNotAvailableError
        group.validate_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation_id:
            raise IllegalGenerationError
        if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
            raise InconsistentGroupProtocolError

    # -- Heartbeat ----------------------------------------------------------------------------------------------

    def heartbeat(self, group: ClassicGroup, request: HeartbeatRequest) -> HeartbeatResponse:
        """Answer Heartbeat. Raises UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError,
        CoordinatorNotAvailableError; REBALANCE_IN_PROGRESS is in the response.
        """
        if group.state is DEAD:
            raise CoordinatorNotAvailableError
        group.validate_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation_id:
            raise IllegalGenerationError
        if group.state is EMPTY:
            raise UnknownMemberIdError
        self._rebalance.schedule_session(group, group.members[request.member_id])
        if group.state is PREPARING_REBALANCE:
            return HeartbeatResponse(error_code=RebalanceInProgressError.code)
        return HeartbeatResponse()

    # -- LeaveGroup ---------------------------------------------------------------------------------------------

    def leave(self, group: ClassicGroup, members: list[MemberIdentity]) -> CoordinatorResult[LeaveGroupResponse]:
        """Remove the leaving members. Each gets its own error code; one rebalance follows for all. Raises
        CoordinatorNotAvailableError.
        """
        if group.state is DEAD:
            raise CoordinatorNotAvailableError
        responses = [self._leave_one(group, member) for member in members]
        step: Step = None
        if any(response.error_code == NONE for response in responses):
            if group.state is STABLE or group.state is COMPLETING_REBALANCE:
                step = self._rebalance.prepare_rebalance(group, "members left")
            else:
                step = self._rebalance.maybe_complete(group)
        response = LeaveGroupResponse(members=responses)
        if step is None:
            return CoordinatorResult(response)
        return CoordinatorResult(response, records=step.records, on_append=step.on_append, replay=step.replay)

    def _leave_one(self, group: ClassicGroup, leaving: MemberIdentity) -> MemberResponse:
        response = MemberResponse(member_id=leaving.member_id, group_instance_id=leaving.group_instance_id)
        member_id = leaving.member_id
        if not member_id and leaving.group_instance_id is not None:
            member_id = group.static_members.get(leaving.group_instance_id, "")
        if member_id in group.pending_join_members:
            group.remove(member_id)
            self._rebalance.cancel_session(group, member_id)
            return response
        try:
            group.validate_member(member_id, leaving.group_instance_id)
        except KafkaError as error:
            response.error_code = error.code
            return response
        logger.info("group %s: %s leaves: %s", group.group_id, member_id, leaving.reason or "no reason given")
        self._rebalance.drop(group, group.members[member_id])
        return response


def _differs(asked: str | None, current: str | None) -> bool:
    return asked is not None and current is not None and asked != current
