"""Brokers of the cluster, with the addresses under which answers name them to a client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from tidelog.broker.metadata.metadata_image import PartitionState
    from tidelog.broker.requests.context import RequestContext


class Node(NamedTuple):
    """A broker, with its address on the listener that the client uses."""

    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool = False


class Nodes(Protocol):
    """Brokers of the cluster. Loop thread only."""

    @property
    def controller_id(self) -> int:
        """Id of the node that an answer names as the controller. In a cluster it is that of a random live broker,
        which forwards requests to the active controller; -1 if none is alive."""
        ...

    def alive_nodes(self, context: RequestContext) -> list[Node]:
        """Return the live brokers that this client can reach."""
        ...

    def fenced_nodes(self, context: RequestContext) -> list[Node]:
        """Return the fenced brokers that have an address on this client's listener."""
        ...

    def find(self, context: RequestContext, node_id: int) -> Node | None:
        """Return a live broker by its id; None if it is not alive or has no address on this client's listener."""
        ...

    def offline_replicas(self, partitions: Iterable[PartitionState]) -> Iterable[list[int]]:
        """Return for each partition its replicas whose brokers are not alive, or whose log directories failed."""
        ...

    def coordinator(self, context: RequestContext, key_type: int, key: str) -> Node:
        """Return the coordinator of a group (key type 0), a transactional id (1) or a share partition (2).

        Raises CoordinatorNotAvailableError.
        """
        ...
