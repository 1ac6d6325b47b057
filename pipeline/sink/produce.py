"""The sender of staged batches within an open transaction: in order, with several Produce requests in flight per
broker.

    staged files -> per partition a queue of batches with sequence numbers -> requests, at most one batch per partition
                 -> producer id, epoch, sequence, transactional bit and CRC are set -> the partition's leader

A request has at most one batch per partition, as the protocol demands, and a broker appends the batches of one
connection in order. MAX_IN_FLIGHT requests are in flight: while the broker checks and appends one, the next is read,
completed and sent. Sequence numbers stay in order, as from Kafka's own producer. After a failure the outstanding
responses are read first, because the end of the transaction may go over the same connection.

The CRC of a staged batch is checked before the batch is changed, and then computed again. The cost depends on its
bytes alone, not on the number of records.
"""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidelog.client import Client
from tidelog.client.cluster import Address, Cluster, Trouble, raise_for_code, version_for
from tidelog.pipeline.sink.staging import BatchAddress, StagedFile, StagingError, sort_by_task
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.record.record_batch import (
    ATTRIBUTES_OFFSET,
    TRANSACTIONAL_MASK,
    RecordBatch,
    increment_sequence,
    set_crc,
)

#: Limit of one Produce request's batches, over all partitions; brokers refuse requests of over 100 MiB
#: (socket.request.max.bytes).
REQUEST_BYTES = 8 * 1024 * 1024
#: Requests in flight per broker: the most that Kafka allows an idempotent producer.
MAX_IN_FLIGHT = 5
_PRODUCE = 11
_ACKS_ALL = -1
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_OFFSET = 43

TopicPartition = tuple[str, int]


class StagedBatch(NamedTuple):
    """One batch to send: its file, its address in the file, and the sequence number of its first record."""

    file: StagedFile
    batch: BatchAddress
    base_sequence: int


Queues = dict[TopicPartition, deque[StagedBatch]]


class Producer(NamedTuple):
    """The producer of a transaction: transactional id, producer id and epoch, and the timeout of a request in ms."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int


def queue_batches(files: Sequence[StagedFile]) -> Queues:
    """Queue each partition's batches in order, with sequence numbers: those of a new epoch begin at 0."""
    queues: Queues = defaultdict(deque)
    next_sequence: dict[TopicPartition, int] = defaultdict(int)
    for file in sort_by_task(files):
        for batch in file.batches:
            target = (batch.topic, batch.partition)
            queues[target].append(StagedBatch(file, batch, next_sequence[target]))
            next_sequence[target] = increment_sequence(next_sequence[target], batch.records)
    return queues


def produce(cluster: Cluster, producer: Producer, queues: Queues) -> None:
    """Send all batches of the queues, which are empty afterwards. Raises ClientError, KafkaError, StagingError."""
    under_way = _UnderWay(cluster)
    try:
        for batches in _requests(queues):
            for address, mine in _group_by_leader(cluster, batches).items():
                under_way.post(address, _request(producer, mine))
    finally:
        under_way.read_responses()
    under_way.raise_failure()


class _UnderWay:
    """The requests in flight, by broker, and the first failure among them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clients: dict[Address, Client] = {}
        self._due: dict[Address, int] = defaultdict(int)  # responses to be read from each broker
        self._failure: Exception | None = None

    def post(self, address: Address, request: ProduceRequest) -> None:
        """Send a request, once fewer than MAX_IN_FLIGHT are in flight to that broker. Raises ClientError,
        KafkaError, also those of an earlier request."""
        if self._due[address] == MAX_IN_FLIGHT:
            self._take(address)
        self.raise_failure()
        client = self._clients[address] = self._cluster.client_for(address)
        client.post(request, version_for(client, ProduceRequest, _PRODUCE))
        self._due[address] += 1

    def read_responses(self) -> None:
        """Read the responses of all requests in flight; after a lost connection or timeout, no more from that
        broker."""
        for address, client in self._clients.items():
            while self._due[address] and not client.is_broken:
                self._take(address)

    def raise_failure(self) -> None:
        """Raise the first failure of a request, a ClientError or KafkaError, if there is one."""
        if self._failure is not None:
            raise self._failure

    def _take(self, address: Address) -> None:
        self._due[address] -= 1
        try:
            answer = self._clients[address].answer(ProduceResponse)
            for topic in answer.responses:
                for part in topic.partition_responses:
                    raise_for_code(part.error_code, f"Produce to {topic.name}-{part.index}", part.error_message)
        except Trouble as error:
            self._failure = self._failure or error


def _group_by_leader(cluster: Cluster, batches: Sequence[StagedBatch]) -> dict[Address, list[StagedBatch]]:
    found: dict[Address, list[StagedBatch]] = defaultdict(list)
    for staged in batches:
        found[cluster.leader(staged.batch.topic, staged.batch.partition)].append(staged)
    return found


def _request(producer: Producer, batches: Sequence[StagedBatch]) -> ProduceRequest:
    topics: dict[str, TopicProduceData] = {}
    for staged in batches:
        name = staged.batch.topic
        topic = topics.setdefault(name, TopicProduceData(name=name, partition_data=[]))
        data = memoryview(_seal(staged, producer))
        topic.partition_data.append(PartitionProduceData(index=staged.batch.partition, records=data))
    return ProduceRequest(
        transactional_id=producer.transactional_id,
        acks=_ACKS_ALL,
        timeout_ms=producer.timeout_ms,
        topic_data=list(topics.values()),
    )


def _seal(staged: StagedBatch, producer: Producer) -> bytearray:
    """Read a staged batch and write the producer's id, epoch and sequence into it."""
    data = staged.file.read(staged.batch)
    if not RecordBatch(data).is_valid():
        raise StagingError(f"staged file {staged.file.path}: batch at {staged.batch.position} is damaged")
    data[ATTRIBUTES_OFFSET + 1] |= TRANSACTIONAL_MASK
    _PRODUCER.pack_into(data, _PRODUCER_OFFSET, producer.producer_id, producer.producer_epoch, staged.base_sequence)
    set_crc(data, 0, len(data))
    return data


def _requests(queues: Queues) -> Iterator[list[StagedBatch]]:
    """Yield the batches of each request: at most one per partition, and REQUEST_BYTES in all unless a single batch is
    larger.
    """
    while queues:
        request: list[StagedBatch] = []
        size = 0
        for target in list(queues):
            queue = queues[target]
            if request and size + queue[0].batch.size > REQUEST_BYTES:
                yield request
                request, size = [], 0
            request.append(queue.popleft())
            size += request[-1].batch.size
            if not queue:
                del queues[target]
        yield request
