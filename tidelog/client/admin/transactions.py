"""Requests that list, describe and abort transactions of a cluster."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from tidelog.client.admin.offsets import TopicPartition
from tidelog.client.cluster import TRANSACTION, Address, Cluster, ask, raise_for_code
from tidelog.client.connection import ClientError
from tidelog.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)
from tidelog.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tidelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_INIT_PRODUCER_ID = 4
_MARKERS = 1
"""The newest versions of InitProducerId and WriteTxnMarkers that are used."""
_TIMEOUT_MS = 1000
"""Transaction timeout of the producer that fences another one; it begins no transaction itself."""


class ListedTransaction(NamedTuple):
    """A transactional id and the state of its transaction."""

    transactional_id: str
    producer_id: int
    state: str


class Transaction(NamedTuple):
    """A transactional id as its coordinator describes it. ``start`` is the time in ms at which the current or last
    transaction began; -1 if none has begun since the last InitProducerId."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start: int
    partitions: list[TopicPartition]


def list_transactions(cluster: Cluster, states: tuple[str, ...] = ()) -> list[ListedTransaction]:
    """List the transactional ids of all brokers. Raises ClientError, KafkaError."""
    return sorted(
        found
        for address in cluster.brokers().values()
        for found in cluster.retry_until_settled(partial(_transactions_at, cluster, address, states))
    )


def _transactions_at(cluster: Cluster, address: Address, states: tuple[str, ...]) -> list[ListedTransaction]:
    request = ListTransactionsRequest(state_filters=list(states), producer_id_filters=[])
    highest = ListTransactionsRequest.VERSIONS.highest
    answer = ask(cluster.client_for(address), request, ListTransactionsResponse, highest)
    raise_for_code(answer.error_code, "transactions")
    if answer.unknown_state_filters:
        raise ClientError(f"unknown state {', '.join(answer.unknown_state_filters)}")
    return [
        ListedTransaction(one.transactional_id, one.producer_id, one.transaction_state)
        for one in answer.transaction_states
    ]


def describe_transaction(cluster: Cluster, transactional_id: str) -> Transaction:
    """Describe a transactional id by its coordinator. Raises ClientError, KafkaError."""

    def describe() -> Transaction:
        client = cluster.coordinator(transactional_id, TRANSACTION)
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        (answer,) = ask(client, request, DescribeTransactionsResponse, 0).transaction_states
        raise_for_code(answer.error_code, f"transactional id {transactional_id}")
        return Transaction(
            transactional_id,
            answer.transaction_state,
            answer.producer_id,
            answer.producer_epoch,
            answer.transaction_timeout_ms,
            answer.transaction_start_time_ms,
            sorted((topic.topic, number) for topic in answer.topics for number in topic.partitions),
        )

    return cluster.retry_until_settled(describe)


def abort_transaction(cluster: Cluster, transactional_id: str) -> Transaction:
    """Abort the open transaction of a transactional id, and fence its producer; return its description from before.

    Raises ClientError, KafkaError.
    """
    found = describe_transaction(cluster, transactional_id)

    def fence() -> None:
        client = cluster.coordinator(transactional_id, TRANSACTION)
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=_TIMEOUT_MS)
        answer = ask(client, request, InitProducerIdResponse, _INIT_PRODUCER_ID)
        raise_for_code(answer.error_code, f"transactional id {transactional_id}")

    cluster.retry_until_settled(fence)
    return found


def abort_in_partition(cluster: Cluster, topic_partition: TopicPartition, start_offset: int) -> ProducerState:
    """Write an abort marker for the transaction that begins at ``start_offset`` of a partition; return its producer.

    This is for a hanging transaction, which its coordinator no longer has. Raises ClientError, KafkaError.
    """
    producer = cluster.retry_until_settled(lambda: _producer_that_began_at(cluster, topic_partition, start_offset))
    cluster.retry_until_settled(lambda: _write_abort_marker(cluster, topic_partition, producer))
    return producer


def _producer_that_began_at(cluster: Cluster, topic_partition: TopicPartition, start_offset: int) -> ProducerState:
    topic, partition = topic_partition
    asked = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[partition])])
    client = cluster.client_for(cluster.leader(topic, partition))
    (answer,) = ask(client, asked, DescribeProducersResponse, 0).topics[0].partitions
    raise_for_code(answer.error_code, f"producers of {topic}-{partition}", answer.error_message)
    producer = next((one for one in answer.active_producers if one.current_txn_start_offset == start_offset), None)
    if producer is None:
        open_at = sorted(one.current_txn_start_offset for one in answer.active_producers)
        begun = ", ".join(str(offset) for offset in open_at if offset >= 0) or "none"
        raise ClientError(f"no transaction begins at offset {start_offset} of {topic}-{partition}; open: {begun}")
    return producer


def _write_abort_marker(cluster: Cluster, topic_partition: TopicPartition, producer: ProducerState) -> None:
    topic, partition = topic_partition
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        coordinator_epoch=max(producer.coordinator_epoch, 0),
    )
    client = cluster.client_for(cluster.leader(topic, partition))
    for result in ask(client, WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse, _MARKERS).markers:
        for written in result.topics:
            for one in written.partitions:
                raise_for_code(one.error_code, f"abort marker in {written.name}-{one.partition_index}")
