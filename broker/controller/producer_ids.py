"""Producer ids, each handed out once: they come from blocks that are reserved in the metadata log (KIP-98).

One record reserves a block, and is synced before an id of the block is handed out. After a restart the ids that are
left of reserved blocks are not used, so no id is handed out twice. The next block is reserved when a tenth of the
present one is left, so that clients seldom wait for its sync. Loop thread only.

Source: RPCProducerIdManager of Kafka 4.3.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.loop.deferred import Deferred, deferred_value, error_of
from tidelog.broker.loop.group_sync import settle_one
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.protocol.errors import CoordinatorLoadInProgressError, KafkaError
from tidelog.protocol.metadata_records.records import ProducerIdsRecord

if TYPE_CHECKING:
    from tidelog.broker.controller.metadata_controller import MetadataController

BLOCK_SIZE = 1000
"""Kafka's size: 2**63 ids last for 2**53 restarts."""
PREFETCH_LEFT = BLOCK_SIZE // 10
NO_IDS = range(0)


class ProducerIdManager:
    """Hands out producer ids."""

    __slots__ = ("_controller", "_following", "_ids", "_is_fetching", "_waiting")

    def __init__(self, controller: MetadataController) -> None:
        self._controller = controller
        self._ids = self._following = NO_IDS
        """The ids that are left of the present block, and the next block."""
        self._is_fetching = False
        self._waiting: list[Deferred[None]] = []

    def when_available(self) -> Deferred[None]:
        """Return a Deferred that settles once there is an id to take; it may fail with a KafkaError."""
        if self._ids:
            return deferred_value(None)
        waiting: Deferred[None] = Deferred()
        self._waiting.append(waiting)
        try:
            self.fetch()
        except KafkaError as error:
            self._settle(error)
        return waiting

    def take(self) -> int:
        """Return an id that was never handed out before.

        Raises CoordinatorLoadInProgressError, which clients retry, if none is left and a block is being reserved;
        KafkaStorageError if that is not possible.
        """
        if not self._ids:
            self.fetch()
            raise CoordinatorLoadInProgressError
        taken, self._ids = self._ids[0], self._ids[1:]
        if not self._ids:
            self._ids, self._following = self._following, NO_IDS
        if len(self._ids) <= PREFETCH_LEFT and not self._following:
            with contextlib.suppress(KafkaError):  # raised to the client that finds no id left
                self.fetch()
        return taken

    def fetch(self) -> None:
        """Reserve the next block, unless one is being reserved. Raises KafkaStorageError."""
        if self._is_fetching:
            return
        first = self._controller.image.producer_ids
        self._controller.commit([block_record(self._controller.node_id, first + BLOCK_SIZE)])
        synced = self._controller.when_synced()
        self._is_fetching = True
        synced.on_done(partial(self._end_fetch, range(first, first + BLOCK_SIZE)))

    def _end_fetch(self, block: range, synced: Deferred[None]) -> None:
        self._is_fetching = False
        failure = error_of(synced)
        if failure is None:
            self.add_block(block)
        self._settle(failure)

    def add_block(self, block: range) -> None:
        """Add a block that is reserved for this broker."""
        if self._ids:
            self._following = block
        else:
            self._ids = block

    def _settle(self, failure: KafkaError | None) -> None:
        waiting, self._waiting = self._waiting, []
        for deferred in waiting:
            settle_one(deferred, failure)


def block_record(node_id: int, next_producer_id: int) -> VersionedRecord:
    """Return the record after which ``next_producer_id`` is the first id that no block has."""
    return VersionedRecord(ProducerIdsRecord(broker_id=node_id, next_producer_id=next_producer_id))
