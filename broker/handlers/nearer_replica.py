"""Replica that a consumer should read from: one of its rack, where ``replica.selector.class`` says so (KIP-392).

Asked at the leader, with the rack of a Fetch from v11 on. A replica of that rack is named if it has the offset and its
broker is alive; the leader itself, if it is of that rack, serves. Of several the one with the furthest log end is
named.

Source: RackAwareReplicaSelector and ReplicaManager.findPreferredReadReplica of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.broker.broker import Broker
from tidelog.broker.handlers.fetch import NO_REPLICA
from tidelog.broker.replica.fetching.fetch_session import FetchTarget
from tidelog.broker.replica.partition import Partition
from tidelog.broker.requests.context import RequestContext

if TYPE_CHECKING:
    from tidelog.broker.cluster.partition_state import LeaderState

SELECTOR_KEY = "replica.selector.class"


def find_nearer(broker: Broker, context: RequestContext, rack: str) -> Callable[[Partition, FetchTarget], int] | None:
    """Return how to find the replica for a client of this rack; None where all clients read from leaders."""
    if not broker.config.get(SELECTOR_KEY) or rack == broker.config.get("broker.rack"):
        return None

    def find(partition: Partition, target: FetchTarget) -> int:
        leading = partition.leading
        if leading is None:
            return NO_REPLICA
        holders = holders_of(leading.core, target.fetch_offset)
        near = [(end_offset, -one) for one, end_offset in holders if _rack_of(broker, context, one) == rack]
        return -max(near)[1] if near else NO_REPLICA

    return find


def holders_of(core: LeaderState, offset: int) -> list[tuple[int, int]]:
    """Return the followers whose logs hold an offset, or end there, with their log ends."""
    followers = ((one, core.follower(one)) for one in core.replicas)
    return [
        (one, follower.log_end_offset)
        for one, follower in followers
        if follower is not None and follower.log_start_offset <= offset <= follower.log_end_offset
    ]


def _rack_of(broker: Broker, context: RequestContext, node_id: int) -> str | None:
    """Return the rack of a broker that is alive and has the client's listener."""
    node = broker.nodes.find(context, node_id)
    return None if node is None else node.rack
