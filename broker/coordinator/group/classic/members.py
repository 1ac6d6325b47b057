"""Classic members of a KIP-848 consumer group: their JoinGroup, SyncGroup, Heartbeat and LeaveGroup requests.

To the client of such a member the group looks like a classic group whose leader is another member. The generation is
the member's epoch, and the assignment is the member's current assignment after reconciliation.

    JoinGroup    has the member's subscription and owned partitions (ConsumerProtocolSubscription), as a
                 ConsumerGroupHeartbeat has
    SyncGroup    answered with the member's partitions; with REBALANCE_IN_PROGRESS if the group's epoch is above the
                 member's, unless the member must revoke partitions
    Heartbeat    answered REBALANCE_IN_PROGRESS while the member's epoch is below the group's, or the member must
                 revoke partitions or can get more
    LeaveGroup   removes the classic members that the request names; each of them has its own error code in the answer

No request waits: a member gets the partitions that are free now, and rejoins when a Heartbeat is answered
REBALANCE_IN_PROGRESS. Loop thread only.

Source: KIP-848 (migration); JoinGroup v0-9, SyncGroup v0-5, Heartbeat v0-4, LeaveGroup v0-5.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidelog.broker.coordinator.group.classic.group import CONSUMER_PROTOCOL_TYPE
from tidelog.broker.coordinator.group.classic.join import (
    JoinResult,
    protocols_of,
    rebalance_timeout_of,
    refuse,
)
from tidelog.broker.coordinator.group.classic.rebalance import append_error_for_client
from tidelog.broker.coordinator.group.classic.sync import SyncResult
from tidelog.broker.coordinator.group.consumer.draft import Draft, move_towards_target
from tidelog.broker.coordinator.group.consumer.group import (
    ClassicSpec,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Subscription,
)
from tidelog.broker.coordinator.group.consumer.heartbeat import ConsumerHeartbeats
from tidelog.broker.coordinator.group.consumer.records import epoch_record, member_tombstones
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord, CoordinatorResult
from tidelog.broker.loop.deferred import Deferred
from tidelog.protocol.errors import (
    NONE,
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidRequestError,
    KafkaError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from tidelog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from tidelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from tidelog.broker.requests.context import RequestContext

logger = logging.getLogger(__name__)

_FIRST_VERSION_WITH_MEMBER_ID_REQUIRED = 4


class ClassicMembers:
    """Answers requests of classic members to the consumer groups of one partition of ``__consumer_offsets``."""

    def __init__(self, consumers: ConsumerHeartbeats) -> None:
        self._consumers = consumers
        self._migration = consumers.migration
        self._clocks = consumers.clocks

    # -- JoinGroup ----------------------------------------------------------------------------------------------

    def join(self, context: RequestContext, request: JoinGroupRequest, group: ConsumerGroup) -> JoinResult:
        """Answer JoinGroup of a classic member to a consumer group that has members."""
        protocols = protocols_of(request)
        try:
            self._consumers.check_size(group, request.member_id, request.group_instance_id)
            parsed = self._parse_subscription(group, request, protocols)
            if not request.member_id:
                request.member_id = self._consumers.new_uuid()
                if request.group_instance_id is None and context.api_version >= _FIRST_VERSION_WITH_MEMBER_ID_REQUIRED:
                    return refuse(MemberIdRequiredError, request.member_id)
                draft = self._draft(group, request, may_be_new=True)
            else:
                draft = self._draft(group, request, may_be_new=request.group_instance_id is None)
        except GroupMaxSizeReachedError as error:
            return refuse(error)
        except KafkaError as error:
            return refuse(error, request.member_id)
        spec = ClassicSpec(request.session_timeout_ms, tuple(protocols.items()))
        subscription = _build_subscription(draft, context, request, parsed, spec)
        self._consumers.steps.apply_subscription(draft, subscription, context)
        self._consumers.steps.update_target(draft)
        move_towards_target(draft, self._migration.group_by_topic_id(parsed.owned_partitions))
        return self._answer_join(group, draft, request)

    @staticmethod
    def _parse_subscription(
        group: ConsumerGroup, request: JoinGroupRequest, protocols: dict[str, bytes]
    ) -> ConsumerProtocolSubscription:
        """Parse the member's subscription, in its preferred protocol. Raises InconsistentGroupProtocolError, also if no
        protocol is common to all classic members."""
        common = set(protocols)
        for member in group.members.values():
            if member.subscription.classic is not None:
                common.intersection_update(name for name, _ in member.subscription.classic.protocols)
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not common:
            raise InconsistentGroupProtocolError
        try:
            return ConsumerProtocolSubscription.decode_prefixed_lenient(next(iter(protocols.values())))
        except InvalidRequestError as error:
            raise InconsistentGroupProtocolError from error

    def _draft(self, group: ConsumerGroup, request: JoinGroupRequest, *, may_be_new: bool) -> Draft:
        """Draft the change by a joining member. Unless it ``may_be_new``, it must be a member. Raises
        UnknownMemberIdError, and FencedInstanceIdError for a static member with an outdated member id.
        """
        records: list[CoordinatorRecord] = []
        instance_id = request.group_instance_id
        if not may_be_new:
            member = member_of(group, request.member_id, instance_id)
            return self._consumers.draft_member(group, member, records)
        if instance_id is not None and instance_id in group.static_members:
            return self._consumers.replace_static(group, instance_id, request.member_id, records)
        return self._consumers.draft_member_or_new(group, request.member_id, records)

    def _answer_join(self, group: ConsumerGroup, draft: Draft, request: JoinGroupRequest) -> JoinResult:
        member_id = draft.member_id
        deferred: Deferred[JoinGroupResponse] = Deferred()
        response = JoinGroupResponse(
            member_id=member_id,
            generation_id=draft.current.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocols[0].name,
        )
        finish = self._consumers.build_append_callback(draft)

        def on_append(error: KafkaError | None) -> None:
            if error is not None:
                deferred.complete(
                    JoinGroupResponse(error_code=append_error_for_client(error).code, member_id=member_id)
                )
                return
            finish(None)
            self._clocks.restart_session(group.group_id, member_id, draft.subscription)
            self._clocks.note_joined(group.group_id, member_id, draft.subscription)
            deferred.complete(response)

        replaced = draft.replaced
        if replaced is not None and self._migration.may_downgrade(group, replaced, replaced=True):
            return self._downgrade(draft, replaced, response)
        return CoordinatorResult(deferred, draft.records, on_append)

    def _downgrade(self, draft: Draft, replaced: str, response: JoinGroupResponse) -> JoinResult:
        """Convert the group to a classic one, because its last member of the consumer protocol is replaced."""
        joining = ConsumerMember(draft.member_id, draft.subscription, draft.current)
        records, become_classic = self._consumers.downgrade(draft.group, replaced, joining)
        deferred: Deferred[JoinGroupResponse] = Deferred()

        def on_append(error: KafkaError | None) -> None:
            if error is not None:
                deferred.complete(
                    JoinGroupResponse(error_code=append_error_for_client(error).code, member_id=draft.member_id)
                )
                return
            become_classic(None)
            deferred.complete(response)

        return CoordinatorResult(deferred, records, on_append, replay=False)

    # -- SyncGroup and Heartbeat --------------------------------------------------------------------------------

    def sync(self, group: ConsumerGroup, request: SyncGroupRequest) -> SyncResult:
        """Answer SyncGroup of a classic member of a consumer group. Raises UnknownMemberIdError, FencedInstanceIdError,
        IllegalGenerationError, InconsistentGroupProtocolError, RebalanceInProgressError.
        """
        member, spec = classic_member_of(group, request.member_id, request.group_instance_id)
        if request.generation_id != member.current.epoch:
            raise IllegalGenerationError
        protocol, metadata = spec.protocols[0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (None, protocol):
            raise InconsistentGroupProtocolError
        if group.epoch > member.current.epoch and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
            self._clocks.require_rejoin(group.group_id, member.member_id, member.subscription)
            raise RebalanceInProgressError
        self._clocks.note_synced(group.group_id, member.member_id)
        self._clocks.restart_session(group.group_id, member.member_id, member.subscription)
        deferred: Deferred[SyncGroupResponse] = Deferred()
        deferred.complete(
            SyncGroupResponse(
                protocol_type=request.protocol_type,
                protocol_name=request.protocol_name,
                assignment=self._migration.encode_assignment(member.current.assigned, metadata),
            )
        )
        return CoordinatorResult(deferred)

    def heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest) -> HeartbeatResponse:
        """Answer Heartbeat of a classic member of a consumer group. Raises UnknownMemberIdError, FencedInstanceIdError,
        IllegalGenerationError.
        """
        member, _ = classic_member_of(group, request.member_id, request.group_instance_id)
        current = member.current
        if request.generation_id != current.epoch:
            raise IllegalGenerationError
        self._clocks.restart_session(group.group_id, member.member_id, member.subscription)
        can_have_more = current.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member)
        if current.epoch < group.epoch or current.state is MemberState.UNREVOKED_PARTITIONS or can_have_more:
            self._clocks.require_rejoin(group.group_id, member.member_id, member.subscription)
            return HeartbeatResponse(error_code=RebalanceInProgressError.code)
        return HeartbeatResponse()

    # -- LeaveGroup ---------------------------------------------------------------------------------------------

    def leave(self, group: ConsumerGroup, members: list[MemberIdentity]) -> CoordinatorResult[LeaveGroupResponse]:
        """Remove the leaving members. Each gets its own error code; the group's epoch rises once for all."""
        answers = [self._leave_one(group, leaving) for leaving in members]
        response = LeaveGroupResponse(members=answers)
        gone = dict.fromkeys(answer.member_id for answer in answers if answer.error_code == NONE)
        records = [record for member_id in gone for record in member_tombstones(group.group_id, member_id)]
        if not records:
            return CoordinatorResult(response)
        records.append(epoch_record(group.group_id, group.epoch + 1, group.metadata_hash))

        def on_append(error: KafkaError | None) -> None:
            if error is not None:
                raise error
            for member_id in gone:
                self._clocks.cancel(group.group_id, member_id)

        return CoordinatorResult(response, records, on_append)

    def _leave_one(self, group: ConsumerGroup, leaving: MemberIdentity) -> MemberResponse:
        answer = MemberResponse(member_id=leaving.member_id, group_instance_id=leaving.group_instance_id)
        member_id = leaving.member_id
        if not member_id and leaving.group_instance_id is not None:
            member_id = group.static_members.get(leaving.group_instance_id, "")  # an admin client removes the member
        try:
            member, _ = classic_member_of(group, member_id, leaving.group_instance_id)
        except KafkaError as error:
            answer.error_code = error.code
            return answer
        logger.info("group %s: %s leaves: %s", group.group_id, member_id, leaving.reason or "no reason given")
        return MemberResponse(member_id=member.member_id, group_instance_id=leaving.group_instance_id, error_code=NONE)


