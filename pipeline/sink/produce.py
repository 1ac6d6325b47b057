"""The sender of staged batches within an open transaction: in order, several Produce requests under way per broker.

    staged files -> per partition a queue of batches with sequence numbers -> requests, one batch of a partition in each
                 -> producer id, epoch, sequence, transactional bit and CRC put in -> the partition's leader

A request holds one batch of a partition at most (so asks the protocol), and a broker appends what comes over one
connection in its order. So MAX_IN_FLIGHT requests are under way: while the broker checks and appends one, the next is
read, sealed and sent, and sequence numbers stay in order, as from Kafka's own producer. After any failure the
outstanding answers are read first, because the end of the transaction may go over the same connection.

Staged batches are checked by CRC before they are changed, then the CRC is computed again over each batch; its cost does
not depend on the number of records.
"""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidelog.client import ClientError
from tidelog.client.cluster import Address, Cluster, Trouble, raise_for_code, version_for
from tidelog.pipeline.sink.staging import BatchAddress, StagedFile, StagingError, in_order
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.record.record_batch import (
    ATTRIBUTES_OFFSET,
    TRANSACTIONAL_MASK,
    RecordBatch,
    increment_sequence,
    set_crc,
)

#: What one Produce request holds at most, over all partitions; brokers refuse 100 MiB (socket.request.max.bytes).
REQUEST_BYTES = 8 * 1024 * 1024
#: The most that Kafka allows an idempotent producer.
MAX_IN_FLIGHT = 5
_PRODUCE = 11
_ACKS_ALL = -1
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_OFFSET = 43

TopicPartition = tuple[str, int]


class Staged(NamedTuple):
    """One batch on its way: where it lies and the sequence number its first record gets."""

    file: StagedFile
    batch: BatchAddress
    base_sequence: int


Queues = dict[TopicPartition, deque[Staged]]


class Producer(NamedTuple):
    """The producing transaction: its id, producer id and epoch, and how long a broker may take, in ms."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int


def sequenced(files: Sequence[StagedFile]) -> Queues:
    """Number each partition's batches in order: the sequences of a new epoch begin at 0."""
    queues: Queues = defaultdict(deque)
    next_sequence: dict[TopicPartition, int] = defaultdict(int)
    for file in in_order(files):
        for batch in file.batches:
            target = (batch.topic, batch.partition)
            queues[target].append(Staged(file, batch, next_sequence[target]))
            next_sequence[target] = increment_sequence(next_sequence[target], batch.records)
    return queues


def produce(cluster: Cluster, producer: Producer, queues: Queues) -> None:
    """Send all of the queues, which are emptied. Raises ClientError, KafkaError, StagingError."""
    under_way = _UnderWay(cluster)
    try:
        for batches in _requests(queues):
            for address, mine in _by_leader(cluster, batches).items():
                under_way.post(address, _request(producer, mine))
    finally:
        under_way.settle()
    under_way.raise_failure()


class _UnderWay:
    """Requests whose answers are due, oldest first for each broker; remembers the first failure."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._due: dict[Address, int] = defaultdict(int)
        self._failure: Exception | None = None

    def post(self, address: Address, request: ProduceRequest) -> None:
        """Send, once fewer than MAX_IN_FLIGHT are due there. Raises the failure of an earlier request."""
        if self._due[address] == MAX_IN_FLIGHT:
            self._take(address)
        self.raise_failure()
        client = self._cluster.client_for(address)
        client.post(request, version_for(client, ProduceRequest, _PRODUCE))
        self._due[address] += 1

    def settle(self) -> None:
        """Take every answer that is due; a broker that sends none is given up."""
        for address in self._due:
            while self._due[address]:
                self._take(address)

    def raise_failure(self) -> None:
        """Raise ClientError or KafkaError when a request failed."""
        if self._failure is not None:
            raise self._failure

    def _take(self, address: Address) -> None:
        try:
            answer = self._cluster.client_for(address).answer(ProduceResponse)
            self._due[address] -= 1
            for topic in answer.responses:
                for part in topic.partition_responses:
                    raise_for_code(part.error_code, f"Produce to {topic.name}-{part.index}", part.error_message)
        except Trouble as error:
            if isinstance(error, ClientError):
                self._due[address] = 0
            self._failure = self._failure or error


def _by_leader(cluster: Cluster, batches: Sequence[Staged]) -> dict[Address, list[Staged]]:
    found: dict[Address, list[Staged]] = defaultdict(list)
    for staged in batches:
        found[cluster.leader(staged.batch.topic, staged.batch.partition)].append(staged)
    return found


def _request(producer: Producer, batches: Sequence[Staged]) -> ProduceRequest:
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


def _seal(staged: Staged, producer: Producer) -> bytearray:
    """Read a staged batch and put the producer's id, epoch and sequence into it."""
    data = staged.file.read(staged.batch)
    if not RecordBatch(data).is_valid():
        raise StagingError(f"staged file {staged.file.path}: batch at {staged.batch.position} is damaged")
    data[ATTRIBUTES_OFFSET + 1] |= TRANSACTIONAL_MASK
    _PRODUCER.pack_into(data, _PRODUCER_OFFSET, producer.producer_id, producer.producer_epoch, staged.base_sequence)
    set_crc(data, 0, len(data))
    return data


def _requests(queues: Queues) -> Iterator[list[Staged]]:
    """Yield groups of batches for one request each: at most one of each partition, REQUEST_BYTES in all (one at
    least).
    """
    while queues:
        request: list[Staged] = []
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
