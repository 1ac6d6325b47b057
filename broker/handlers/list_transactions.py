"""ListTransactions: transactional ids of this node (KIP-664). v1 filters by duration; v2 by a pattern of the id.

Names of states that do not exist are returned in the answer, not refused.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.group.topic_patterns import Pattern, compile_pattern
from tidelog.broker.coordinator.transaction.state import Transaction
from tidelog.broker.coordinator.transaction.state import TransactionState as State
from tidelog.broker.loop.steps import Steps, wait_for
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

API_KEY = ApiKey.LIST_TRANSACTIONS
MIN_VERSION, MAX_VERSION = 0, 2
Request = ListTransactionsRequest

_LABELS = {state.label for state in State}


def handle(
    broker: Broker, context: RequestContext, request: ListTransactionsRequest
) -> Steps[ListTransactionsResponse]:
    """List the transactions that pass all filters. Raises CoordinatorLoadInProgressError,
    NotCoordinatorError, InvalidRegularExpressionError."""
    unknown = [name for name in request.state_filters if name not in _LABELS]
    response = ListTransactionsResponse(unknown_state_filters=unknown)
    states = set(request.state_filters) - set(unknown)
    if request.state_filters and not states:
        return response
    producer_ids = frozenset(request.producer_id_filters)
    pattern = _pattern(request.transactional_id_pattern)
    now_ms = broker.time.milliseconds()
    for found in list(coordinators_of(broker).transactions.all_transactions()):
        yield None
        if (
            (not states or found.state.label in states)
            and (not producer_ids or found.producer_id in producer_ids)
            and _is_long_enough(found, request.duration_filter, now_ms)
            and (pattern is None or pattern.fullmatch(found.transactional_id))
        ):
            response.transaction_states.append(build_listing(found))
    return (yield from wait_for(coordinators_of(broker).transactions.runtime.when_all_committed(response)))


def build_listing(found: Transaction) -> TransactionState:
    """Convert one transaction to the response's form."""
    return TransactionState(
        transactional_id=found.transactional_id,
        producer_id=found.producer_id,
        transaction_state=found.state.label,
    )


def error_response(request: ListTransactionsRequest, error: KafkaError) -> ListTransactionsResponse:
    """Answer with the error."""
    return ListTransactionsResponse(error_code=error.code)


def _is_long_enough(transaction: Transaction, duration_ms: int, now_ms: int) -> bool:
    if duration_ms < 0:
        return True
    # As in Kafka, an Empty id has the start time -1, and is listed; a Complete one has its last transaction's start.
    return now_ms - transaction.start_ms > duration_ms


def _pattern(text: str | None) -> Pattern | None:
    if not text:
        return None
    return compile_pattern(text)
