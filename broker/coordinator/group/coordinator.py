"""The group coordinator, as handlers call it. It lets a group's shard decide, appends the records, and answers.

A shard has all groups of one partition of ``__consumer_offsets``.

Errors of a whole request are raised, for the handler's ``error_response``; other errors are in the response. Errors of
appends are converted to codes that group clients know (``append_error_for_client``). Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from tidelog.broker.coordinator.group.admin import (
    dead_group,
    describe_classic_group,
    describe_consumer_group,
    list_groups,
)
from tidelog.broker.coordinator.group.classic.group import ClassicGroup
from tidelog.broker.coordinator.group.classic.rebalance import append_error_for_client
from tidelog.broker.coordinator.group.consumer.group import ConsumerGroup
from tidelog.broker.coordinator.group.shard import GroupShard, delete_offsets_in_parts
from tidelog.broker.coordinator.group.share.group import ShareGroup
from tidelog.broker.coordinator.runtime.execution import ignore_execution
from tidelog.broker.coordinator.runtime.result import CoordinatorResult
from tidelog.broker.coordinator.runtime.runtime import CoordinatorRuntime
from tidelog.broker.loop.deferred import Deferred, deferred_value
from tidelog.broker.loop.steps import Steps, wait_for
from tidelog.broker.security.authorized_operations import GROUP_OPERATIONS, NOT_REQUESTED
from tidelog.protocol.errors import (
    GroupIdNotFoundError,
    InvalidGroupIdError,
    InvalidRequestError,
    KafkaError,
    UnknownMemberIdError,
)
from tidelog.protocol.messages.consumer_group_describe import DescribedGroup as Described
from tidelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.protocol.messages.delete_groups import DeletableGroupResult
from tidelog.protocol.messages.describe_groups import DescribedGroup
from tidelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse
from tidelog.protocol.messages.list_groups import ListedGroup
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tidelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

if TYPE_CHECKING:
    from tidelog.broker.requests.context import RequestContext

T = TypeVar("T")

GROUPS_PER_STEP = 100
"""Number of groups that ListGroups describes before other requests are served."""
_FIRST_BATCHED_LEAVE_VERSION = 3
_FIRST_DESCRIBE_WITH_GROUP_ID_NOT_FOUND = 6

Finish = Callable[[], Deferred[None]]
"""The last step of a group's deletion. Its Deferred completes when the deletion is committed."""


def finish_at_once(_group_id: str, finish: Finish) -> Steps[Deferred[None]]:
    """Finish the deletion of a group without state in the share coordinator."""
    yield None
    return finish()


