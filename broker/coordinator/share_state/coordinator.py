"""The share coordinator: keeps where share partitions are, in ``__share_group_state`` (KIP-932).

In a cluster it is asked over the network, by the leaders of partitions and by group coordinators (APIs 83 to 87);
here both are in this process, and call it. A share partition's state lives in the partition of the topic that Kafka
puts it in: by the hash of ``group:topic-id:partition``. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from tidelog.broker.coordinator.runtime.topic_log import InternalTopicLog
from tidelog.broker.coordinator.share_state.state import ShareState, ShareStateShard, StateKey, Written
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import ITEMS_PER_STEP, Steps, all_settled
from tidelog.protocol.types import uuid_to_str

if TYPE_CHECKING:
    from tidelog.broker.coordinator.runtime.runtime import CoordinatorRuntime
    from tidelog.broker.loop.steps import Steps


class ShareStateLog(InternalTopicLog):
    """``__share_group_state`` of this broker, whose beginning can be cut off."""

    def delete_before(self, partition: int, offset: int) -> None:
        """Let go of records below ``offset``. Raises KafkaError."""
        self._partition(partition).move_log_start(offset)


class ShareStateStore(Protocol):
    """The share coordinator's interface for share partitions. Methods raise KafkaErrors."""

    def opening(self, key: StateKey) -> Deferred[None] | None:
        """Begin to open the log of a state; None where it is open."""
        ...

    def read(self, key: StateKey) -> ShareState | None: ...

    def write(self, key: StateKey, written: Written) -> Deferred[None]:
        """Write a change; settles when it is committed."""
        ...


class ShareCoordinator:
    """States of share partitions over all partitions of the topic."""

    def __init__(self, runtime: CoordinatorRuntime[ShareStateShard]) -> None:
        self.runtime = runtime

    def opening(self, key: StateKey) -> Deferred[None] | None:
        """Begin to open the log of a state; None where it is open."""
        return self.runtime.opening(coordinator_key(key))

    def read(self, key: StateKey) -> ShareState | None:
        """The state, None where none was made. Raises CoordinatorLoadInProgressError, NotCoordinatorError."""
        return self.runtime.shard_for(coordinator_key(key)).read(key)

    def initialize(self, key: StateKey, start_offset: int, state_epoch: int) -> Deferred[None]:
        """Make a state that starts there; -1 leaves it to the first read. Settles when committed. Raises KafkaError."""
        text = coordinator_key(key)
        return self.runtime.execute(text, self.runtime.shard_for(text).initialize(key, start_offset, state_epoch))

    def write(self, key: StateKey, written: Written) -> Deferred[None]:
        """Write a change; settles when it is committed. Raises KafkaError."""
        text = coordinator_key(key)
        return self.runtime.execute(text, self.runtime.shard_for(text).write(key, written))

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

    def wait_until_committed(self, keys: Iterable[StateKey]) -> Steps[None]:
        """Wait until what was read of these states is committed. Raises NotCoordinatorError."""
        return self.runtime.wait_until_committed(map(coordinator_key, keys))

    def topic_deleted(self, topic_id: bytes) -> Deferred[None]:
        """Forget the states of all groups for a topic that is gone; settles when that is done, or fails with the
        KafkaError of an append."""
        return self.runtime.execute_in_all(lambda shard, _: shard.delete_topic(topic_id))


def coordinator_key(key: StateKey) -> str:
    """Return the key by which the topic's partition is found."""
    return f"{key.group_id}:{uuid_to_str(key.topic_id)}:{key.partition}"
