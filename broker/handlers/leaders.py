"""Leaders and their addresses in answers of Produce and Fetch, for a client that has asked the wrong broker.

After NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH a client sends a Metadata request, unless the answer names the
leader (KIP-951).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.broker import Broker
from tidelog.broker.metadata.metadata_image import NO_LEADER
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.nodes import Node
from tidelog.protocol.errors import FencedLeaderEpochError, NotLeaderOrFollowerError
from tidelog.protocol.types import ZERO_UUID

if TYPE_CHECKING:
    from tidelog.protocol.messages.produce import ProduceResponse

LEADER_ERRORS = frozenset({NotLeaderOrFollowerError.code, FencedLeaderEpochError.code})
"""Errors after which a client needs to know the leader."""


class Leader(NamedTuple):
    """The leader of a partition: id -1 if it has none now, and both -1 for a partition that does not exist."""

    node_id: int
    epoch: int


def leader_of(broker: Broker, topic: str, topic_id: bytes, index: int) -> Leader:
    """Return the leader in the newest metadata. The topic is found by name if its id is zero, else by id."""
    metadata = broker.metadata
    image = metadata.topics.get(topic) if topic_id == ZERO_UUID else metadata.topic_by_id(topic_id)
    if image is None or not 0 <= index < len(image.partitions):
        return Leader(NO_LEADER, -1)
    return Leader(image.partitions[index].leader, image.partitions[index].leader_epoch)


def endpoints_of(broker: Broker, client: RequestContext, leaders: Iterable[int]) -> list[Node]:
    """Return these leaders' addresses on the client's listener, each once."""
    found = (broker.nodes.find(client, one) for one in sorted(set(leaders) - {NO_LEADER}))
    return [node for node in found if node is not None]


def name_leaders(broker: Broker, client: RequestContext, response: ProduceResponse) -> None:
    """Add leaders and their addresses to an answer of Produce, for errors in LEADER_ERRORS."""
    from tidelog.protocol.messages.produce import LeaderIdAndEpoch, NodeEndpoint  # not for Fetch

    named = []
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code in LEADER_ERRORS:
                leader = leader_of(broker, topic.name, topic.topic_id, answer.index)
                answer.current_leader = LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)
                named.append(leader.node_id)
    response.node_endpoints = [
        NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
        for node in endpoints_of(broker, client, named)
    ]
