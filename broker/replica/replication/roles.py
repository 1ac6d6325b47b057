"""Roles of replicas in a cluster: the interface that decides whether this broker leads or follows a partition.

A broker without a cluster has no such object: it leads all of its partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidelog.broker.metadata.metadata_image import PartitionState
    from tidelog.broker.replica.partition import Partition


class Roles(Protocol):
    """Decides the roles of this broker's replicas. Loop thread only."""

    def set_role(self, partition: Partition, state: PartitionState) -> None:
        """Let this broker lead or follow a partition, as ``state`` of a newer metadata image says. The partition has
        taken over leader, leader epoch, replicas and ISR from it. If its log is not open, this broker leads only once a
        thread has opened that."""
        ...

    def drop(self, partition: Partition) -> None:
        """End the role of this broker in a partition whose log is deleted."""
        ...
