"""JoinGroup to a classic group: new members, members that rejoin, and static members that restarted.

    no member id, dynamic ...... v4+: it gets a member id, and must repeat the request with it (KIP-394); before v4 it
                                 is added
    no member id, static ....... it is added, or replaces the incarnation with its instance id, which is fenced
    known member ............... a rebalance begins, or goes on; but with unchanged protocols the member gets the
                                 current generation, except in PreparingRebalance and as leader of a stable group
    unknown member id .......... UNKNOWN_MEMBER_ID

Source: JoinGroup v0-9; KIP-345, KIP-394, KIP-814 (skip assignment).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    current_generation,
    end_group,
)
from tidelog.broker.coordinator.group.records import empty_group_record, group_metadata_record
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord, CoordinatorResult
from tidelog.broker.loop.deferred import Deferred
from tidelog.protocol.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    KafkaError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.sync_group import SyncGroupResponse
from tidelog.protocol.types import MAX_STRING_BYTES

if TYPE_CHECKING:
    from tidelog.broker.requests.context import RequestContext

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""Time after which a new member is removed if it still waits in JoinGroup: it has no session yet, and its client may be
gone."""

MAX_NAME_BYTES = MAX_STRING_BYTES - len("-") - 36
"""Largest size of a name of which a member id is made: a hyphen and a UUID follow it."""

JoinResult = CoordinatorResult[Deferred[JoinGroupResponse]]


@dataclass(frozen=True, slots=True)
class PreviousStaticMember:
    """State of a static member before it rejoined, which is restored if its new member id cannot be stored."""

    old_member_id: str
    old_leader: str | None
    protocols: dict[str, bytes]
    rebalance_timeout_ms: int
    session_timeout_ms: int


def answer_now(response: JoinGroupResponse) -> JoinResult:
    """Build the result of a response that needs no wait."""
    deferred: Deferred[JoinGroupResponse] = Deferred()
    deferred.complete(response)
    return CoordinatorResult(deferred)


def refuse(error: type[KafkaError] | KafkaError, member_id: str = "") -> JoinResult:
    """Build the result of an error. With MEMBER_ID_REQUIRED the client repeats its request with ``member_id``."""
    return answer_now(JoinGroupResponse(error_code=error.code, member_id=member_id))


def protocols_of(request: JoinGroupRequest) -> dict[str, bytes]:
    """Return copies of the protocols of a request, whose bytes are only valid until its handler returns."""
    return {protocol.name: bytes(protocol.metadata) for protocol in request.protocols}


def rebalance_timeout_of(request: JoinGroupRequest) -> int:
    """Return the rebalance timeout; version 0 has none, and uses the session timeout."""
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms


def name_of(context: RequestContext, request: JoinGroupRequest) -> str:
    """Return the client's name with which its member id begins: the instance id, or the client id of a dynamic
    member."""
    return (context.client_id or "") if request.group_instance_id is None else request.group_instance_id


