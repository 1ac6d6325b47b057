"""An idempotent producer: records are collected in a batch for each partition, and a flush sends all batches and waits.

One batch of a partition is in flight at a time. After an error that may pass it is sent again with the same sequence
numbers, and the broker appends it once (KIP-98). After a lost connection it is not sent again: ``flush`` raises
ClientError, and the batch may have been appended or not. A batch above the topic's ``max.message.bytes`` is sent in
halves, as Kafka's producer does (KIP-126). One thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from tidelog.client.cluster import Address, Cluster, ask, ensure_partition, raise_for_code
from tidelog.client.records.partitioner import partition_for_key
from tidelog.protocol.errors import DuplicateSequenceNumberError, KafkaError, MessageTooLargeError
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch, increment_sequence

BATCH_BYTES = 256 * 1024
"""Size of all waiting records at which they are sent; a broker's default ``max.message.bytes`` is 1 MiB."""
RECORD_OVERHEAD = 24
MAX_RECORDS = BATCH_BYTES // RECORD_OVERHEAD + 1
"""Largest number of records that wait before they are sent."""
SHOWN_BYTES = 40
"""Number of bytes of a record that an error shows."""
_ACKS_ALL = -1
_PRODUCE = 12
"""The newest version of Produce with topic names; from 13 on it has topic ids."""


