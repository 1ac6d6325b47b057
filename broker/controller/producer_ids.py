"""Producer ids that are never repeated: handed out from blocks that the metadata log has given away before (KIP-98).

A block is taken by one record, synced before the first id is handed out; a crash loses the rest of the block and
nothing else, so an id is never handed out twice. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.protocol.metadata_records.records import ProducerIdsRecord

if TYPE_CHECKING:
    from tidelog.broker.controller.metadata_controller import MetadataController

BLOCK_SIZE = 1000
"""Kafka's size: 2**63 ids last for 2**53 restarts."""


class ProducerIdManager:
    """Hands out producer ids."""

    __slots__ = ("_controller", "_end", "_next")

    def __init__(self, controller: MetadataController) -> None:
        self._controller = controller
        self._next = self._end = 0

    def next_id(self) -> int:
        """Return an id that was never handed out before. Raises KafkaStorageError."""
        if self._next == self._end:
            first = self._controller.image.producer_ids
            self._controller.commit([block_record(self._controller.node_id, first + BLOCK_SIZE)])
            self._next, self._end = first, first + BLOCK_SIZE
        self._next += 1
        return self._next - 1


def block_record(node_id: int, next_producer_id: int) -> VersionedRecord:
    """Return the record after which ``next_producer_id`` is the first id that no block has."""
    return VersionedRecord(ProducerIdsRecord(broker_id=node_id, next_producer_id=next_producer_id))
