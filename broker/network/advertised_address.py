"""The address of this broker in answers to a client.

It is the entry of the client's listener in ``advertised.listeners``. If there is no entry, or the entry names no host,
the broker answers with the local address of the client's connection. That address is right on machines with many names
and inside a container network. It is wrong behind address translation, where clients cannot reach the broker's own
network.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import TYPE_CHECKING

from tidelog.broker.requests.nodes import Node

if TYPE_CHECKING:
    from tidelog.broker.config.broker_config import BrokerConfig
    from tidelog.broker.metadata.metadata_image import PartitionState
    from tidelog.broker.requests.context import RequestContext


class LoneNode:
    """A broker that is the only node of its cluster, and its own controller."""

    __slots__ = ("_config", "controller_id")

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.controller_id = config.node_id

    def alive_nodes(self, context: RequestContext) -> list[Node]:
        """Return this node, at the address where this client reaches it."""
        host, port = address_for_client(self._config, context)
        return [Node(self.controller_id, host, port, self._config.get("broker.rack"))]

    def fenced_nodes(self, context: RequestContext) -> list[Node]:
        """Return an empty list: the node that answers is not fenced."""
        return []

    def find(self, context: RequestContext, node_id: int) -> Node | None:
        """Return this node, or None for another id."""
        return self.alive_nodes(context)[0] if node_id == self.controller_id else None

    def offline_replicas(self, partitions: Iterable[PartitionState]) -> Iterable[list[int]]:
        """Return an empty list for each partition: the node that answers has its only replica."""
        return repeat([])

    def coordinator(self, context: RequestContext, key_type: int, key: str) -> Node:
        """Return this node, which coordinates every key."""
        return self.alive_nodes(context)[0]


def address_for_client(config: BrokerConfig, context: RequestContext) -> tuple[str, int]:
    """Return the host and port at which the client of this request reaches this broker."""
    advertised = config.advertised_listeners.get(context.listener_name)
    if advertised is None:
        return context.local_host, context.local_port
    return advertised.host or context.local_host, advertised.port or context.local_port
