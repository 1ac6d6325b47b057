"""The share coordinator: it keeps the states of share partitions in ``__share_group_state`` (KIP-932).

Leaders of partitions and group coordinators call it: directly if they are on this broker, else over the network (APIs
83 to 87). As in Kafka, the hash of ``group:topic-id:partition`` selects the partition of ``__share_group_state`` that
keeps a state. Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tidelog.broker.coordinator.runtime.execution import ignore_execution
from tidelog.broker.coordinator.runtime.topic_log import InternalTopicLog
from tidelog.broker.coordinator.share_state.state import NO_EPOCH, ShareState, ShareStateShard, StateKey, StateUpdate
from tidelog.broker.loop.deferred import Deferred, deferred_value
from tidelog.broker.loop.steps import ITEMS_PER_STEP, Steps, wait_for_all
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.types import uuid_to_str

if TYPE_CHECKING:
    from tidelog.broker.coordinator.runtime.runtime import CoordinatorRuntime
    from tidelog.broker.loop.steps import Steps

logger = logging.getLogger(__name__)


class ShareStateLog(InternalTopicLog):
    """``__share_group_state`` on this broker. The oldest records of a partition can be deleted."""

    def delete_before(self, partition: int, offset: int) -> None:
        """Delete the records below ``offset`` once all records appended so far are committed. If these cannot be
        committed, or the deletion fails, all records are kept.

        Later records replace those that are deleted. Without the wait, the later ones could be lost with this broker
        before they are committed, while followers learn the new log start offset at once.
        """
        waiting = self.when_committed(partition)
        committed = deferred_value(None) if waiting is None else waiting
        committed.on_done(lambda done: self._delete(partition, offset, done))

    def _delete(self, partition: int, offset: int, committed: Deferred[None]) -> None:
        try:
            committed.result()
            self._partition(partition).move_log_start(offset)
        except KafkaError as error:
            logger.warning("%s-%d keeps records that are no longer needed: %s", self._topic, partition, error)


class ShareCoordinator:
    """States of share partitions in those partitions of ``__share_group_state`` that this broker leads."""

    def __init__(self, runtime: CoordinatorRuntime[ShareStateShard]) -> None:
        self.runtime = runtime

    def when_open(self, key: StateKey, leader_epoch: int = NO_EPOCH) -> Deferred[None] | None:
        """Begin to open the log with a state. Returns None if there is nothing to wait for. The leader epoch is not
        used."""
        return self.runtime.when_open(coordinator_key(key))

    def read(self, key: StateKey, leader_epoch: int = NO_EPOCH) -> ShareState | None:
        """Return the state, None if it does not exist. The leader epoch is not used. Raises
        CoordinatorLoadInProgressError, NotCoordinatorError."""
        return self.runtime.shard_for(coordinator_key(key)).read(key)

    def read_as_leader(self, key: StateKey, leader_epoch: int) -> Deferred[ShareState]:
        """Read a state for the leader of its partition, and fence earlier leaders. The Deferred completes when the
        leader's epoch is committed. Raises KafkaError.
        """
        text = coordinator_key(key)
        return self.runtime.execute(text, self.runtime.shard_for(text).read_as_leader(key, leader_epoch))

    def summary(self, key: StateKey) -> Deferred[ShareState | None]:
        """Read a state for its group's coordinator, None if it does not exist. The Deferred completes when the state is
        committed. Raises KafkaError."""
        return self.runtime.when_committed(coordinator_key(key), self.read(key))

    def initialize(self, key: StateKey, start_offset: int, state_epoch: int) -> Deferred[None]:
        """Create a state with this start offset; -1 leaves the start offset to the leader of the partition. The
        Deferred completes when the state is committed. Raises KafkaError."""
        text = coordinator_key(key)
        return self.runtime.execute(text, self.runtime.shard_for(text).initialize(key, start_offset, state_epoch))

    def write(self, key: StateKey, written: StateUpdate) -> Deferred[None]:
        """Write a change. The Deferred completes when it is committed. Raises KafkaError."""
        text = coordinator_key(key)
        return self.runtime.execute(text, self.runtime.shard_for(text).write(key, written))

    def delete_one(self, key: StateKey) -> Deferred[None]:
        """Delete a state, if it exists. The Deferred completes when the deletion is committed. Raises KafkaError."""
        text = coordinator_key(key)
        return self.runtime.execute(text, self.runtime.shard_for(text).delete([key]))

    def delete(self, keys: Iterable[StateKey]) -> Steps[None]:
        """Delete states, ITEMS_PER_STEP of one partition of ``__share_group_state`` in a step. Ends when the deletions
        are committed. Raises KafkaError.
        """
        by_partition: dict[int, list[StateKey]] = {}
        for key in keys:
            by_partition.setdefault(self.runtime.partition_for(coordinator_key(key)), []).append(key)
            yield None
        waits = []
        for partition, found in by_partition.items():
            for start in range(0, len(found), ITEMS_PER_STEP):
                result = self.runtime.shard(partition).delete(found[start : start + ITEMS_PER_STEP])
                waits.append(self.runtime.execute_in(partition, result))
                yield None
        yield from wait_for_all(waits)

    def summaries(self, keys: Sequence[StateKey]) -> Steps[dict[StateKey, ShareState | None]]:
        """Read states once their logs are open, and wait until the states are committed. Raises KafkaError."""
        for key in keys:
            yield self.when_open(key)
        found = {}
        for number, key in enumerate(keys):
            found[key] = self.read(key)
            if not number % ITEMS_PER_STEP:
                yield None
        yield from self.runtime.wait_until_committed(map(coordinator_key, keys))
        return found

    def topic_deleted(self, topic_id: bytes, on_removed: Callable[[], None] = ignore_execution) -> Deferred[None]:
        """Delete the states of all groups for a deleted topic. Returns the Deferred of
        ``CoordinatorRuntime.execute_in_all``, which calls ``on_removed``, too."""
        return self.runtime.execute_in_all(lambda shard, _: shard.delete_topic(topic_id), on_removed)


def coordinator_key(key: StateKey) -> str:
    """Return the text whose hash selects the partition of a state."""
    return f"{key.group_id}:{uuid_to_str(key.topic_id)}:{key.partition}"
