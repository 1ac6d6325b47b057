"""Partitions that this broker follows, grouped by fetch loop: ``num.replica.fetchers`` loops for each leader.

The newest image decides: a replica of this broker is fetched from its leader, if that is another broker, in that leader
epoch. A replica without a leader waits. Sans-io, not thread-safe.

Source: AbstractFetcherManager, ReplicaManager.applyLocalFollowersDelta of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidelog.broker.cluster.fetching.session import FetchKey
from tidelog.broker.metadata.metadata_image import NO_LEADER, PartitionState


class FetcherId(NamedTuple):
    """Identity of a fetch loop: the leader's id, and the number of one of its ``num.replica.fetchers`` loops."""

    leader: int
    number: int


class FollowedEpoch(NamedTuple):
    """A followed partition's topic and leader epoch."""

    topic: str
    leader_epoch: int


class Fetchers:
    """The followed partitions of each fetch loop."""

    def __init__(self, node_id: int, loops_per_leader: int) -> None:
        self._node_id = node_id
        self._loops_per_leader = loops_per_leader
        self._topics: dict[bytes, dict[int, FetcherId]] = {}
        self._loops: dict[FetcherId, dict[FetchKey, FollowedEpoch]] = {}

    def partitions_of(self, fetcher: FetcherId) -> Mapping[FetchKey, FollowedEpoch]:
        """Return the partitions of a loop."""
        return self._loops.get(fetcher, {})

    @property
    def ids(self) -> Iterable[FetcherId]:
        """The loops that have partitions."""
        return self._loops.keys()

    def take_topic(self, name: str, topic_id: bytes, states: Sequence[PartitionState]) -> set[FetcherId]:
        """Assign a topic's partitions, as a new image has them, to loops; return the loops that change. Empty
        ``states`` mean that the topic was deleted.
        """
        touched: set[FetcherId] = set()
        fetcher_ids = self._topics.setdefault(topic_id, {})
        for index, state in enumerate(states):
            self._assign(fetcher_ids, FetchKey(topic_id, index), name, state, touched)
        for index in [index for index in fetcher_ids if index >= len(states)]:
            self._remove(fetcher_ids, FetchKey(topic_id, index), touched)
        if not fetcher_ids:
            del self._topics[topic_id]
        return touched

    def _assign(
        self,
        fetcher_ids: dict[int, FetcherId],
        key: FetchKey,
        name: str,
        state: PartitionState,
        touched: set[FetcherId],
    ) -> None:
        """Give a partition to the loop of its leader; take it from its loop if it is not followed any more. Add the
        loops that change to ``touched``.
        """
        is_followed = self._node_id in state.replicas and state.leader not in (NO_LEADER, self._node_id)
        number = loop_number(name, key.partition, self._loops_per_leader)
        wanted = FetcherId(state.leader, number) if is_followed else None
        if wanted != fetcher_ids.get(key.partition):
            self._remove(fetcher_ids, key, touched)
        if wanted is not None:
            partitions = self._loops.setdefault(wanted, {})
            followed = FollowedEpoch(name, state.leader_epoch)
            if partitions.get(key) != followed:
                partitions[key] = followed
                fetcher_ids[key.partition] = wanted
                touched.add(wanted)

    def _remove(self, fetcher_ids: dict[int, FetcherId], key: FetchKey, touched: set[FetcherId]) -> None:
        fetcher = fetcher_ids.pop(key.partition, None)
        if fetcher is not None:
            touched.add(fetcher)
            partitions = self._loops[fetcher]
            del partitions[key]
            if not partitions:
                del self._loops[fetcher]


def loop_number(topic: str, partition: int, loops_per_leader: int) -> int:
    """Return the number of a partition's fetch loop. Consecutive partitions of a topic take the loops in turn."""
    return (sum(topic.encode()) + partition) % loops_per_leader
