"""Deletion of a share group's states, in steps, and the order of changes to a group's states.

Before the first state of a topic is deleted, a record of the group lists the topic as being deleted. The topic stays
listed until its last state is deleted. If a deletion is interrupted, by a crash or because its client disconnects, the
next request to delete these states completes the deletion. If a member joins instead, all states of the member's topics
are created again.

Requests that set start offsets or delete states need a group without members, and run one after the other
(``run_alone``). Heartbeats wait for these requests. If ``count`` has risen since a heartbeat created states, it creates
them again. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tidelog.broker.coordinator.group.share.group import DeletingTopics, InitializedTopics, ShareGroup
from tidelog.broker.coordinator.group.share.records import initialized_record
from tidelog.broker.coordinator.runtime.result import CoordinatorResult
from tidelog.broker.coordinator.share_state.state import StateKey
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps, wait_for
from tidelog.protocol.errors import GroupIdNotFoundError, InvalidGroupIdError, NonEmptyGroupError

if TYPE_CHECKING:
    from tidelog.broker.coordinator.group.shard import GroupShard
    from tidelog.broker.coordinator.runtime.runtime import CoordinatorRuntime
    from tidelog.broker.coordinator.share_state.states import ShareStates
    from tidelog.broker.metadata.image import MetadataCache

T = TypeVar("T")


class StateChanges:
    """Changes of the share states of groups without members."""

    def __init__(self, runtime: CoordinatorRuntime[GroupShard], share: ShareStates, metadata: MetadataCache) -> None:
        self._runtime = runtime
        self._share = share
        self._metadata = metadata
        self._under_way: dict[str, Deferred[None]] = {}
        """Group whose states are being changed -> Deferred that completes when the change has ended."""
        self.count = 0
        """Number of changes that have begun, in all groups."""

    def run_alone(self, group_id: str, steps: Steps[T]) -> Steps[T]:
        """Do ``steps`` while no other ``run_alone`` of this group is under way."""
        yield from self.end_of(group_id)
        over = self._under_way[group_id] = Deferred()
        self.count += 1
        try:
            return (yield from steps)
        finally:
            del self._under_way[group_id]
            over.complete(None)

    def end_of(self, group_id: str) -> Steps[None]:
        """Wait until no ``run_alone`` of the group is under way."""
        while (other := self._under_way.get(group_id)) is not None:
            yield other

    def group(self, group_id: str) -> ShareGroup:
        """Return the share group with this id. Raises InvalidGroupIdError, GroupIdNotFoundError, and what the runtime's
        ``shard_for`` raises.
        """
        if not group_id:
            raise InvalidGroupIdError
        group = self._runtime.shard_for(group_id).group(group_id)
        if not isinstance(group, ShareGroup):
            raise GroupIdNotFoundError(f"Group {group_id} is not a share group.")
        return group

    def empty_group(self, group_id: str) -> ShareGroup:
        """Return the share group with this id. Raises what ``group`` raises, and NonEmptyGroupError."""
        group = self.group(group_id)
        if not group.is_empty:
            raise NonEmptyGroupError
        return group

    def delete_group(self, group_id: str, finish: Callable[[], T]) -> Steps[T]:
        """Delete all states of a group, then call ``finish``, which deletes the group, and return its result. Raises
        KafkaError."""
        group = self.empty_group(group_id)
        yield from self.delete_states(group, group.topics_with_states())
        return finish()

    def delete_states(self, group: ShareGroup, topics: DeletingTopics) -> Steps[None]:
        """Delete the group's states for these topics, and wait until that is committed.

        The group's record, which lists the topics as being deleted, is committed first: otherwise, after a power loss,
        the group could list states that are deleted already. Raises KafkaError.
        """
        keys = [key for topic_id in topics for key in self._keys_of(group, topic_id)]
        left = {topic_id: known for topic_id, known in group.initialized.items() if topic_id not in topics}
        yield from wait_for(self.note_states(group.group_id, left, {**group.deleting, **topics}))
        yield from self._share.delete(keys)

    def _keys_of(self, group: ShareGroup, topic_id: bytes) -> list[StateKey]:
        """List the share partitions of a topic that may have a state, also after an interrupted deletion."""
        known, image = group.initialized.get(topic_id), self._metadata.topic_by_id(topic_id)
        partitions = set(() if known is None else known.partitions)
        partitions.update(range(0 if image is None else image.partition_count))
        return [StateKey(group.group_id, topic_id, partition) for partition in sorted(partitions)]

    def note_states(self, group_id: str, initialized: InitializedTopics, deleting: DeletingTopics) -> Deferred[None]:
        """Append the lists of partitions with a state and of topics whose states are being deleted, if they changed.
        The Deferred completes when they are committed. Raises KafkaError.
        """
        group = self.empty_group(group_id)
        records = []
        if (initialized, deleting) != (group.initialized, group.deleting):
            records.append(initialized_record(group_id, initialized, deleting))
        return self._runtime.execute(group_id, CoordinatorResult(None, records))
