"""Writing of transaction markers: to data partitions, and by the group coordinator to ``__consumer_offsets``.

Markers for partitions of other brokers are written by their leaders.

The coordinator epoch in a marker is the leader epoch of the transaction's partition of ``__transaction_state``. Loop
thread only. Source: KIP-98; WriteTxnMarkers v0-2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tidelog.broker.coordinator.transaction.shard import ProducerIdAndEpoch
from tidelog.broker.coordinator.transaction.state import PartitionKey
from tidelog.broker.metadata.image import GROUP_METADATA_TOPIC
from tidelog.broker.replica.opening import opening_of
from tidelog.log.validation.params import AppendOrigin
from tidelog.protocol.errors import NotCoordinatorError, NotLeaderOrFollowerError, UnknownTopicOrPartitionError
from tidelog.protocol.record.record_batch import EndTransactionMarker, end_transaction_marker

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.loop.deferred import Deferred
    from tidelog.broker.peers import Peers


class GroupOffsets(Protocol):
    """Offsets that groups commit in transactions, in ``__consumer_offsets``."""

    def append_end_transaction(self, partition: int, batch: bytearray, transaction_version: int) -> Deferred[None]:
        """Append a marker to a partition; settles when it is committed. Raises NotCoordinatorError if another broker
        leads the partition, and other KafkaErrors of the append."""


class BrokerMarkerWriter:
    """The ``MarkerWriter`` of a broker: it appends markers to the partitions that the broker leads, and has ``peers``
    write the others."""

    def __init__(self, broker: Broker, groups: GroupOffsets, peers: Peers | None = None) -> None:
        """``peers`` writes markers to partitions that other brokers lead; without it such markers are refused."""
        self._broker = broker
        self._peers = peers
        self._groups = groups

    def when_open(self, partition: PartitionKey) -> Deferred[None] | None:
        """Begin to open the log in a thread. Returns None if it is open, or this broker does not have the partition."""
        return opening_of(self._broker, *partition)

    def write(
        self,
        partition: PartitionKey,
        producer: ProducerIdAndEpoch,
        *,
        commit: bool,
        coordinator_epoch: int = 0,
        transaction_version: int = 0,
    ) -> Deferred[None]:
        """Append the marker on this broker, or have the partition's leader append it. The Deferred completes when the
        marker is committed, or if another broker's partition does not need it.

        Raises UnknownTopicOrPartitionError and what the append raises.
        """
        end = EndTransactionMarker(commit, coordinator_epoch)
        try:
            return self._write_here(partition, producer, end, transaction_version)
        except (NotLeaderOrFollowerError, NotCoordinatorError):  # NotCoordinatorError for __consumer_offsets
            if self._peers is None:
                raise
            from tidelog.broker.cluster.txn_markers import Marker  # only members of a cluster need it

            return self._peers.write_marker(Marker(*partition, *producer, *end, transaction_version))

    def _write_here(
        self, partition: PartitionKey, producer: ProducerIdAndEpoch, end: EndTransactionMarker, transaction_version: int
    ) -> Deferred[None]:
        topic, index = partition
        producer_id, producer_epoch = producer
        batch = end_transaction_marker(
            end,
            timestamp=self._broker.time.milliseconds(),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        if topic != GROUP_METADATA_TOPIC:
            found = self._broker.replica_manager.partition(topic, index)
            info = found.append_records(
                memoryview(batch), origin=AppendOrigin.COORDINATOR, transaction_version=transaction_version
            )
            self._note_marker(partition, producer_id)
            return found.when_committed(info.last_offset)
        if GROUP_METADATA_TOPIC not in self._broker.metadata.topics:
            raise UnknownTopicOrPartitionError
        appended = self._groups.append_end_transaction(index, batch, transaction_version)
        self._note_marker(partition, producer_id)
        return appended

    def _note_marker(self, partition: PartitionKey, producer_id: int) -> None:
        """Have the producer's next transaction in this partition verified with its coordinator again."""
        if self._broker.peers is not None:
            self._broker.peers.note_marker(partition, producer_id)