class GroupCoordinator:
    """Groups and their offsets over all partitions of ``__consumer_offsets``."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupShard],
        delete_share_group: Callable[[str, Finish], Steps[Deferred[None]]] = finish_at_once,
    ) -> None:
        """``delete_share_group`` deletes a share group's state in the share coordinator, then calls its ``Finish``."""
        self.runtime = runtime
        self._delete_share_group = delete_share_group

    def _execute(
        self, group_id: str, result: CoordinatorResult[T], decided_by: GroupShard | None = None
    ) -> Deferred[T]:
        try:
            return self.runtime.execute(group_id, result, decided_by)
        except KafkaError as error:
            raise append_error_for_client(error) from error

    def _execute_waiting(self, group_id: str, result: CoordinatorResult[Deferred[T]]) -> Deferred[T]:
        try:
            return self.runtime.execute_waiting(group_id, result)
        except KafkaError as error:
            raise append_error_for_client(error) from error

    # -- membership ---------------------------------------------------------------------------------------------

    def join_group(self, context: RequestContext, request: JoinGroupRequest) -> Deferred[JoinGroupResponse]:
        """Answer JoinGroup v0-9. The response may wait for a rebalance of a classic group."""
        check_group_id(request.group_id)
        shard = self.runtime.shard_for(request.group_id)
        return self._execute_waiting(request.group_id, shard.join(context, request))

    def sync_group(self, request: SyncGroupRequest) -> Deferred[SyncGroupResponse]:
        """Answer SyncGroup v0-5. The response may wait for the assignment by the leader of a classic group."""
        check_group_id(request.group_id)
        shard = self.runtime.shard_for(request.group_id)
        return self._execute_waiting(request.group_id, shard.sync(request))

    def heartbeat(self, request: HeartbeatRequest) -> Deferred[HeartbeatResponse]:
        """Answer Heartbeat v0-4."""
        check_group_id(request.group_id)
        response = self.runtime.shard_for(request.group_id).heartbeat(request)
        return self.runtime.when_committed(request.group_id, response)

    def leave_group(self, context: RequestContext, request: LeaveGroupRequest) -> Deferred[LeaveGroupResponse]:
        """Answer LeaveGroup v0-5. Before v3 the request names one member, whose error is that of the response."""
        check_group_id(request.group_id)
        batched = context.api_version >= _FIRST_BATCHED_LEAVE_VERSION
        members = request.members if batched else [MemberIdentity(member_id=request.member_id)]
        shard = self.runtime.shard_for(request.group_id)
        try:
            response = self._execute(request.group_id, shard.leave(request.group_id, members))
        except UnknownMemberIdError as error:  # no classic or consumer group has this id
            response = deferred_value(refuse_leaving(members, error))
        if batched:
            return response
        return response.map(lambda left: LeaveGroupResponse(error_code=left.members[0].error_code))

    def consumer_group_heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> Deferred[ConsumerGroupHeartbeatResponse]:
        """Answer ConsumerGroupHeartbeat v0-1."""
        if not request.group_id.strip():
            raise InvalidRequestError("GroupId can't be empty.")
        shard = self.runtime.shard_for(request.group_id)
        return self._execute(request.group_id, shard.consumers.heartbeat(context, request))

    # -- offsets ------------------------------------------------------------------------------------------------

    def commit_offsets(self, context: RequestContext, request: OffsetCommitRequest) -> Deferred[OffsetCommitResponse]:
        """Answer OffsetCommit v0-10."""
        shard = self.runtime.shard_for(request.group_id)
        return self._execute(request.group_id, shard.commit_offsets(context, request))

    def commit_offsets_in_transaction(self, request: TxnOffsetCommitRequest) -> Deferred[TxnOffsetCommitResponse]:
        """Answer TxnOffsetCommit v0-5. The handler checks the transaction, unless
        ``transaction.partition.verification.enable`` is false."""
        check_group_id(request.group_id)
        shard = self.runtime.shard_for(request.group_id)
        return self._execute(request.group_id, shard.commit_offsets_in_transaction(request))

    def fetch_offsets(
        self, request: OffsetFetchRequestGroup, *, require_stable: bool, by_id: bool
    ) -> Steps[OffsetFetchResponseGroup]:
        """Answer OffsetFetch v0-10 for one group; errors are in the group's response. With ``by_id`` topics have
        ids, not names.
        """
        yield from self.runtime.wait_until_open(request.group_id)
        try:
            shard = self.runtime.shard_for(request.group_id)
            answer = yield from shard.fetch_offsets(request, require_stable=require_stable, by_id=by_id)
            return (yield from wait_for(self.runtime.when_committed(request.group_id, answer, shard)))
        except KafkaError as error:
            return OffsetFetchResponseGroup(group_id=request.group_id, error_code=error.code)

    def delete_offsets(self, request: OffsetDeleteRequest) -> Deferred[OffsetDeleteResponse]:
        """Answer OffsetDelete v0."""
        shard = self.runtime.shard_for(request.group_id)
        return self._execute(request.group_id, shard.delete_offsets(request))

    # -- administration -----------------------------------------------------------------------------------------

    def delete_group(self, group_id: str) -> Steps[Deferred[DeletableGroupResult]]:
        """Answer DeleteGroups v0-2 for one group. The Deferred completes when the deletion is committed; errors are in
        its result."""

        def refuse(error: KafkaError) -> DeletableGroupResult:
            return DeletableGroupResult(group_id=group_id, error_code=error.code)

        yield None
        yield from self.runtime.wait_until_open(group_id)
        try:
            if isinstance(self.runtime.shard_for(group_id).groups.get(group_id), ShareGroup):
                deleted = yield from self._delete_share_group(group_id, lambda: self._delete_now(group_id))
            else:
                yield from self._delete_offsets(group_id)
                deleted = self._delete_now(group_id)
        except KafkaError as error:
            return deferred_value(refuse(error))
        return deleted.map(lambda _: DeletableGroupResult(group_id=group_id)).recover(refuse)

    def _delete_offsets(self, group_id: str) -> Steps[None]:
        """Delete offsets of a group in steps, until few are left, which ``_delete_now`` deletes with the group. Raises
        KafkaError."""
        shard = self.runtime.shard_for(group_id)
        for part in delete_offsets_in_parts(shard, group_id):
            self._execute(group_id, part, shard)
            yield None

    def _delete_now(self, group_id: str) -> Deferred[None]:
        return self._execute(group_id, self.runtime.shard_for(group_id).delete_group(group_id))

    def describe_group(self, context: RequestContext, group_id: str, *, operations: bool) -> DescribedGroup:
        """Answer DescribeGroups v0-6 for one group. A group that does not exist or is not classic is described as Dead,
        from v6 on with an error."""
        try:
            group = self.runtime.shard_for(group_id).group(group_id)
            if not isinstance(group, ClassicGroup):
                raise GroupIdNotFoundError(f"Group {group_id} is not a classic group.")
            described = describe_classic_group(group)
        except GroupIdNotFoundError as error:
            described = dead_group(group_id)
            if context.api_version >= _FIRST_DESCRIBE_WITH_GROUP_ID_NOT_FOUND:
                described.error_code, described.error_message = error.code, error.message
        except KafkaError as error:
            described = DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
        if operations and not described.error_code:
            described.authorized_operations = GROUP_OPERATIONS
        return described

    def describe_consumer_group(
        self, group_id: str, topic_names: Mapping[bytes, str], *, operations: bool
    ) -> Described:
        """Answer ConsumerGroupDescribe v0-1 for one group."""
        try:
            check_group_id(group_id)
            shard = self.runtime.shard_for(group_id)
            group = shard.group(group_id)
            if not isinstance(group, ConsumerGroup):
                raise GroupIdNotFoundError(f"Group {group_id} is not a consumer group.")
            described = describe_consumer_group(group, topic_names, shard.consumers.steps.assignors[0])
        except KafkaError as error:
            return Described(group_id=group_id, error_code=error.code, error_message=error.message)
        described.authorized_operations = GROUP_OPERATIONS if operations else NOT_REQUESTED
        return described

    def list_groups(self, states: Iterable[str], types: Iterable[str]) -> Steps[list[ListedGroup]]:
        """Answer ListGroups v0-5. Raises CoordinatorLoadInProgressError, and NotCoordinatorError if the groups' records
        are not committed."""
        listed: list[ListedGroup] = []
        for shard in list(self.runtime.loaded_shards()):
            groups = list(shard.groups.values())
            for first in range(0, len(groups), GROUPS_PER_STEP):
                listed += list_groups(groups[first : first + GROUPS_PER_STEP], states, types)
                yield None
        return (yield from wait_for(self.runtime.when_all_committed(listed)))

    def topic_deleted(
        self, topic: str, topic_id: bytes, on_removed: Callable[[], None] = ignore_execution
    ) -> Deferred[None]:
        """Remove the committed offsets of a deleted topic, so that a new topic of its name has none, and the topic from
        the share groups' lists of states. ``CoordinatorRuntime.execute_in_all`` makes the Deferred, and calls
        ``on_removed``."""
        return self.runtime.execute_in_all(lambda shard, end: shard.topic_deleted(topic, topic_id, end), on_removed)


def refuse_leaving(members: Iterable[MemberIdentity], error: KafkaError) -> LeaveGroupResponse:
    """Build a LeaveGroup response with the same error for every member."""
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=error.code
            )
            for member in members
        ]
    )


def check_group_id(group_id: str) -> None:
    """Raise InvalidGroupIdError for the empty group id. Only clients before Kafka 2.2 use it, for offsets alone."""
    if not group_id:
        raise InvalidGroupIdError
