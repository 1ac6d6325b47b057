"""A fetcher of records: from given offsets of partitions on, in the order of each log.

Each round sends a Fetch to the leaders of all partitions that have a position. Control batches and, under
``read_committed``, records of aborted transactions are left out, so a round without records may still move positions.
One thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

from tidelog.client.admin.offsets import READ_COMMITTED, TopicPartition
from tidelog.client.cluster import Address, Cluster, Trouble, ask, raise_for_code
from tidelog.client.connection import ClientError
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tidelog.protocol.record.batches import iter_batches
from tidelog.protocol.record.message_set import LegacyRecordBatch
from tidelog.protocol.record.record_batch import Buffer, Record, RecordBatch

PARTITION_BYTES = 1024 * 1024
RESPONSE_BYTES = 16 * 1024 * 1024
_FETCH = 12
"""The newest version of Fetch with topic names; from 13 on it has topic ids."""


class FetchedRecord(NamedTuple):
    """A record with its topic and partition."""

    topic: str
    partition: int
    record: Record


class Fetcher:
    """Positions in partitions, which move with the records that are read. ``positions`` may be changed between
    rounds."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int],
        isolation_level: int = 0,
        partition_bytes: int = PARTITION_BYTES,
    ) -> None:
        """A round reads up to ``partition_bytes`` of each partition, or its next batch if that is larger."""
        self._cluster = cluster
        self._partition_bytes = partition_bytes
        self._isolation_level = isolation_level
        self.positions = dict(positions)
        self.vacant: dict[TopicPartition, int] = {}
        """Partitions of the last round's responses without any batch -> the end of the visible log according to their
        leaders."""

    def fetch(self, wait_ms: int) -> Iterator[FetchedRecord]:
        """Yield the records of one round, which waits up to ``wait_ms`` in all for leaders without new records.

        The position of a partition moves past a record when the next one is requested. Raises ClientError, KafkaError:
        at once if the leader of a partition cannot be found or a batch is damaged; otherwise the first failure of a
        leader or partition, after the records of the others.
        """
        self.vacant = {}
        by_leader: dict[Address, list[TopicPartition]] = defaultdict(list)
        for topic_partition in list(self.positions):
            by_leader[self._cluster.leader(*topic_partition)].append(topic_partition)
        failures: list[ClientError | KafkaError] = []
        for address, partitions in by_leader.items():
            try:
                answer = self._ask(address, self._request(partitions, wait_ms // len(by_leader)))
            except Trouble as error:
                failures.append(error)
            else:
                self._note_vacant(answer)
                for topic in answer.responses:
                    for data in topic.partitions:
                        yield from self._records(topic.topic, data, failures)
        if failures:
            raise failures[0]

    def _ask(self, address: Address, request: FetchRequest) -> FetchResponse:
        """Send a Fetch to a leader. Raises ClientError, KafkaError."""
        answer = ask(self._cluster.client_for(address), request, FetchResponse, _FETCH)
        raise_for_code(answer.error_code, "fetch")
        return answer

    def _note_vacant(self, answer: FetchResponse) -> None:
        """Note the partitions of a response without any batch. In a response with batches, a partition without them
        may have batches that did not fit."""
        found = [(topic.topic, data) for topic in answer.responses for data in topic.partitions]
        if any(data.records for _, data in found):
            return
        for topic, data in found:
            if not data.error_code:
                end = data.last_stable_offset if self._isolation_level == READ_COMMITTED else data.high_watermark
                self.vacant[topic, data.partition_index] = end

    def _request(self, partitions: list[TopicPartition], wait_ms: int) -> FetchRequest:
        topics: dict[str, FetchTopic] = {}
        for name, number in partitions:
            topic = topics.setdefault(name, FetchTopic(topic=name, partitions=[]))
            topic.partitions.append(
                FetchPartition(
                    partition=number,
                    fetch_offset=self.positions[name, number],
                    partition_max_bytes=self._partition_bytes,
                )
            )
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=RESPONSE_BYTES,
            isolation_level=self._isolation_level,
            topics=list(topics.values()),
        )

    def _records(
        self, topic: str, data: PartitionData, failures: list[ClientError | KafkaError]
    ) -> Iterator[FetchedRecord]:
        """Yield a partition's records, or add its error to the failures."""
        topic_partition = (topic, data.partition_index)
        try:
            raise_for_code(data.error_code, f"fetch from {topic}-{data.partition_index}")
        except KafkaError as error:
            failures.append(error)
            return
        start = self.positions.get(topic_partition)
        if start is None or not data.records:
            return
        aborted = (
            _AbortedProducers(data.aborted_transactions or []) if self._isolation_level == READ_COMMITTED else None
        )
        for batch in iter_batches(cast(Buffer, data.records)):
            if batch.next_offset <= start:
                continue
            if isinstance(batch, RecordBatch) and (batch.is_control or (aborted and aborted.hides(batch))):
                if aborted and batch.is_control:
                    aborted.end(batch)
            else:
                yield from self._batch_records(topic_partition, batch, start)
            if topic_partition not in self.positions:
                return
            self.positions[topic_partition] = batch.next_offset

    def _batch_records(
        self, topic_partition: TopicPartition, batch: RecordBatch | LegacyRecordBatch, start: int
    ) -> Iterator[FetchedRecord]:
        for record in batch.records():
            if record.offset >= start and topic_partition in self.positions:
                yield FetchedRecord(*topic_partition, record)
                self.positions[topic_partition] = record.offset + 1


class _AbortedProducers:
    """The producers that are in an aborted transaction at the current batch of a partition."""

    def __init__(self, transactions: list[AbortedTransaction]) -> None:
        self._coming = sorted(transactions, key=lambda one: one.first_offset, reverse=True)
        self._open: set[int] = set()

    def hides(self, batch: RecordBatch) -> bool:
        """Return whether the batch belongs to an aborted transaction."""
        while self._coming and self._coming[-1].first_offset <= batch.last_offset:
            self._open.add(self._coming.pop().producer_id)
        return batch.is_transactional and batch.producer_id in self._open

    def end(self, batch: RecordBatch) -> None:
        """Note the marker that ends a transaction."""
        while self._coming and self._coming[-1].first_offset <= batch.last_offset:
            self._open.add(self._coming.pop().producer_id)
        self._open.discard(batch.producer_id)
