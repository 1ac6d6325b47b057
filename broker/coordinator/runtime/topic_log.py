"""An internal topic such as ``__consumer_offsets``, as coordinators use it: they append to the partitions that this
broker leads, and read them.

On a lone node the first append creates the topic. Reads return records up to the log end, not only to the high
watermark, because a coordinator's state includes its uncommitted records. Loop thread only.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tidelog.broker.loop.deferred import Deferred, when_all
from tidelog.broker.loop.log_openings import opening_expected
from tidelog.log.validation.params import AppendOrigin
from tidelog.protocol.errors import (
    CoordinatorNotAvailableError,
    KafkaStorageError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
)
from tidelog.protocol.transferable import TransferableRecords

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.replica.partition import Partition


class InternalTopicLog:
    """An internal topic of this broker, such as ``__consumer_offsets``."""

    def __init__(self, broker: Broker, topic: str, planned_partitions: int) -> None:
        self._broker = broker
        self._topic = topic
        self._planned_partitions = planned_partitions

    def exists(self) -> bool:
        return self._topic in self._broker.metadata.topics

    def is_led(self, partition: int) -> bool:
        """Return whether this broker leads the partition. If the topic does not exist, return whether this broker may
        create the topic."""
        image = self._broker.metadata.topics.get(self._topic)
        if image is None:
            return self._broker.topics.creates_topics
        return partition < image.partition_count and image.partitions[partition].leader == self._broker.node_id

    def leader_epoch(self, partition: int) -> int:
        """Return the leader epoch of a partition, 0 if the topic does not exist."""
        image = self._broker.metadata.topics.get(self._topic)
        return 0 if image is None else image.partitions[partition].leader_epoch

    def partition_count(self) -> int:
        """Return the number of partitions that the topic has, or will be created with."""
        image = self._broker.metadata.topics.get(self._topic)
        return self._planned_partitions if image is None else image.partition_count

    def when_open(self, partition: int) -> Deferred[None] | None:
        """Begin to open a partition's log in a thread. Returns None if the log is open or the topic does not exist."""
        return self._partition(partition).when_open() if self.exists() else None

    def append(self, partition: int, batch: bytearray, transaction_version: int = 0) -> int:
        """Append one batch and return its first offset. If the topic does not exist, it is created first. For a
        marker, ``transaction_version`` is the version (KIP-890) of its transaction.

        Raises NotCoordinatorError if this broker lost the leadership, CoordinatorNotAvailableError if there are too few
        in-sync replicas, and other KafkaErrors.
        """
        if self._topic not in self._broker.metadata.topics:
            self._broker.topics.ensure_internal_topic(self._topic)
        found = self._broker.replica_manager.partition(self._topic, partition)
        if not found.is_open:  # this is the partition's first record: the shard was loaded before the topic existed
            with opening_expected():
                found.open()
        try:
            return found.append_records(
                memoryview(batch), origin=AppendOrigin.COORDINATOR, transaction_version=transaction_version
            ).first_offset
        except NotEnoughReplicasError as error:
            raise CoordinatorNotAvailableError(error.message) from error
        except NotLeaderOrFollowerError as error:
            raise NotCoordinatorError from error

    def when_committed(self, partition: int) -> Deferred[None] | None:
        """Return a Deferred that completes when all records appended so far are committed, and the topic's creation is
        durable. Returns None if there is nothing to wait for.
        """
        image = self._broker.metadata.topics.get(self._topic)
        if image is None:
            return None
        found = self._partition(partition)
        if not found.is_open:
            return None  # nothing was appended
        end = found.log_end_offset
        waiting = None if found.high_watermark >= end else found.when_committed(end - 1)
        return self._with_topic(image.topic_id, waiting) if self._broker.topics.unsynced else waiting

    def _with_topic(self, topic_id: bytes, waiting: Deferred[None] | None) -> Deferred[None] | None:
        """Return a Deferred that also waits for the topic's creation, which may not be durable although the topic is in
        use. Returns None if there is nothing to wait for.
        """
        unsynced = self._broker.topics.unsynced
        if topic_id not in unsynced:
            return waiting
        synced = self._broker.controller.when_synced()
        if synced.has_value:
            unsynced.discard(topic_id)
            return waiting
        return synced if waiting is None else when_all((synced, waiting), None)

    def start_offset(self, partition: int) -> int:
        return self._partition(partition).log_start_offset

    def end_offset(self, partition: int) -> int:
        return self._partition(partition).log_end_offset

    def read(self, partition: int, offset: int, max_bytes: int) -> bytes | memoryview:
        """Read complete batches from ``offset`` on, at least one if there is one. Raises KafkaError."""
        from tidelog.log.fetch import FetchIsolation  # imported late: only a broker with open logs needs it

        found = self._partition(partition).read(
            offset, max_bytes, isolation=FetchIsolation.LOG_END, min_one_message=True
        )
        records = found.records
        if not isinstance(records, TransferableRecords):
            return records
        try:
            data = os.pread(records.file.fileno(), records.size, records.position)
        except OSError as error:
            raise KafkaStorageError(f"{self._topic}-{partition}: {error}") from error
        finally:
            records.release()
        return data

    def _partition(self, partition: int) -> Partition:
        return self._broker.replica_manager.partition(self._topic, partition)