def member_of(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    """Return the member with this id. Raises UnknownMemberIdError, and FencedInstanceIdError if the static member now
    has another id.
    """
    if instance_id is not None:
        current = group.static_members.get(instance_id)
        if current is None:
            raise UnknownMemberIdError
        if current != member_id:
            raise FencedInstanceIdError
    member = group.members.get(member_id)
    if member is None:
        raise UnknownMemberIdError
    return member


def classic_member_of(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember, ClassicSpec]:
    """Return a member of the classic protocol and its classic settings. Raises as ``member_of``, and
    UnknownMemberIdError for a member of the consumer protocol.
    """
    member = member_of(group, member_id, instance_id)
    if member.subscription.classic is None:
        raise UnknownMemberIdError
    return member, member.subscription.classic


def _build_subscription(
    draft: Draft,
    context: RequestContext,
    request: JoinGroupRequest,
    parsed: ConsumerProtocolSubscription,
    spec: ClassicSpec,
) -> Subscription:
    before = draft.subscription
    return Subscription(
        instance_id=request.group_instance_id or before.instance_id,
        rack_id=parsed.rack_id or before.rack_id,
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
        topic_names=tuple(sorted(set(parsed.topics))),
        topic_regex=before.topic_regex,
        rebalance_timeout_ms=rebalance_timeout_of(request),
        server_assignor=before.server_assignor,
        classic=spec,
    )
