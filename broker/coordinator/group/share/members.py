"""Members and offsets of share groups, as handlers call them (KIP-932).

Two coordinators work together: the group coordinator has the members and the list of partitions with a share state; the
share coordinator has the states. All assigned partitions have a state: it is committed before the group's records are
appended. ``tidelog.broker.coordinator.group.share.state_changes`` deletes states. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from tidelog.broker.coordinator.group.admin import describe_share_group
from tidelog.broker.coordinator.group.classic.rebalance import append_error_for_client
from tidelog.broker.coordinator.group.share.assignor import assign_simple
from tidelog.broker.coordinator.group.share.group import InitializedTopic, ShareGroup
from tidelog.broker.coordinator.group.share.records import initialized_record, share_epoch_record
from tidelog.broker.coordinator.group.share.state_changes import StateChanges
from tidelog.broker.coordinator.runtime.result import CoordinatorResult
from tidelog.broker.coordinator.share_state.state import ShareState, StateKey
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import ITEMS_PER_STEP, Steps, wait_for, wait_for_all
from tidelog.broker.security.authorized_operations import GROUP_OPERATIONS, NOT_REQUESTED
from tidelog.broker.share.share_partition import UNINITIALIZED_OFFSET
from tidelog.protocol.errors import (
    KafkaError,
    UnknownTopicOrPartitionError,
)
from tidelog.protocol.messages import alter_share_group_offsets as alter
from tidelog.protocol.messages import delete_share_group_offsets as delete
from tidelog.protocol.messages import describe_share_group_offsets as offsets
from tidelog.protocol.messages.share_group_describe import DescribedGroup
from tidelog.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

if TYPE_CHECKING:
    from tidelog.broker.coordinator.group.shard import GroupShard
    from tidelog.broker.coordinator.group.share.latest_offsets import LatestOffsets
    from tidelog.broker.coordinator.runtime.runtime import CoordinatorRuntime
    from tidelog.broker.coordinator.share_state.states import ShareStates
    from tidelog.broker.metadata.image import MetadataCache
    from tidelog.broker.requests.context import RequestContext

T = TypeVar("T")


class ShareMembers:
    """Members and offsets of share groups over all partitions of ``__consumer_offsets``."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupShard],
        share: ShareStates,
        metadata: MetadataCache,
        latest_offsets: LatestOffsets,
    ) -> None:
        self._runtime = runtime
        self._share = share
        self._metadata = metadata
        self._latest_offsets = latest_offsets
        self._changes = StateChanges(runtime, share, metadata)

    def heartbeat(
        self, context: RequestContext, request: ShareGroupHeartbeatRequest
    ) -> Steps[ShareGroupHeartbeatResponse]:
        """Answer ShareGroupHeartbeat v1. States and assignments are made in steps, because topics may have thousands of
        partitions. Other requests may change the group between two steps. So the decision is repeated until all states
        and the assignment that it needs have been made, and no other request can have deleted any of the states.
        """
        made: dict[bytes, frozenset[int]] = {}
        assigned = None
        changes = self._changes.count
        while True:
            yield from self._changes.end_of(request.group_id)
            if self._changes.count != changes:
                made, changes = {}, self._changes.count
            decision = self._runtime.shard_for(request.group_id).shares.heartbeat(context, request, assigned)
            asked = decision.uninitialized or {}
            missing = {topic_id: asked[topic_id] - made.get(topic_id, frozenset()) for topic_id in asked}
            try:
                if not any(missing.values()) and decision.unassigned is None:
                    answer = self._runtime.execute(request.group_id, decision.result)
                    break
                waits = []
                for topic_id, partitions in missing.items():
                    waits += yield from self._make_states(request.group_id, topic_id, partitions, decision.epoch)
                    made[topic_id] = made.get(topic_id, frozenset()) | partitions
                yield from wait_for_all(waits)
                if decision.unassigned is not None:
                    assigned = yield from assign_simple(decision.unassigned)
            except KafkaError as error:
                raise append_error_for_client(error) from error
        return (yield from wait_for(answer))

    def _make_states(
        self, group_id: str, topic_id: bytes, partitions: Iterable[int], epoch: int
    ) -> Steps[list[Deferred[None]]]:
        """Create the states that no other member's heartbeat has created meanwhile, none of a topic that has been
        deleted meanwhile. The Deferreds complete when they are committed. Raises KafkaError.
        """
        waits: list[Deferred[None]] = []
        for partition in sorted(partitions):
            yield None  # before the first one, which may create the internal topic: the heartbeat's own turn ends here
            if self._metadata.topic_by_id(topic_id) is None:
                return waits
            group = self._runtime.shard_for(group_id).groups.get(group_id)
            known = group.initialized.get(topic_id) if isinstance(group, ShareGroup) else None
            if known is None or partition not in known.partitions:
                key = StateKey(group_id, topic_id, partition)
                waits.append(self._share.initialize(key, UNINITIALIZED_OFFSET, epoch))
        return waits

    def describe(self, group_id: str, topic_names: Mapping[bytes, str], *, operations: bool) -> DescribedGroup:
        """Answer ShareGroupDescribe v1 for one group."""
        try:
            described = describe_share_group(self._changes.group(group_id), topic_names)
        except KafkaError as error:
            return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
        described.authorized_operations = GROUP_OPERATIONS if operations else NOT_REQUESTED
        return described

    def is_empty(self, group_id: str) -> bool:
        """Return whether a group has no members, or does not exist."""
        group = self._runtime.shard_for(group_id).groups.get(group_id)
        return group is None or group.is_empty

    def delete_group(self, group_id: str, finish: Callable[[], T]) -> Steps[T]:
        """Delete the states of a group without members, then return what ``finish`` returns, which deletes the group.
        Raises KafkaError."""
        return (yield from self._changes.run_alone(group_id, self._changes.delete_group(group_id, finish)))

    # -- offsets of groups ---------------------------------------------------------------------------------------

    def describe_offsets(
        self, request: offsets.DescribeShareGroupOffsetsRequestGroup
    ) -> Steps[offsets.DescribeShareGroupOffsetsResponseGroup]:
        """Answer DescribeShareGroupOffsets v0-1 for one group. Without topics, all partitions with a state are
        described."""
        response = offsets.DescribeShareGroupOffsetsResponseGroup(group_id=request.group_id)
        try:
            if request.topics is None:
                wanted = self._all_topics(request.group_id)
            else:
                wanted = [(topic.topic_name, topic.partitions) for topic in request.topics]
            keys: list[StateKey] = []
            for topic in wanted:
                keys += yield from self._keys_of(request.group_id, *topic)
                yield None
            states = yield from self._share.summaries(keys)
            with_lag = yield from self._with_lag(states)
            latest = yield from self._latest_offsets.find(with_lag)
            described = []
            for topic in wanted:
                described.append((yield from self._describe_topic(request.group_id, *topic, states, latest)))
                yield None
            response.topics = described
            yield from self._runtime.wait_until_committed((request.group_id,))
        except KafkaError as error:
            response.error_code, response.error_message = error.code, error.message
        return response

    def _keys_of(self, group_id: str, name: str, partitions: Iterable[int]) -> Steps[list[StateKey]]:
        keys: list[StateKey] = []
        image = self._metadata.find(name)
        if image is not None:
            for number, partition in enumerate(partitions):
                keys.append(StateKey(group_id, image.topic_id, partition))
                if not number % ITEMS_PER_STEP:
                    yield None
        return keys

    def _with_lag(self, states: Mapping[StateKey, ShareState | None]) -> Steps[list[tuple[str, int]]]:
        """Return the partitions whose lag can be computed (``has_lag``), in topics that exist."""
        found = []
        for number, (key, state) in enumerate(states.items()):
            if not number % ITEMS_PER_STEP:
                yield None
            image = self._metadata.topic_by_id(key.topic_id)
            if image is not None and state is not None and has_lag(state):
                found.append((image.name, key.partition))
        return found

    def _all_topics(self, group_id: str) -> list[tuple[str, list[int]]]:
        group = self._runtime.shard_for(group_id).groups.get(group_id)
        if group is None or not isinstance(group, ShareGroup):
            return []
        return [
            (known.name, sorted(known.partitions))
            for topic_id, known in group.initialized.items()
            if self._metadata.topic_by_id(topic_id) is not None
        ]

    def _describe_topic(
        self,
        group_id: str,
        name: str,
        partitions: Iterable[int],
        states: Mapping[StateKey, ShareState | None],
        latest: Mapping[tuple[str, int], int | KafkaError],
    ) -> Steps[offsets.DescribeShareGroupOffsetsResponseTopic]:
        image = self._metadata.find(name)
        topic = offsets.DescribeShareGroupOffsetsResponseTopic(topic_name=name)
        if image is not None:
            topic.topic_id = image.topic_id
        for index in partitions:
            state = None if image is None else states.get(StateKey(group_id, image.topic_id, index))
            end = None if image is None else latest.get((name, index))
            topic.partitions.append(describe_partition(index, state, end))
            yield None
        return topic

    def alter_offsets(
        self, request: alter.AlterShareGroupOffsetsRequest
    ) -> Steps[alter.AlterShareGroupOffsetsResponse]:
        """Set the start offsets of partitions (AlterShareGroupOffsets v0). A group that does not exist is created,
        unless no offset can be set.

        Raises InvalidGroupIdError, GroupIdNotFoundError for a group of another kind, NonEmptyGroupError, and other
        KafkaErrors if a coordinator is not available or a record cannot be stored.
        """
        return (yield from self._changes.run_alone(request.group_id, self._alter_topics(request)))

    def _alter_topics(
        self, request: alter.AlterShareGroupOffsetsRequest
    ) -> Steps[alter.AlterShareGroupOffsetsResponse]:
        group, _ = self._group_to_alter(request.group_id)
        added: dict[bytes, InitializedTopic] = {}
        waits: list[Deferred[None]] = []
        topics = []
        for asked in request.topics:
            topics.append((yield from self._alter_topic(group, asked, added, waits)))  # noqa: PERF401 - it yields
        yield from wait_for_all(waits)
        yield from wait_for(self._note_initialized(request.group_id, added))
        return alter.AlterShareGroupOffsetsResponse(responses=topics)

    def _group_to_alter(self, group_id: str) -> tuple[ShareGroup, bool]:
        """Return the group, and whether it exists already; else the group is a new one. Raises InvalidGroupIdError,
        GroupIdNotFoundError for a group of another kind, NonEmptyGroupError, and what ``shard_for`` raises."""
        known = self._runtime.shard_for(group_id).groups.get(group_id)
        return self._changes.empty_group(group_id) if known or not group_id else ShareGroup(group_id), bool(known)

    def _alter_topic(
        self,
        group: ShareGroup,
        asked: alter.AlterShareGroupOffsetsRequestTopic,
        added: dict[bytes, InitializedTopic],
        waits: list[Deferred[None]],
    ) -> Steps[alter.AlterShareGroupOffsetsResponseTopic]:
        """Initialize the states of one topic's partitions. The partitions are added to ``added``. Deferreds that
        complete when the states are committed are added to ``waits``."""
        image = self._metadata.find(asked.topic_name)
        topic = alter.AlterShareGroupOffsetsResponseTopic(topic_name=asked.topic_name)
        if image is not None:
            topic.topic_id = image.topic_id
        initialized = set()
        for partition in asked.partitions:
            yield None
            answer = alter.AlterShareGroupOffsetsResponsePartition(partition_index=partition.partition_index)
            try:
                if image is None or not 0 <= partition.partition_index < image.partition_count:
                    raise UnknownTopicOrPartitionError
                if self._metadata.topic_by_id(image.topic_id) is None:  # deleted meanwhile
                    raise UnknownTopicOrPartitionError
                key = StateKey(group.group_id, image.topic_id, partition.partition_index)
                waits.append(self._share.initialize(key, partition.start_offset, group.epoch))
                initialized.add(key.partition)
            except KafkaError as error:
                answer.error_code, answer.error_message = error.code, error.message
            topic.partitions.append(answer)
        if image is not None and initialized:
            before = added.get(image.topic_id, InitializedTopic(image.name, frozenset()))
            added[image.topic_id] = before._replace(partitions=before.partitions | initialized)
        return topic

    def _note_initialized(self, group_id: str, added: Mapping[bytes, InitializedTopic]) -> Deferred[None]:
        """Append the list of partitions that have a state. The group and the topics are looked up again: the group may
        have been loaded again meanwhile, and topics may have been deleted."""
        group, is_known = self._group_to_alter(group_id)
        initialized = dict(group.initialized)
        for topic_id, topic in added.items():
            if self._metadata.topic_by_id(topic_id) is not None:
                before = initialized.get(topic_id, InitializedTopic(topic.name, frozenset()))
                initialized[topic_id] = before._replace(partitions=before.partitions | topic.partitions)
        records = []
        if initialized != group.initialized:
            records = [] if is_known else [share_epoch_record(group.group_id, group.epoch, group.metadata_hash)]
            records.append(initialized_record(group.group_id, initialized, group.deleting))
        return self._runtime.execute(group.group_id, CoordinatorResult(None, records))

    def delete_offsets(
        self, request: delete.DeleteShareGroupOffsetsRequest
    ) -> Steps[delete.DeleteShareGroupOffsetsResponse]:
        """Answer DeleteShareGroupOffsets v0. Raises InvalidGroupIdError, GroupIdNotFoundError, NonEmptyGroupError, and
        other KafkaErrors if a coordinator is not available or a record cannot be stored.
        """
        return (yield from self._changes.run_alone(request.group_id, self._delete_topics(request)))

    def _delete_topics(
        self, request: delete.DeleteShareGroupOffsetsRequest
    ) -> Steps[delete.DeleteShareGroupOffsetsResponse]:
        group = self._changes.empty_group(request.group_id)
        with_states = group.topics_with_states()
        topics = []
        found: dict[bytes, str] = {}
        for asked in request.topics:
            topic = delete.DeleteShareGroupOffsetsResponseTopic(topic_name=asked.topic_name)
            image = self._metadata.find(asked.topic_name)
            if image is None or image.topic_id in found or image.topic_id not in with_states:
                error = UnknownTopicOrPartitionError()
                topic.error_code, topic.error_message = error.code, error.message
            else:
                topic.topic_id = image.topic_id
                found[image.topic_id] = image.name
            topics.append(topic)
            yield None
        yield from self._changes.delete_states(group, found)
        group = self._changes.empty_group(request.group_id)
        left = {topic_id: name for topic_id, name in group.deleting.items() if topic_id not in found}
        yield from wait_for(self._changes.note_states(request.group_id, group.initialized, left))
        return delete.DeleteShareGroupOffsetsResponse(responses=topics)


def has_lag(state: ShareState) -> bool:
    """Return whether the lag of a share partition can be computed: its start offset is known, and so is the number of
    records from there on that the group has finished."""
    return state.start_offset != UNINITIALIZED_OFFSET and state.delivery_complete_count >= 0


def describe_partition(
    index: int, state: ShareState | None, latest: int | KafkaError | None
) -> offsets.DescribeShareGroupOffsetsResponsePartition:
    """Return start offset, leader epoch and lag of a group in a partition.

    ``latest`` is the partition's high watermark, the error because of which it is unknown, or None if there is no lag
    to compute.
    """
    described = offsets.DescribeShareGroupOffsetsResponsePartition(
        partition_index=index, start_offset=UNINITIALIZED_OFFSET
    )
    if state is None:
        return described
    described.start_offset, described.leader_epoch = state.start_offset, state.leader_epoch
    if isinstance(latest, KafkaError):
        described.error_code, described.error_message = latest.code, latest.message
    elif latest is not None:
        described.lag = latest - state.start_offset - state.delivery_complete_count
    return described