class OutgoingRecord(NamedTuple):
    """A record to send; with ``partition`` None the key decides. ``timestamp`` in ms."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp: int = 0


class AppendedRecords(NamedTuple):
    """The records that a broker has appended to a partition: first and last offset, and their number."""

    first_offset: int
    last_offset: int
    records: int


class Producer:
    """A producer for one topic. ``appended`` has the appended records of each partition."""

    def __init__(self, cluster: Cluster, topic: str, timeout_s: float, compression: int = 0) -> None:
        self._cluster = cluster
        self._topic = topic
        self._timeout_ms = int(timeout_s * 1000)
        self._compression = compression
        self._identity: tuple[int, int] | None = None
        self._waiting: dict[int, list[OutgoingRecord]] = defaultdict(list)
        self._max_records: dict[int, int] = defaultdict(lambda: MAX_RECORDS)
        """Largest number of records in a batch of each partition."""
        self._refused: KafkaError | None = None
        """Error of a record that is too large."""
        self._bytes = 0
        self._sequences: dict[int, int] = defaultdict(int)
        self._turn = 0
        self.appended: dict[int, AppendedRecords] = {}

    @property
    def is_empty(self) -> bool:
        """Return whether no record waits to be sent."""
        return not self._waiting

    @property
    def records(self) -> int:
        """Number of records that brokers have appended."""
        return sum(one.records for one in self.appended.values())

    def send(self, record: OutgoingRecord) -> None:
        """Add a record to the batch of its partition, and flush at BATCH_BYTES. Raises ClientError, KafkaError."""
        headers = sum(len(name) + len(value or b"") for name, value in record.headers)
        self._bytes += len(record.key or b"") + len(record.value or b"") + headers + RECORD_OVERHEAD
        self._waiting[self._partition_of(record)].append(record)
        if self._bytes >= BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send all waiting records, and wait until brokers have appended them.

        Raises ClientError, KafkaError. A record that is too large raises MessageTooLargeError, after all records before
        it and those of the other partitions are appended. The records after it in its partition are dropped.
        """
        if not self._waiting:
            return
        while self._waiting:
            batches = {number: self._batch(number, self._next_records(number)) for number in self._waiting}
            self._cluster.retry_until_settled(partial(self._deliver, batches))
        self._bytes = 0
        self._turn += 1
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise refused

    def _next_records(self, partition: int) -> list[OutgoingRecord]:
        """Return the records of a partition's next batch."""
        return self._waiting[partition][: self._max_records[partition]]

    def _partition_of(self, record: OutgoingRecord) -> int:
        """Choose the partition of a record. Records without key go to another partition after each flush."""
        if record.partition is not None:
            self._cluster.ensure_topic(self._topic)
            ensure_partition(self._cluster, self._topic, record.partition)
            return record.partition
        partitions = len(self._leaders())
        return self._turn % partitions if record.key is None else partition_for_key(record.key, partitions)

    def _leaders(self) -> list[Address]:
        return self._cluster.retry_until_settled(lambda: self._cluster.leaders(self._topic, create=True))

    def _batch(self, partition: int, records: list[OutgoingRecord]) -> bytearray:
        if self._identity is None:
            self._identity = self._cluster.retry_until_settled(self._ask_identity)
        producer_id, producer_epoch = self._identity
        options = BatchOptions(
            base_offset=0,
            compression=self._compression,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=self._sequences[partition],
        )
        numbered = [
            Record(offset, one.timestamp, one.key, one.value, one.headers) for offset, one in enumerate(records)
        ]
        return build_batch(numbered, options)

    def _ask_identity(self) -> tuple[int, int]:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=self._timeout_ms)
        answer = self._cluster.ask(request, InitProducerIdResponse, 4)
        raise_for_code(answer.error_code, "producer id")
        return answer.producer_id, answer.producer_epoch

    def _deliver(self, batches: dict[int, bytearray]) -> None:
        """Send the batches to their leaders; those that are appended or too large are removed from ``batches``. Raises
        ClientError, KafkaError."""
        by_leader: dict[Address, list[int]] = defaultdict(list)
        for number in batches:
            by_leader[self._cluster.leader(self._topic, number)].append(number)
        for address, numbers in by_leader.items():
            data = [PartitionProduceData(index=number, records=memoryview(batches[number])) for number in numbers]
            request = ProduceRequest(
                acks=_ACKS_ALL,
                timeout_ms=self._timeout_ms,
                topic_data=[TopicProduceData(name=self._topic, partition_data=data)],
            )
            answer = ask(self._cluster.client_for(address), request, ProduceResponse, _PRODUCE)
            for topic in answer.responses:
                self._note_appended({part.index: part for part in topic.partition_responses}, batches)

    def _note_appended(self, answered: Mapping[int, PartitionProduceResponse], batches: dict[int, bytearray]) -> None:
        """Note which batches are appended or too large, then raise the error of the first other one."""
        for number, part in answered.items():
            if part.error_code in (0, DuplicateSequenceNumberError.code):
                self._note_offsets(number, part.base_offset)
            elif part.error_code == MessageTooLargeError.code:
                self._shorten(number, _message_of(part))
            else:
                continue
            del batches[number]
        for number, part in answered.items():
            if number in batches:
                raise_for_code(part.error_code, f"produce to {self._topic}-{number}", _message_of(part))

    def _note_offsets(self, number: int, base_offset: int) -> None:
        """Note where the broker appended the next batch of a partition; its records no longer wait."""
        count = len(self._next_records(number))
        self._sequences[number] = increment_sequence(self._sequences[number], count)
        before = self.appended.get(number, AppendedRecords(base_offset, -1, 0))
        self.appended[number] = AppendedRecords(before.first_offset, base_offset + count - 1, before.records + count)
        del self._waiting[number][:count]
        if not self._waiting[number]:
            del self._waiting[number]

    def _shorten(self, number: int, message: str | None) -> None:
        """Make the next batch of a partition half as long, because it is too large. If it is a single record, give up
        that, and all that wait after it in the partition."""
        records = self._next_records(number)
        self._max_records[number] = (len(records) + 1) // 2
        if len(records) == 1:
            del self._waiting[number]
            begin = (records[0].value or b"")[:SHOWN_BYTES].decode("utf-8", "replace")
            self._refused = MessageTooLargeError(
                f"produce to {self._topic}-{number}: the record that begins with {begin!r}: "
                f"{message or MessageTooLargeError.default_message}"
            )


def _message_of(part: PartitionProduceResponse) -> str | None:
    """Return the broker's text for the error of a partition, if it has one."""
    return part.error_message or (part.record_errors[0].batch_index_error_message if part.record_errors else None)
