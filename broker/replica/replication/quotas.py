"""Throttles of replication: bytes a second of the replicas that topics name, as leader and as follower (KIP-73).

    a leader    whose replica is named sends no records to followers while the rate is above the limit
    a follower  omits its named replicas from its fetch while the rate is above the limit
    neither     throttles a follower in the ISR: acks=all waits for it, and it would leave the ISR. Nor does a leader
                throttle one that it has asked the controller to add to the ISR

The limits are ``leader.replication.throttled.rate`` and ``follower...`` of a broker; the replicas are those of the
topics' ``leader.replication.throttled.replicas`` and ``follower...``: ``*``, or PARTITION:BROKER. Both change while the
broker runs: ``kafka-reassign-partitions`` sets them with ``--execute --throttle`` and removes them with ``--verify``.
Bytes of one answer beyond the limit delay the next ones. Sans-io. Source: ReplicationQuotaManager of Kafka 4.3; KIP-73.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tidelog.broker.metrics.rates import Rate, Window
from tidelog.broker.metrics.registry import Metrics, Sample

LEADER, FOLLOWER = "leader", "follower"
ALL_REPLICAS = "*"


class ReplicationQuota:
    """Throttle of a broker's replication in one direction, as leader or follower. Loop thread only."""

    __slots__ = ("_limit", "_node_id", "_rate", "key")

    def __init__(self, direction: str, node_id: int, window: Window, limit: Callable[[], float]) -> None:
        """``limit`` returns the current limit in bytes a second."""
        self.key = f"{direction}.replication.throttled.replicas"
        """Key of the topic configuration that lists the throttled replicas."""
        self._node_id = node_id
        self._limit = limit
        self._rate = Rate(window, 0.0)

    def names(self, listed: Sequence[str], partition: int) -> bool:
        """Return whether ``listed``, a topic's value of ``key``, includes this broker's replica of a partition."""
        return bool(listed) and (ALL_REPLICAS in listed or f"{partition}:{self._node_id}" in listed)

    def is_exceeded(self, now_ms: float) -> bool:
        """Return whether the rate of the throttled replicas is above the limit."""
        return self._rate.per_second(now_ms) > self._limit()

    def record(self, size: int, now_ms: float) -> None:
        """Count the bytes of a throttled replica."""
        self._rate.record(size, now_ms)

    def byte_rate(self, now_ms: float) -> float:
        """Return the rate of the throttled replicas in bytes a second."""
        return self._rate.per_second(now_ms)


class PartitionThrottle:
    """The throttle of one led partition's followers. Loop thread only."""

    __slots__ = ("_configs", "_monotonic_ms", "_partition", "_quota")

    def __init__(
        self,
        quota: ReplicationQuota,
        partition: int,
        configs: Callable[[], Mapping[str, Any]],
        monotonic_ms: Callable[[], float],
    ) -> None:
        """``configs`` returns the topic's current configuration."""
        self._quota = quota
        self._partition = partition
        self._configs = configs
        self._monotonic_ms = monotonic_ms

    @property
    def _is_named(self) -> bool:
        return self._quota.names(self._configs()[self._quota.key], self._partition)

    @property
    def is_exceeded(self) -> bool:
        """True while followers outside the ISR get no records."""
        return self._is_named and self._quota.is_exceeded(self._monotonic_ms())

    def note_sent(self, size: int) -> None:
        """Count the bytes of records that are sent to a follower."""
        if self._is_named:
            self._quota.record(size, self._monotonic_ms())


class ReplicationQuotas(NamedTuple):
    """Throttles of a broker's replication in both directions."""

    leader: ReplicationQuota
    follower: ReplicationQuota

    def measure(self, metrics: Metrics, monotonic_ms: Callable[[], float]) -> None:
        """Export the byte rates of Kafka's metrics LeaderReplication and FollowerReplication."""

        def samples() -> Iterator[Sample]:
            for name, quota in (("leaderreplication", self.leader), ("followerreplication", self.follower)):
                yield Sample(f"kafka_server_{name}_byterate", "gauge", {}, quota.byte_rate(monotonic_ms()))

        metrics.add_source(samples)
