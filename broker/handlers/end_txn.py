"""EndTxn: commit or abort the transaction of a producer.

v2 PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH; v3 flexible; v4 TRANSACTION_ABORTABLE; v5 is transaction version 2
(KIP-890). In this version each transaction raises the producer epoch, which the answer has, and a transaction that
never began may be aborted.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.coordinator.coordinators import coordinators_of
from tidelog.broker.coordinator.errors import error_for_old_producer
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse

API_KEY = ApiKey.END_TXN
MIN_VERSION, MAX_VERSION = 0, 5
Request = EndTxnRequest

_FIRST_VERSION_WITH_FENCED = 2
_FIRST_VERSION_THAT_RAISES = 5


def handle(broker: Broker, context: RequestContext, request: EndTxnRequest) -> Deferred[EndTxnResponse]:
    """Commit or abort; the answer is sent when the decision is committed. Raises what ``TransactionCoordinator.end``
    raises, InvalidProducerEpochError in place of ProducerFencedError before v2."""
    transaction_version = 2 if context.api_version >= _FIRST_VERSION_THAT_RAISES else 0
    try:
        decided = coordinators_of(broker).transactions.end(request, transaction_version)
    except KafkaError as error:
        raise error if context.api_version >= _FIRST_VERSION_WITH_FENCED else error_for_old_producer(error) from error
    return decided.map(lambda producer: EndTxnResponse(producer_id=producer[0], producer_epoch=producer[1]))


def error_response(request: EndTxnRequest, error: KafkaError) -> EndTxnResponse:
    """Answer with the error, and without a producer id."""
    return EndTxnResponse(error_code=error.code)
