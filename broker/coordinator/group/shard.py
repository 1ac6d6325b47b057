"""The state machine of one partition of ``__consumer_offsets``: its groups and their offsets.

Each request has a method, here or in a part. One that may change a group returns a CoordinatorResult: the response, and
the records to append. ``replay`` applies records. The parts:

    groups          group id -> group, of any kind
    joins, syncs    requests of classic groups; both use ``rebalance``
    consumers       heartbeats of consumer groups (KIP-848); ``classic_members`` has requests of their classic members
    shares          heartbeats of share groups (KIP-932)
    streams         heartbeats of streams groups (KIP-1071)
    commits         requests about offsets, which are in ``offsets``

An empty classic group becomes a consumer or streams group with the first member of that protocol. An empty consumer or
streams group becomes classic with the first classic member. The offsets of the group remain. ``migration`` converts
classic and consumer groups with members.

Loop thread only. Source: KIP-848 (coordinator), KIP-211 (expiry).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.broker.coordinator.group.assignment_interval import AssignmentInterval, assign_at_once
from tidelog.broker.coordinator.group.classic.group import EMPTY, ClassicGroup
from tidelog.broker.coordinator.group.classic.join import ClassicJoin, JoinResult, refuse
from tidelog.broker.coordinator.group.classic.members import ClassicMembers
from tidelog.broker.coordinator.group.classic.rebalance import ClassicRebalance
from tidelog.broker.coordinator.group.classic.sync import ClassicSync, SyncResult
from tidelog.broker.coordinator.group.consumer.draft import DraftSteps, MayDescribe
from tidelog.broker.coordinator.group.consumer.group import ConsumerGroup, ConsumerMember
from tidelog.broker.coordinator.group.consumer.heartbeat import ConsumerHeartbeats, GroupSettings
from tidelog.broker.coordinator.group.consumer.records import consumer_group_tombstones, replay_into
from tidelog.broker.coordinator.group.migration import Migration
from tidelog.broker.coordinator.group.offset_commits import EXPIRY_PART, OffsetCommits
from tidelog.broker.coordinator.group.offsets import OffsetStore
from tidelog.broker.coordinator.group.records import group_tombstone, offset_tombstone
from tidelog.broker.coordinator.group.replay import (
    Group,
    find_consumer_group,
    replay_classic_group,
    replay_consumer_group,
)
from tidelog.broker.coordinator.group.share.group import ShareGroup
from tidelog.broker.coordinator.group.share.heartbeat import ShareHeartbeats
from tidelog.broker.coordinator.group.share.records import initialized_record, replay_share, share_group_tombstones
from tidelog.broker.coordinator.group.streams.config import StreamsConfig
from tidelog.broker.coordinator.group.streams.group import StreamsGroup, StreamsMember
from tidelog.broker.coordinator.group.streams.heartbeat import StreamsHeartbeats
from tidelog.broker.coordinator.group.streams.records import replay_streams, streams_group_tombstones
from tidelog.broker.coordinator.runtime.committer import Committer
from tidelog.broker.coordinator.runtime.replay import ReplayContext
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord, CoordinatorResult, Parts, TimerResult
from tidelog.broker.loop.steps import Steps
from tidelog.broker.metadata.image import is_view_of
from tidelog.broker.share.config import ShareConfig
from tidelog.protocol.coordinator_records.group import (
    ConsumerGroupMetadataKey,
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tidelog.protocol.coordinator_records.share import SHARE_RECORD_TYPES
from tidelog.protocol.coordinator_records.streams import STREAMS_RECORD_TYPES
from tidelog.protocol.errors import (
    GroupIdNotFoundError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    KafkaError,
    NotCoordinatorError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from tidelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.join_group import JoinGroupRequest
from tidelog.protocol.messages.leave_group import LeaveGroupResponse, MemberIdentity
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from tidelog.protocol.messages.sync_group import SyncGroupRequest
from tidelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

if TYPE_CHECKING:
    from tidelog.broker.coordinator.config import GroupConfig
    from tidelog.broker.coordinator.runtime.timer import CoordinatorTimer
    from tidelog.broker.metadata.image import MetadataCache
    from tidelog.broker.requests.context import RequestContext
    from tidelog.log.system.time import Time

logger = logging.getLogger(__name__)

NO_VERSION = -1
"""Version of a ``Committer`` that sent TxnOffsetCommit."""
ListedState = tuple[str, bytes, int]
"""Share group, topic id and partition of a state that the group lists."""
_EXPIRY_KEY = ("expire-offsets",)
_FIRST_COMMIT_WITH_GROUP_ID_NOT_FOUND = 9


class GroupShard:
    """State machine of the groups and offsets of one partition."""

    def __init__(
        self,
        timer: CoordinatorTimer,
        *,
        metadata: MetadataCache,
        time: Time,
        config: GroupConfig,
        new_uuid: Callable[[], str],
        settings: GroupSettings = lambda _group_id: {},
        share_config: Callable[[str], ShareConfig] = lambda _group_id: ShareConfig(),
        on_share_member_gone: Callable[[str, str], object] = lambda _group_id, _member_id: None,
        on_states_unlisted: Callable[[list[ListedState]], object] = lambda _states: None,
        streams_config: Callable[[str], StreamsConfig] = lambda _group_id: StreamsConfig(),
        interval_ms: AssignmentInterval = assign_at_once,
        may_describe: MayDescribe | None = None,
    ) -> None:
        self.timer, self._on_states_unlisted = timer, on_states_unlisted
        self.groups: dict[str, Group] = {}
        self.share_groups: dict[str, ShareGroup] = {}
        """The share groups among ``groups``."""
        self.offsets = OffsetStore()
        self.commits = OffsetCommits(self.offsets, metadata=metadata, time=time, config=config)
        self._time = time
        self._config = config
        self._rebalance = ClassicRebalance(self.groups, timer=timer, time=time, config=config)
        self._joins = ClassicJoin(self._rebalance, new_uuid)
        self._syncs = ClassicSync(self._rebalance)
        self.consumers = ConsumerHeartbeats(
            self.groups, timer=timer, config=config, new_uuid=new_uuid, settings=settings,
            steps=DraftSteps(metadata, time, config.group_consumer_assignors, interval_ms, may_describe),
            migration=Migration(self.groups, rebalance=self._rebalance, config=config, metadata=metadata),
        )  # fmt: skip
        self._classic_members = ClassicMembers(self.consumers)
        self.shares = ShareHeartbeats(
            self.groups, timer=timer, time=time, config=share_config, metadata=metadata,
            on_member_gone=on_share_member_gone, interval_ms=interval_ms,
        )  # fmt: skip
        self.streams = StreamsHeartbeats(
            self.groups, timer=timer, time=time, config=streams_config, metadata=metadata, interval_ms=interval_ms
        )

    def group(self, group_id: str) -> Group:
        """Return the group with this id. Raises GroupIdNotFoundError."""
        group = self.groups.get(group_id)
        if group is None:
            raise GroupIdNotFoundError(f"Group {group_id} not found.")
        return group

    def _member_group(self, group_id: str) -> ClassicGroup | ConsumerGroup:
        """Return the group of a request by a classic member. Raises UnknownMemberIdError."""
        group = self.groups.get(group_id)
        if not isinstance(group, ClassicGroup | ConsumerGroup):
            raise UnknownMemberIdError
        return group

    # -- membership ---------------------------------------------------------------------------------------------

    def join(self, context: RequestContext, request: JoinGroupRequest) -> JoinResult:
        """Answer JoinGroup v0-9. A group is created with the first member that has no member id yet."""
        self._joins.validate(context, request)
        existing = self.groups.get(request.group_id)
        if isinstance(existing, ClassicGroup):
            return self._joins.join(context, request, existing)
        if isinstance(existing, ConsumerGroup) and not existing.is_empty:
            return self._classic_members.join(context, request, existing)
        if isinstance(existing, ShareGroup) or (existing is not None and not existing.is_empty):
            return refuse(InconsistentGroupProtocolError, "")
        if request.member_id:
            return refuse(UnknownMemberIdError, request.member_id)
        group = ClassicGroup(request.group_id, now_ms=self._time.milliseconds())
        names = [protocol.name for protocol in request.protocols]
        if existing is not None and not group.supports_protocols(request.protocol_type, names):
            return refuse(InconsistentGroupProtocolError, "")  # the group keeps its kind
        tombstones = [] if existing is None else tombstones_of(existing)
        return self._joins.join_new(context, request, group, tombstones)

    def sync(self, request: SyncGroupRequest) -> SyncResult:
        """Answer SyncGroup v0-5."""
        group = self._member_group(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self._classic_members.sync(group, request)
        return self._syncs.sync(group, request)

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Answer Heartbeat v0-4."""
        group = self._member_group(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self._classic_members.heartbeat(group, request)
        return self._syncs.heartbeat(group, request)

    def leave(self, group_id: str, members: list[MemberIdentity]) -> CoordinatorResult[LeaveGroupResponse]:
        """Answer LeaveGroup v0-5."""
        group = self._member_group(group_id)
        if isinstance(group, ConsumerGroup):
            return self._classic_members.leave(group, members)
        return self._syncs.leave(group, members)

    # -- offsets ------------------------------------------------------------------------------------------------

    def commit_offsets(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> CoordinatorResult[OffsetCommitResponse]:
        """Answer OffsetCommit v0-10. Without a group, a commit without generation creates a simple group, which
        has only offsets."""
        group = self.groups.get(request.group_id)
        generation_id = request.generation_id_or_member_epoch
        if group is not None:
            group.validate_offset_commit(
                Committer(
                    request.member_id,
                    request.group_instance_id,
                    generation_id,
                    context.api_version,
                    is_transactional=False,
                    partitions=lambda: self.commits.partitions_of(request),
                    named_partitions=lambda: self.commits.named_partitions_of(request),
                )
            )
            if isinstance(group, ClassicGroup) and group.state is not EMPTY and request.member_id:
                self._rebalance.schedule_session(group, group.members[request.member_id])
        elif generation_id >= 0:
            if context.api_version >= _FIRST_COMMIT_WITH_GROUP_ID_NOT_FOUND:
                raise GroupIdNotFoundError
            raise IllegalGenerationError
        return self.commits.commit(request)

    def commit_offsets_in_transaction(
        self, request: TxnOffsetCommitRequest
    ) -> CoordinatorResult[TxnOffsetCommitResponse]:
        """Answer TxnOffsetCommit v0-5."""
        group = self.groups.get(request.group_id)
        if group is not None:
            try:
                group.validate_offset_commit(
                    Committer(
                        request.member_id,
                        request.group_instance_id,
                        request.generation_id,
                        NO_VERSION,
                        is_transactional=True,
                        partitions=lambda: self.commits.partitions_of(request),
                        named_partitions=lambda: self.commits.named_partitions_of(request),
                    )
                )
            except StaleMemberEpochError:
                raise IllegalGenerationError from None
        elif request.generation_id >= 0:
            raise IllegalGenerationError
        return self.commits.commit_in_transaction(request)

    def fetch_offsets(
        self, request: OffsetFetchRequestGroup, *, require_stable: bool, by_id: bool
    ) -> Steps[OffsetFetchResponseGroup]:
        """Answer OffsetFetch v0-10 for one group. Raises UnknownMemberIdError, StaleMemberEpochError,
        IllegalGenerationError."""
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup | StreamsGroup) and (
            request.member_id is not None or request.member_epoch >= 0
        ):
            member: ConsumerMember | StreamsMember | None = group.members.get(request.member_id or "")
            if member is None:
                raise UnknownMemberIdError
            member.check_epoch(request.member_epoch)
        return self.commits.fetch(request, require_stable=require_stable, by_id=by_id)

    def delete_offsets(self, request: OffsetDeleteRequest) -> CoordinatorResult[OffsetDeleteResponse]:
        """Answer OffsetDelete v0. Raises GroupIdNotFoundError, NonEmptyGroupError."""
        group = self.group(request.group_id)
        group.validate_offset_delete()
        return self.commits.delete(group, request)

    # -- administration -----------------------------------------------------------------------------------------

    def delete_group(self, group_id: str) -> CoordinatorResult[None]:
        """Answer DeleteGroups v0-2 for one group. Raises GroupIdNotFoundError, NonEmptyGroupError."""
        group = self.group(group_id)
        group.validate_delete()
        return CoordinatorResult(None, [*self.offsets.tombstones(group_id), *tombstones_of(group)])

    def topic_deleted(self, topic: str, topic_id: bytes, end_offset: int) -> Parts:
        """Remove the offsets of a deleted topic, except those whose records are at ``end_offset`` or later, and remove
        the topic from the share groups' lists of states. The same is done for its virtual topics. Their states are
        deleted by ``on_states_unlisted``, because the share coordinator knows only the id of the topic itself.
        """
        for tombstones in self.commits.tombstones_of_topic(topic, end_offset):
            yield CoordinatorResult(None, tombstones)
        groups = iter(list(self.share_groups.values()))
        while part := list(islice(groups, EXPIRY_PART)):
            states = [state for group in part for state in list_states_of_views(group, topic_id)]
            records = [record for group in part for record in remove_states(group, topic_id)]
            yield CoordinatorResult(None, records, partial(note_unlisted, self._on_states_unlisted, states))

    def expire_offsets(self) -> TimerResult:
        """Remove expired offsets, and unused groups (``is_unused``). Runs again after
        ``offsets.retention.check.interval.ms``."""
        self._schedule_expiry()
        return expire(self, self.commits.expiry_clock.now())

    def _schedule_expiry(self) -> None:
        self.timer.schedule(_EXPIRY_KEY, self._config.offsets_retention_check_interval_ms, self.expire_offsets)

    # -- replay -------------------------------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, context: ReplayContext) -> None:
        """Apply one record, when serving and when loading."""
        key, value = record.key, record.value
        if key.__class__ is OffsetCommitKey:
            self._replay_offset(key, value, context)
        elif key.__class__ is GroupMetadataKey:
            replay_classic_group(self.groups, key, value)
        elif key.__class__ is ConsumerGroupMetadataKey:
            replay_consumer_group(self.groups, key, value)
        elif key.__class__.API_KEY in SHARE_RECORD_TYPES:
            replay_share(self.groups, key, value)
            note_share_group(self.groups, self.share_groups, key.group_id)
        elif key.__class__.API_KEY in STREAMS_RECORD_TYPES:
            replay_streams(self.groups, key, value)
        else:
            group = find_consumer_group(self.groups, key.group_id, create=value is not None)
            if group is not None:
                replay_into(group, key, value)

    def _replay_offset(self, key: OffsetCommitKey, value: OffsetCommitValue | None, context: ReplayContext) -> None:
        if value is not None and key.group not in self.groups:
            self.groups[key.group] = ClassicGroup(key.group, now_ms=value.commit_timestamp)
        self.offsets.replay(key, value, record_offset=context.offset, producer_id=context.producer_id)

    def replay_end_transaction(self, producer_id: int, producer_epoch: int, *, committed: bool) -> None:
        """Apply a transaction marker: offsets committed in the transaction become visible or are dropped."""
        self.offsets.replay_end_transaction(producer_id, committed=committed)

    def on_loaded(self) -> list[CoordinatorResult[None]]:
        """Start the timer of expiry, and those of the loaded groups' members, with full session timeouts. A classic
        group that is larger than ``group.max.size`` begins a rebalance."""
        self._schedule_expiry()
        self.commits.expiry_clock.now()  # so that a jump of the clock before the first expiry is noticed too
        results = []
        for group in list(self.groups.values()):
            if isinstance(group, ConsumerGroup):
                self.consumers.clocks.start(group)
                continue
            if isinstance(group, ShareGroup):
                self.shares.start_clocks(group)
                continue
            if isinstance(group, StreamsGroup):
                self.streams.start_clocks(group)
                continue
            for member in group.members.values():
                self._rebalance.schedule_session(group, member)
            if len(group.members) > self._config.group_max_size:
                step = self._rebalance.prepare_rebalance(group, "it is larger than group.max.size")
                if step is not None:
                    results.append(step)
        return results

    def close(self) -> None:
        """Answer all waiting requests NOT_COORDINATOR, because this partition is unloaded."""
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                self._rebalance.refuse_all(group, NotCoordinatorError.code)


def expire(shard: GroupShard, now_ms: int) -> Parts:
    """Yield results with the tombstones of expired offsets and unused groups. These come in parts, because there
    may be a million."""
    records: list[CoordinatorRecord] = []
    checked = count = 0
    for group_id in list(shard.groups):
        removed = 0
        for part in shard.commits.offsets_in_parts(group_id):
            group = shard.groups.get(group_id)
            if group is not None:
                tombstones = shard.commits.collect_expired(group, part, now_ms)
                records += tombstones
                removed += len(tombstones)
            checked += 1 + len(part)
            if checked >= EXPIRY_PART:
                count += len(records)
                yield CoordinatorResult(None, records)
                records, checked, removed = [], 0, 0
        group = shard.groups.get(group_id)
        if group is not None and is_unused(shard.offsets, group, removed):
            records += tombstones_of(group)
    if count + len(records):
        logger.info("%d tombstones are written for expired offsets and unused groups", count + len(records))
    yield CoordinatorResult(None, records)


def delete_offsets_in_parts(shard: GroupShard, group_id: str) -> Parts:
    """Yield results that delete the offsets of a group, until at most EXPIRY_PART are left for ``delete_group``.

    Raises what ``delete_group`` raises if the group was removed or has got members meanwhile. The offsets deleted by
    then stay deleted, as after OffsetDelete.
    """
    left = shard.offsets.count(group_id)
    for part in shard.commits.offsets_in_parts(group_id):
        left -= len(part)
        if left <= 0:
            return
        shard.group(group_id).validate_delete()
        yield CoordinatorResult(None, [offset_tombstone(group_id, topic, partition) for topic, partition in part])


def list_states_of_views(group: ShareGroup, topic_id: bytes) -> Iterator[ListedState]:
    """Yield the states that a share group lists for virtual topics of a topic."""
    for known, topic in group.initialized.items():
        if is_view_of(topic_id, topic.name, known):
            yield from ((group.group_id, known, partition) for partition in sorted(topic.partitions))


def note_unlisted(
    delete: Callable[[list[ListedState]], object], states: list[ListedState], error: KafkaError | None
) -> None:
    """Delete states that the groups do not list any longer, once that is stored: ``error`` is None."""
    if states and error is None:
        delete(states)


def remove_states(group: ShareGroup, topic_id: bytes) -> Iterator[CoordinatorRecord]:
    """Yield the record that removes a topic and its virtual topics from a share group's lists of states, if the lists
    have any of them."""
    with_states = group.topics_with_states().items()
    gone = {known for known, name in with_states if known == topic_id or is_view_of(topic_id, name, known)}
    if gone:
        initialized = {known: topic for known, topic in group.initialized.items() if known not in gone}
        deleting = {known: name for known, name in group.deleting.items() if known not in gone}
        yield initialized_record(group.group_id, initialized, deleting)


def is_unused(offsets: OffsetStore, group: Group, removed: int) -> bool:
    """Return whether a group has neither members, nor ids given to future members, nor open transactions, and no
    offsets but ``removed`` ones whose tombstones are not replayed yet. A share group stays until it is deleted."""
    if isinstance(group, ShareGroup) or not group.is_empty or group.pending_join_members:
        return False
    return offsets.count(group.group_id) == removed and not offsets.has_open_transactions(group.group_id)


def note_share_group(groups: dict[str, Group], share_groups: dict[str, ShareGroup], group_id: str) -> None:
    """Add the group to ``share_groups`` if it exists and is a share group, else remove it."""
    group = groups.get(group_id)
    if isinstance(group, ShareGroup):
        share_groups[group_id] = group
    else:
        share_groups.pop(group_id, None)


def tombstones_of(group: Group) -> list[CoordinatorRecord]:
    """Build the tombstones that remove a group, without its offsets."""
    if isinstance(group, ClassicGroup):
        return [group_tombstone(group.group_id)]
    if isinstance(group, ShareGroup):
        return share_group_tombstones(group)
    if isinstance(group, StreamsGroup):
        return streams_group_tombstones(group)
    return consumer_group_tombstones(group)
