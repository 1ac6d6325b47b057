"""The share coordinator: keeps the states of share partitions in ``__share_group_state`` (KIP-932).

It is asked by the leaders of partitions and by group coordinators: over the network (APIs 83 to 87) where they are on
other brokers, else called. A share partition's state lives in the partition of the topic that Kafka puts it in: by the
hash of ``group:topic-id:partition``. Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from tidelog.broker.coordinator.runtime.topic_log import InternalTopicLog
from tidelog.broker.coordinator.share_state.state import NO_EPOCH, ShareState, ShareStateShard, StateKey, Written
from tidelog.broker.loop.deferred import Deferred, completed
from tidelog.broker.loop.steps import ITEMS_PER_STEP, Steps, all_settled
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.types import uuid_to_str

if TYPE_CHECKING:
    from tidelog.broker.coordinator.runtime.runtime import CoordinatorRuntime
    from tidelog.broker.loop.steps import Steps

logger = logging.getLogger(__name__)


class ShareStateLog(InternalTopicLog):
    """``__share_group_state`` of this broker, whose beginning can be cut off."""

    def delete_before(self, partition: int, offset: int) -> None:
        """Delete the records below ``offset`` once all that was appended so far is committed; keep them where it is
        not.

        What stands for those records was appended after them. It may be lost with this broker as long as it is not
        committed; followers hear at once where the log begins.
        """
        waiting = self.uncommitted(partition)
        (completed(None) if waiting is None else waiting).on_done(lambda done: self._cut(partition, offset, done))

    def _cut(self, partition: int, offset: int, committed: Deferred[None]) -> None:
        try:
            committed.result()
            self._partition(partition).move_log_start(offset)
        except KafkaError as error:
            logger.warning("%s-%d keeps records that nothing needs: %s", self._topic, partition, error)


class ShareStates(Protocol):
    """States of share partitions, wherever their coordinators are. Methods raise KafkaErrors."""

    def opening(self, key: StateKey, leader_epoch: int) -> Deferred[None] | None:
        """Begin to make a state readable for the leader of its partition; None where it is."""
        ...

    def read(self, key: StateKey, leader_epoch: int) -> ShareState | None: ...

    def initialize(self, key: StateKey, start_offset: int, state_epoch: int) -> Deferred[None]:
        """Make a state that starts there; -1 leaves it to the first read. Settles when committed."""
        ...

    def write(self, key: StateKey, written: Written) -> Deferred[None]:
        """Write a change; settles when it is committed."""
        ...

    def delete(self, keys: Iterable[StateKey]) -> Steps[None]:
        """Forget states; ends when that is committed."""
        ...

    def summaries(self, keys: Sequence[StateKey]) -> Steps[dict[StateKey, ShareState | None]]:
        """Return states without their batches, None for one that was never made; all of them are committed."""
        ...


class ShareCoordinator:
    """States of share partitions over all partitions of the topic."""

    def __init__(self, runtime: CoordinatorRuntime[ShareStateShard]) -> None:
        self.runtime = runtime

    def opening(self, key: StateKey, leader_epoch: int = NO_EPOCH) -> Deferred[None] | None:
        """Begin to open the log of a state; None where it is open. Here no other leader is to be fenced."""
        return self.runtime.opening(coordinator_key(key))

    def read(self, key: StateKey, leader_epoch: int = NO_EPOCH) -> ShareState | None:
        """Read the state, None where none was made. Raises CoordinatorLoadInProgressError, NotCoordinatorError."""
        return self.runtime.shard_for(coordinator_key(key)).read(key)

    def read_as_leader(self, key: StateKey, leader_epoch: int) -> Deferred[ShareState]:
        """Read a state for the leader of its partition, and fence those before it; settles when that is committed.

        Raises KafkaError.
        """
        text = coordinator_key(key)
        return self.runtime.execute(text, self.runtime.shard_for(text).read_as_leader(key, leader_epoch))

    def summary(self, key: StateKey) -> Deferred[ShareState | None]:
        """Read a state for its group's coordinator; settles when it is committed. Raises KafkaError."""
        return self.runtime.when_committed(coordinator_key(key), self.read(key))

    def initialize(self, key: StateKey, start_offset: int, state_epoch: int) -> Deferred[None]:
        """Make a state that starts there; -1 leaves it to the first read. Settles when committed. Raises KafkaError."""
        text = coordinator_key(key)
        return self.runtime.execute(text, self.runtime.shard_for(text).initialize(key, start_offset, state_epoch))

    def write(self, key: StateKey, written: Written) -> Deferred[None]:
        """Write a change; settles when it is committed. Raises KafkaError."""
        text = coordinator_key(key)
        return self.runtime.execute(text, self.runtime.shard_for(text).write(key, written))

    def delete_one(self, key: StateKey) -> Deferred[None]:
        """Forget a state, if there is one; settles when that is committed. Raises KafkaError."""
        text = coordinator_key(key)
        return self.runtime.execute(text, self.runtime.shard_for(text).delete([key]))

    def delete(self, keys: Iterable[StateKey]) -> Steps[None]:
        """Forget states, some of one partition of the topic in a step, and wait until that is committed.

        Raises KafkaError.
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
        yield from all_settled(waits)

    def summaries(self, keys: Sequence[StateKey]) -> Steps[dict[StateKey, ShareState | None]]:
        """Read states once their logs are open, and wait until what was read is committed. Raises KafkaError."""
        for key in keys:
            yield self.opening(key)
        found = {}
        for number, key in enumerate(keys):
            found[key] = self.read(key)
            if not number % ITEMS_PER_STEP:
                yield None
        yield from self.runtime.wait_until_committed(map(coordinator_key, keys))
        return found

    def topic_deleted(self, topic_id: bytes) -> Deferred[None]:
        """Forget the states of all groups for a topic that is gone; settles when that is done, or fails with the
        KafkaError of an append."""
        return self.runtime.execute_in_all(lambda shard, _: shard.delete_topic(topic_id))


def coordinator_key(key: StateKey) -> str:
    """Return the key by which the topic's partition is found."""
    return f"{key.group_id}:{uuid_to_str(key.topic_id)}:{key.partition}"