class ClassicJoin:
    """Decides on JoinGroup requests; ``ClassicRebalance`` carries rebalances out. Loop thread only."""

    def __init__(self, rebalance: ClassicRebalance, new_uuid: Callable[[], str]) -> None:
        self._rebalance = rebalance
        self._config = rebalance.config
        self._new_uuid = new_uuid

    def validate(self, context: RequestContext, request: JoinGroupRequest) -> None:
        """Raise InvalidSessionTimeoutError outside ``group.min/max.session.timeout.ms``, and InvalidRequestError if the
        client's name is too long for a member id."""
        timeout_ms = request.session_timeout_ms
        if not self._config.group_min_session_timeout_ms <= timeout_ms <= self._config.group_max_session_timeout_ms:
            raise InvalidSessionTimeoutError
        name = name_of(context, request)
        if len(name.encode()) > MAX_NAME_BYTES:
            raise InvalidRequestError(f"no member id can be made of a name of {len(name)} characters: it is too long")

    def join(self, context: RequestContext, request: JoinGroupRequest, group: ClassicGroup) -> JoinResult:
        """Admit or refuse a member. The response may wait for a rebalance. The group may be empty."""
        member_id = request.member_id
        if not self._accepts(group, member_id):
            group.remove(member_id)
            return refuse(GroupMaxSizeReachedError)
        if group.state is DEAD:
            return refuse(CoordinatorNotAvailableError, member_id)
        if not group.supports_protocols(request.protocol_type, [p.name for p in request.protocols]):
            return refuse(InconsistentGroupProtocolError, member_id)
        if not member_id:
            return self._join_new(context, request, group)
        if member_id in group.pending_join_members and request.group_instance_id is None:
            return self._add(context, request, group, member_id)
        return self._join_existing(request, group)

    def join_new(
        self,
        context: RequestContext,
        request: JoinGroupRequest,
        group: ClassicGroup,
        tombstones: list[CoordinatorRecord],
    ) -> JoinResult:
        """Admit the first member to a new group, which may replace another one: ``tombstones`` are the other's. If the
        records cannot be stored, the new group is removed, and the replaced one is there again."""
        groups = self._rebalance.groups
        replaced = groups.get(group.group_id)

        def on_append(error: KafkaError | None) -> None:
            if error is None:
                return
            end_group(self._rebalance, group, error.code)
            del groups[group.group_id]
            if replaced is not None:
                groups[group.group_id] = replaced
            raise error

        groups[group.group_id] = group
        result = self.join(context, request, group)
        result.records = [*tombstones, *(result.records or [empty_group_record(group)])]
        result.on_append, result.replay = on_append, False
        return result

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """Return whether the group may have this member within ``group.max.size``.

        While the group rebalances, only members that have rejoined count, so the last to rejoin are refused.
        """
        limit = self._config.group_max_size
        member = group.members.get(member_id)
        if group.state is EMPTY or group.state is DEAD:
            return True
        if group.state is PREPARING_REBALANCE:
            return (member is not None and member.awaiting_join is not None) or group.awaiting_join_count < limit
        return member is not None or len(group.members) < limit

    def _join_new(self, context: RequestContext, request: JoinGroupRequest, group: ClassicGroup) -> JoinResult:
        instance_id = request.group_instance_id
        member_id = f"{name_of(context, request)}-{self._new_uuid()}"
        if instance_id is not None:
            if instance_id in group.static_members:
                return self._replace_static(context, request, group, member_id)
        elif context.api_version >= 4:
            # Clients that vanish during their first JoinGroup must leave no members (KIP-394).
            group.pending_join_members.add(member_id)
            self._rebalance.schedule_expiration(group, member_id, request.session_timeout_ms)
            return refuse(MemberIdRequiredError, member_id)
        return self._add(context, request, group, member_id)

    def _join_existing(self, request: JoinGroupRequest, group: ClassicGroup) -> JoinResult:
        member_id = request.member_id
        try:
            group.validate_member(member_id, request.group_instance_id)
        except KafkaError as error:
            return refuse(error, member_id)
        if group.state is EMPTY:
            return refuse(UnknownMemberIdError, member_id)
        member = group.members[member_id]
        unchanged = group.state is not PREPARING_REBALANCE and member.protocols == protocols_of(request)
        if unchanged and not (group.state is STABLE and group.leader_id == member_id):
            # The previous response was lost, or a follower has nothing new. The leader of a stable group repeats its
            # request because the partitions to assign have changed, which needs a rebalance.
            return answer_now(current_generation(group, member_id))
        return self._update(request, group, member)

    def _add(
        self, context: RequestContext, request: JoinGroupRequest, group: ClassicGroup, member_id: str
    ) -> JoinResult:
        member = ClassicMember(
            member_id,
            group_instance_id=request.group_instance_id,
            client_id=context.client_id or "",
            client_host=f"/{context.client_host}",
            rebalance_timeout_ms=rebalance_timeout_of(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=protocols_of(request),
        )
        member.is_new = True
        if group.state is PREPARING_REBALANCE and group.previous_state is EMPTY:
            group.new_member_added = True
        if not group.members:
            group.protocol_type = request.protocol_type
        awaiting: Deferred[JoinGroupResponse] = Deferred()
        group.add(member, awaiting)
        self._rebalance.watch(group, member, awaiting)
        self._rebalance.schedule_expiration(group, member_id, NEW_MEMBER_JOIN_TIMEOUT_MS)
        return _build_waiting(awaiting, self._rebalance.rebalance_or_complete(group, f"new member {member_id}"))

    def _update(self, request: JoinGroupRequest, group: ClassicGroup, member: ClassicMember) -> JoinResult:
        awaiting = self._apply_and_wait(request, group, member)
        reason = f"member {member.member_id} joins again"
        return _build_waiting(awaiting, self._rebalance.rebalance_or_complete(group, reason))

    def _apply_and_wait(
        self, request: JoinGroupRequest, group: ClassicGroup, member: ClassicMember
    ) -> Deferred[JoinGroupResponse]:
        """Set the member's protocols and timeouts to those of the request. Returns the response that the member waits
        for."""
        replaced, awaiting = member.awaiting_join, Deferred[JoinGroupResponse]()
        group.update_member(
            member,
            protocols_of(request),
            rebalance_timeout_ms=rebalance_timeout_of(request),
            session_timeout_ms=request.session_timeout_ms,
            awaiting=awaiting,
        )
        self._rebalance.watch(group, member, awaiting)
        if replaced is not None:
            # The client gave up on its first request, whose connection may still be open.
            error_code = RebalanceInProgressError.code
            replaced.complete(JoinGroupResponse(error_code=error_code, member_id=member.member_id))
        return awaiting

    # -- static members -----------------------------------------------------------------------------------------

    def _replace_static(
        self, context: RequestContext, request: JoinGroupRequest, group: ClassicGroup, member_id: str
    ) -> JoinResult:
        """Let a static member that rejoins without its member id replace its old incarnation, which is fenced."""
        assert request.group_instance_id is not None
        old_leader, old_member_id = group.leader_id, group.static_members[request.group_instance_id]
        member = self._rename(group, request.group_instance_id, old_member_id, member_id)
        previous = PreviousStaticMember(
            old_member_id, old_leader, member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms
        )
        awaiting = self._apply_and_wait(request, group, member)
        self._rebalance.schedule_session(group, member)
        if group.state is STABLE and group.protocol_name == group.select_protocol():
            return self._keep_generation(context, group, member, previous)
        if group.state is STABLE or group.state is COMPLETING_REBALANCE:
            # In CompletingRebalance the leader may know only the old member id, and would assign nothing to the new.
            return _build_waiting(
                awaiting, self._rebalance.prepare_rebalance(group, f"static member {member_id} joins again")
            )
        return _build_waiting(awaiting, self._rebalance.maybe_complete(group))

    def _rename(self, group: ClassicGroup, instance_id: str, old_member_id: str, member_id: str) -> ClassicMember:
        member, joins, syncs = group.replace_static_member(
            instance_id, old_member_id=old_member_id, new_member_id=member_id
        )
        self._rebalance.cancel_session(group, old_member_id)
        fenced = FencedInstanceIdError.code
        for join in joins:
            join.complete(JoinGroupResponse(error_code=fenced, member_id=old_member_id))
        for sync in syncs:
            sync.complete(SyncGroupResponse(error_code=fenced))
        return member

    def _keep_generation(
        self, context: RequestContext, group: ClassicGroup, member: ClassicMember, previous: PreviousStaticMember
    ) -> JoinResult:
        """Store the member's new id without a rebalance: the member keeps its assignment."""
        awaiting = member.awaiting_join
        assert awaiting is not None
        can_skip_assignment = context.api_version >= 9

        def on_append(error: KafkaError | None) -> None:
            if error is not None:
                self._revert(group, member, previous)
                awaiting.complete(JoinGroupResponse(error_code=append_error_for_client(error).code))
                return
            response = current_generation(group, member.member_id)
            if can_skip_assignment:
                response.skip_assignment = group.leader_id == member.member_id
            else:
                # Before v9 a response cannot tell the client to skip the assignment, so it must not name the client as
                # leader. It names the previous leader, which may be the client's old member id.
                response.leader = previous.old_leader or ""
                response.members = []
            group.complete_join(member, response)

        record = group_metadata_record(group)
        return CoordinatorResult(awaiting, records=[record], on_append=on_append, replay=False)

    def _revert(self, group: ClassicGroup, member: ClassicMember, previous: PreviousStaticMember) -> None:
        assert member.group_instance_id is not None
        group.update_member(
            member,
            previous.protocols,
            rebalance_timeout_ms=previous.rebalance_timeout_ms,
            session_timeout_ms=previous.session_timeout_ms,
            awaiting=None,
        )
        self._rename(group, member.group_instance_id, member.member_id, previous.old_member_id)
        self._rebalance.schedule_session(group, member)


def _build_waiting(awaiting: Deferred[JoinGroupResponse], step: Step) -> JoinResult:
    if step is None:
        return CoordinatorResult(awaiting)
    return CoordinatorResult(awaiting, records=step.records, on_append=step.on_append, replay=step.replay)
