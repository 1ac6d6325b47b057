"""The address of this broker in answers to a client.

With ``advertised.listeners`` it is the one of the client's listener. Without (or without a host there), it is the
address this client's connection arrived at. That is right on machines with many names and inside of a container
network. It is wrong where an address is translated on the way to a network that the client cannot reach by itself.
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

_MAPPED_IPV4 = "::ffff:"  # how a dual-stack socket shows an IPv4 address


class LoneNode:
    """The only node of its cluster, its own controller."""

    __slots__ = ("_config", "controller_id")

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.controller_id = config.node_id

    def alive(self, context: RequestContext) -> list[Node]:
        """Return this node, as the client of this request reaches it."""
        host, port = address_for_client(self._config, context)
        return [Node(self.controller_id, host, port, self._config.get("broker.rack"))]

    def fenced(self, context: RequestContext) -> list[Node]:
        """Return no node."""
        return []

    def find(self, context: RequestContext, node_id: int) -> Node | None:
        """Return this node, None for another id."""
        return self.alive(context)[0] if node_id == self.controller_id else None

    def offline_replicas(self, partitions: Iterable[PartitionState]) -> Iterable[list[int]]:
        """Return no replica for any: the one that answers is there."""
        return repeat([])

    def coordinator(self, context: RequestContext, key_type: int, key: str) -> Node:
        """Return this node: it coordinates all."""
        return self.alive(context)[0]


def address_for_client(config: BrokerConfig, context: RequestContext) -> tuple[str, int]:
    """Return host and port under which the client of this request reaches this broker."""
    advertised = config.advertised_listeners.get(context.listener_name)
    reached = context.local_host.removeprefix(_MAPPED_IPV4)
    if advertised is None:
        return reached, context.local_port
    return advertised.host or reached, advertised.port or context.local_port
