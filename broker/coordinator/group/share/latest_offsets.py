"""High watermarks of partitions, from the brokers that lead them: a share group's lag is counted up to them (KIP-1226).

Loop thread only. Source: PartitionMetadataClient of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tidelog.broker.loop.steps import Steps, strip_traceback
from tidelog.protocol.errors import KafkaError, NotLeaderOrFollowerError

if TYPE_CHECKING:
    from tidelog.broker.peers import Peers
    from tidelog.broker.replica.partition import Partition


class LatestOffsets:
    """Finds the high watermarks of partitions, on this broker and on others."""

    def __init__(self, partition: Callable[[str, int], Partition], peers: Peers | None) -> None:
        """``partition(topic, index)`` returns a partition of this broker, or raises KafkaError."""
        self._partition = partition
        self._peers = peers

    def find(self, asked: Iterable[tuple[str, int]]) -> Steps[dict[tuple[str, int], int | KafkaError]]:
        """Return the high watermark of each partition, or the KafkaError because of which it is unknown."""
        found: dict[tuple[str, int], int | KafkaError] = {}
        for one in asked:
            try:
                partition = self._partition(*one)
                yield partition.when_open()
                found[one] = partition.offsets().high_watermark
            except KafkaError as error:
                found[one] = strip_traceback(error)
        elsewhere = [one for one, latest in found.items() if isinstance(latest, NotLeaderOrFollowerError)]
        if self._peers is not None and elsewhere:
            found.update((yield from self._peers.latest_offsets(elsewhere)))
        return found
