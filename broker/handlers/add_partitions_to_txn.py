"""AddPartitionsToTxn: partitions become part of a transaction before they are written to.

v0-3 one transaction, from a client; v4+ many transactions, from another broker, whose partitions are added or only
verified (KIP-890); v2 PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH; v3 flexible; v5 TRANSACTION_ABORTABLE. If one
partition of a transaction does not exist, none is added.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.errors import code_for_old_producer
from tidelog.broker.coordinator.transaction.state import PartitionKey
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps, wait_for_all
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import NONE, KafkaError, OperationNotAttemptedError, UnknownTopicOrPartitionError
from tidelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

API_KEY = ApiKey.ADD_PARTITIONS_TO_TXN
MIN_VERSION, MAX_VERSION = 0, 5
Request = AddPartitionsToTxnRequest

_FIRST_BATCHED_VERSION = 4
_FIRST_VERSION_WITH_FENCED = 2
_CLIENT_TRANSACTION_VERSION = 1
_BROKER_TRANSACTION_VERSION = 2
"""Transaction version in requests of other brokers: partition leaders add partitions only for producers of this version
(KIP-890)."""


def handle(
    broker: Broker, context: RequestContext, request: AddPartitionsToTxnRequest
) -> Steps[AddPartitionsToTxnResponse]:
    """Add or verify partitions; each has its own error."""
    waits: list[Deferred[None]] = []
    if context.api_version >= _FIRST_BATCHED_VERSION:
        results = []
        for transaction in request.transactions:
            codes = _handle_one(broker, transaction, waits, _BROKER_TRANSACTION_VERSION)
            yield None
            topic_results = _results(transaction.topics, codes)
            results.append(
                AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=topic_results)
            )
            yield None
        yield from wait_for_all(waits)
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    errors = _handle_one(broker, transaction, waits, _CLIENT_TRANSACTION_VERSION)
    yield None
    yield from wait_for_all(waits)
    if context.api_version < _FIRST_VERSION_WITH_FENCED:
        errors = {partition: code_for_old_producer(code) for partition, code in errors.items()}
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(transaction.topics, errors))


def error_response(request: AddPartitionsToTxnRequest, error: KafkaError) -> AddPartitionsToTxnResponse:
    """Answer with the error: for the whole answer from v4 on, for every partition before v4."""
    codes = dict.fromkeys(_partitions(request.v3_and_below_topics), error.code)
    return AddPartitionsToTxnResponse(
        error_code=error.code, results_by_topic_v3_and_below=_results(request.v3_and_below_topics, codes)
    )


def _handle_one(
    broker: Broker, transaction: AddPartitionsToTxnTransaction, waits: list[Deferred[None]], transaction_version: int
) -> dict[PartitionKey, int]:
    """Begin to add or verify the partitions of one transaction; return the error code of each partition.

    Adds to ``waits`` what the answer has to wait for.
    """
    partitions = _partitions(transaction.topics)
    missing = {partition for partition in partitions if not _exists(broker, partition)}
    if missing:
        refused, other = UnknownTopicOrPartitionError.code, OperationNotAttemptedError.code
        return {partition: refused if partition in missing else other for partition in partitions}
    transactions = coordinators_of(broker).transactions
    producer = (transaction.producer_id, transaction.producer_epoch)
    codes = dict.fromkeys(partitions, NONE)
    try:
        if not transaction.verify_only:
            waits.append(
                transactions.add_partitions(transaction.transactional_id, producer, partitions, transaction_version)
            )
            return codes
    except KafkaError as error:
        return dict.fromkeys(partitions, error.code)
    for partition in partitions:
        try:
            waits.append(transactions.verify_partition(transaction.transactional_id, producer, partition))
        except KafkaError as error:
            codes[partition] = error.code
    return codes


def _exists(broker: Broker, partition: PartitionKey) -> bool:
    image = broker.metadata.topics.get(partition[0])
    return image is not None and 0 <= partition[1] < image.partition_count


def _partitions(topics: list[AddPartitionsToTxnTopic]) -> list[PartitionKey]:
    return [(topic.name, partition) for topic in topics for partition in topic.partitions]


def _results(
    topics: list[AddPartitionsToTxnTopic], codes: dict[PartitionKey, int]
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=partition, partition_error_code=codes[topic.name, partition]
                )
                for partition in topic.partitions
            ],
        )
        for topic in topics
    ]
