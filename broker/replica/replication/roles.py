"""Roles of replicas in a cluster: the interface that decides whether this broker leads or follows a partition.

A lone node has no roles: all of its partitions have one replica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidelog.broker.metadata.metadata_image import PartitionState
    from tidelog.broker.replica.partition import Partition


class Roles(Protocol):
    """Decides the roles of this broker's replicas. Loop thread only."""

    def take(self, partition: Partition, state: PartitionState) -> None:
        """Give a partition its role in a newer image, once it has the image's leader, epochs, replicas and ISR. Its log
        is open, or can be opened at once."""
        ...

    def drop(self, partition: Partition) -> None:
        """Drop the role of a partition whose log is deleted."""
        ...
