"""Choice of a replica in a consumer's rack, for the consumer to read from, if ``replica.selector.class`` is set
(KIP-392).

From v11 on a Fetch has the client's rack, and the leader answers with a replica in that rack. The replica must have the
fetch offset, and its broker must be alive; of several replicas the one with the highest log end is chosen. A leader in
that rack serves the fetch itself.

Source: RackAwareReplicaSelector and ReplicaManager.findPreferredReadReplica of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.broker.broker import Broker
from tidelog.broker.replica.fetching.fetch_session import FetchTarget
from tidelog.broker.replica.partition import Partition
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.messages.fetch import NO_REPLICA

if TYPE_CHECKING:
    from tidelog.broker.cluster.partition_state import LeaderState

SELECTOR_KEY = "replica.selector.class"


def find_nearer(broker: Broker, context: RequestContext, rack: str) -> Callable[[Partition, FetchTarget], int] | None:
    """Return the function that finds the replica for a client in this rack; None without a selector, or if this broker
    is in the rack, too."""
    if not broker.config.get(SELECTOR_KEY) or rack == broker.config.get("broker.rack"):
        return None

    def find(partition: Partition, target: FetchTarget) -> int:
        leading = partition.leading
        if leading is None:
            return NO_REPLICA
        holders = holders_of(leading.leader_state, target.fetch_offset)
        near = [(end_offset, -one) for one, end_offset in holders if _rack_of(broker, context, one) == rack]
        return -max(near)[1] if near else NO_REPLICA

    return find


def holders_of(state: LeaderState, offset: int) -> list[tuple[int, int]]:
    """Return the ids and log end offsets of the followers whose logs have an offset or end at it."""
    followers = ((one, state.follower(one)) for one in state.replicas)
    return [
        (one, follower.log_end_offset)
        for one, follower in followers
        if follower is not None and follower.log_start_offset <= offset <= follower.log_end_offset
    ]


def _rack_of(broker: Broker, context: RequestContext, node_id: int) -> str | None:
    """Return the rack of a broker that is alive and has the client's listener; None for another broker."""
    node = broker.nodes.find(context, node_id)
    return None if node is None else node.rack
