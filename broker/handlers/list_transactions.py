"""ListTransactions: transactional ids of this node (KIP-664). v1 filters by duration; v2 by a pattern of the id.

Names of states that do not exist are given back, not refused. The duration counts for open transactions only.
"""

from __future__ import annotations

from broker.broker import Broker, RequestContext
from broker.coordinator.coordinators import coordinators_of
from broker.coordinator.topic_patterns import Pattern, compile_pattern
from broker.coordinator.transaction_state import Transaction
from broker.coordinator.transaction_state import TransactionState as State
from protocol.api_keys import ApiKey
from protocol.errors import KafkaError
from protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse, TransactionState

API_KEY = ApiKey.LIST_TRANSACTIONS
MIN_VERSION, MAX_VERSION = 0, 2
Request = ListTransactionsRequest

_LABELS = {state.label for state in State}


def handle(broker: Broker, context: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
    """List what passes all filters. Raises CoordinatorLoadInProgressError, InvalidRegularExpressionError."""
    unknown = [name for name in request.state_filters if name not in _LABELS]
    response = ListTransactionsResponse(unknown_state_filters=unknown)
    wanted_states = set(request.state_filters) - set(unknown)
    if request.state_filters and not wanted_states:
        return response
    pattern = _pattern(request.transactional_id_pattern)
    now_ms = broker.time.milliseconds()
    response.transaction_states = [
        TransactionState(
            transactional_id=found.transactional_id,
            producer_id=found.producer_id,
            transaction_state=found.state.label,
        )
        for found in coordinators_of(broker).transactions.all_transactions()
        if (not wanted_states or found.state.label in wanted_states)
        and (not request.producer_id_filters or found.producer_id in request.producer_id_filters)
        and _is_long_enough(found, request.duration_filter, now_ms)
        and (pattern is None or pattern.fullmatch(found.transactional_id))
    ]
    return response


def error_response(request: ListTransactionsRequest, error: KafkaError) -> ListTransactionsResponse:
    """The error."""
    return ListTransactionsResponse(error_code=error.code)


def _is_long_enough(transaction: Transaction, duration_ms: int, now_ms: int) -> bool:
    if duration_ms < 0:
        return True
    return now_ms - transaction.start_ms > duration_ms  # at rest it began at -1: listed, as Apache Kafka does


def _pattern(text: str | None) -> Pattern | None:
    if not text:
        return None
    return compile_pattern(text)
