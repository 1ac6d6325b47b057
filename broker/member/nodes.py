"""Brokers of the cluster in the metadata image, as a member's answers name them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat

from tidelog.broker.cluster.quorum import Address
from tidelog.broker.coordinator.runtime.key_hash import java_string_hash
from tidelog.broker.member.connections.channel import ChannelError
from tidelog.broker.member.controller import RemoteController
from tidelog.broker.metadata.image import (
    GROUP_METADATA_TOPIC,
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    UNASSIGNED_DIRECTORY,
)
from tidelog.broker.metadata.metadata_image import BrokerRegistration, MetadataImage, PartitionState
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.requests.nodes import Node
from tidelog.protocol.errors import CoordinatorNotAvailableError

_NOT_KNOWN = (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY)
INTERNAL_TOPIC_OF = (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC)
"""Internal topic of each key type of FindCoordinator, which is the index."""


class ClusterNodes:
    """Brokers that are registered in the newest image. Loop thread only."""

    __slots__ = ("_controller", "_create_topic")

    def __init__(self, controller: RemoteController, create_topic: Callable[[str], object]) -> None:
        """``create_topic`` asks the active controller to create an internal topic."""
        self._controller = controller
        self._create_topic = create_topic

    @property
    def controller_id(self) -> int:
        """Id of a random broker that is alive, as in Kafka: each broker forwards requests to the active controller. -1
        if none is alive.
        """
        alive = [one.broker_id for one in self._controller.image.brokers.values() if not one.is_fenced]
        return random.choice(alive) if alive else -1

    def alive_nodes(self, context: RequestContext) -> list[Node]:
        """Return the brokers that are not fenced and have the client's listener."""
        return self._list_nodes(context, is_fenced=False)

    def fenced_nodes(self, context: RequestContext) -> list[Node]:
        """Return the brokers that are fenced and have the client's listener."""
        return self._list_nodes(context, is_fenced=True)

    def find(self, context: RequestContext, node_id: int) -> Node | None:
        """Return a broker if it is alive and has the client's listener, else None."""
        broker = self._controller.image.brokers.get(node_id)
        return None if broker is None or broker.is_fenced else node_on(broker, context.listener_name)

    def offline_replicas(self, partitions: Iterable[PartitionState]) -> Iterable[list[int]]:
        """Return for each partition its replicas whose brokers are fenced or unknown, or whose directories failed."""
        alive = {number: one for number, one in self._controller.image.brokers.items() if not one.is_fenced}
        return (offline_replicas_of(state, alive) for state in partitions)

    def coordinator(self, context: RequestContext, key_type: int, key: str) -> Node:
        """Return the leader of the key's partition of an internal topic, which is created if there is none.

        Raises CoordinatorNotAvailableError.
        """
        name = INTERNAL_TOPIC_OF[key_type]
        topic = self._controller.image.topic_by_name(name)
        if topic is None:
            self._create_topic(name)
            raise CoordinatorNotAvailableError
        partition = topic.partitions[java_string_hash(key) % len(topic.partitions)]
        node = self.find(context, partition.leader)
        if node is None:
            raise CoordinatorNotAvailableError
        return node

    def _list_nodes(self, context: RequestContext, *, is_fenced: bool) -> list[Node]:
        found = (
            node_on(one, context.listener_name)
            for one in self._controller.image.brokers.values()
            if one.is_fenced is is_fenced
        )
        return [node for node in found if node is not None]


def offline_replicas_of(state: PartitionState, alive: Mapping[int, BrokerRegistration]) -> list[int]:
    """Return the replicas of a partition that are not online; ``alive`` has the brokers that are not fenced."""
    directories = state.directories or repeat(MIGRATING_DIRECTORY)
    return [
        replica
        for replica, directory in zip(state.replicas, directories, strict=False)
        if replica not in alive or not has_online_directory(alive[replica], directory)
    ]


def has_online_directory(broker: BrokerRegistration, directory: bytes) -> bool:
    """Return whether a broker's directory works, or is not known. A broker lists its directories only from
    ``metadata.version`` 3.7-IV2 on.
    """
    online = broker.directories
    return directory in online or directory in _NOT_KNOWN or not (online or directory == LOST_DIRECTORY)


def node_on(broker: BrokerRegistration, listener_name: str) -> Node | None:
    """Return a broker's node on a listener, None if it has no listener of that name."""
    for endpoint in broker.endpoints:
        if endpoint.name == listener_name:
            return Node(broker.broker_id, endpoint.host, endpoint.port, broker.rack, broker.is_fenced)
    return None


def address_on(broker: BrokerRegistration | None, listener_name: str) -> Address | None:
    """Return a broker's address on a listener, None if it is not known."""
    node = None if broker is None else node_on(broker, listener_name)
    return None if node is None else Address(node.host, node.port)


def peer_address(image: MetadataImage, node_id: int, listener_name: str) -> Address:
    """Return another broker's address on a listener. Raises ChannelError unless it is alive and has the listener."""
    broker = image.brokers.get(node_id)
    if broker is None or broker.is_fenced:
        raise ChannelError(f"broker {node_id} is not alive")
    address = address_on(broker, listener_name)
    if address is None:
        raise ChannelError(f"broker {node_id} has no listener {listener_name}")
    return address
