"""DescribeTransactions v0: state, producer and partitions of transactional ids (KIP-664)."""

from __future__ import annotations

from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.transaction.state import group_by_topic
from tidelog.broker.loop.steps import Steps, apply_each
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError, TransactionalIdNotFoundError
from tidelog.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

API_KEY = ApiKey.DESCRIBE_TRANSACTIONS
MIN_VERSION, MAX_VERSION = 0, 0
Request = DescribeTransactionsRequest


def handle(
    broker: Broker, context: RequestContext, request: DescribeTransactionsRequest
) -> Steps[DescribeTransactionsResponse]:
    """Describe each id once, however often it is named; each has its own error. The answer waits until all that it
    tells is committed, so that no failover takes it back. Raises NotCoordinatorError.
    """
    states = yield from apply_each(dict.fromkeys(request.transactional_ids), partial(_describe, broker))
    yield from coordinators_of(broker).transactions.runtime.wait_until_committed(request.transactional_ids)
    return DescribeTransactionsResponse(transaction_states=states)


def error_response(request: DescribeTransactionsRequest, error: KafkaError) -> DescribeTransactionsResponse:
    """Build a response with one error for every id."""
    return DescribeTransactionsResponse(
        transaction_states=[
            TransactionState(transactional_id=transactional_id, error_code=error.code)
            for transactional_id in request.transactional_ids
        ]
    )


def _describe(broker: Broker, transactional_id: str) -> TransactionState:
    """Describe the transaction of an id as it is in memory, or the error of this id alone."""
    try:
        transaction = coordinators_of(broker).transactions.find(transactional_id)
        if transaction is None:
            raise TransactionalIdNotFoundError
    except KafkaError as error:
        return TransactionState(transactional_id=transactional_id, error_code=error.code)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=transaction.state.label,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[
            TopicData(topic=topic.topic, partitions=topic.partition_ids)
            for topic in group_by_topic(transaction.partitions)
        ],
    )
