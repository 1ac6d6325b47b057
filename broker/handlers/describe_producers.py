"""DescribeProducers v0: active producers of partitions, with the start offsets of open transactions (KIP-664)."""

from __future__ import annotations

from itertools import islice

from tidelog.broker.broker import Broker
from tidelog.broker.loop.steps import ITEMS_PER_STEP, Steps
from tidelog.broker.replica.opening import opening_of
from tidelog.broker.requests.context import RequestContext
from tidelog.log.producer.state import ProducerEntry
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

API_KEY = ApiKey.DESCRIBE_PRODUCERS
MIN_VERSION, MAX_VERSION = 0, 0
Request = DescribeProducersRequest


def handle(
    broker: Broker, context: RequestContext, request: DescribeProducersRequest
) -> Steps[DescribeProducersResponse]:
    """Describe each partition once, however often it is named: it may have very many producers. Each has its own
    error."""
    topics: dict[str, TopicResponse] = {}
    described: set[tuple[str, int]] = set()
    for topic in request.topics:
        found = topics.setdefault(topic.name, TopicResponse(name=topic.name))
        for index in topic.partition_indexes:
            if (topic.name, index) not in described:
                described.add((topic.name, index))
                yield opening_of(broker, topic.name, index)
                found.partitions.append((yield from _describe(broker, topic.name, index)))
            yield None
        yield None
    return DescribeProducersResponse(topics=list(topics.values()))


def error_response(request: DescribeProducersRequest, error: KafkaError) -> DescribeProducersResponse:
    """Build a response with one error for every partition."""
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name, partitions=[_build_error_response(index, error) for index in topic.partition_indexes]
            )
            for topic in request.topics
        ]
    )


def _describe(broker: Broker, topic: str, partition: int) -> Steps[PartitionResponse]:
    try:
        parts = broker.replica_manager.partition(topic, partition).active_producers(ITEMS_PER_STEP)
    except KafkaError as error:
        return _build_error_response(partition, error)
    producers: dict[int, ProducerState] = {}
    for entries in parts:
        producers.update((entry.producer_id, _producer(entry)) for entry in entries)
        yield None
    response = PartitionResponse(partition_index=partition)
    found = iter(producers.values())
    while part := list(islice(found, ITEMS_PER_STEP)):
        response.active_producers += part
        yield None
    return response


def _producer(entry: ProducerEntry) -> ProducerState:
    return ProducerState(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.current_txn_first_offset,
    )


def _build_error_response(partition: int, error: KafkaError) -> PartitionResponse:
    return PartitionResponse(partition_index=partition, error_code=error.code, error_message=error.message)
