"""InitProducerId: a producer's id and epoch; a transactional producer's come from its coordinator (KIP-98).

v2 flexible; v3+ a producer may send the id and epoch that it has (KIP-360); v4 PRODUCER_FENCED (KIP-588); v6 two-phase
commit (KIP-939), which is refused. Without a transactional id every request gets a new id with epoch 0, even if the
producer sends its old id and epoch.
"""

from __future__ import annotations

from typing import Any

from tidelog.broker.broker import Broker
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import Steps
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import InvalidRequestError, KafkaError
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

API_KEY = ApiKey.INIT_PRODUCER_ID
MIN_VERSION, MAX_VERSION = 0, 6
Request = InitProducerIdRequest

_FIRST_VERSION_WITH_FENCED = 4
_COORDINATORS = "tidelog.broker.coordinator.coordinators"


def handle(broker: Broker, context: RequestContext, request: InitProducerIdRequest) -> Any:
    """Answer with an id. Raises InvalidRequestError for an empty transactional id, and what the coordinator raises."""
    available = broker.producer_ids.when_available()
    if request.transactional_id is None:
        return available.map(lambda _: InitProducerIdResponse(producer_id=broker.producer_ids.take(), producer_epoch=0))
    if not request.transactional_id:
        raise InvalidRequestError
    if broker.imports.is_loaded(_COORDINATORS) and available.done:
        return _answer_of_coordinator(broker, context, request)
    return _answer_later(broker, context, request, available)


def _answer_later(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest, available: Deferred[None]
) -> Steps[Any]:
    yield from broker.imports.wait_until_loaded(_COORDINATORS)
    if not available.done:  # if it fails, ``take`` raises where an id is needed
        yield available
    return _answer_of_coordinator(broker, context, request)


def _answer_of_coordinator(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> Deferred[InitProducerIdResponse]:
    from tidelog.broker.coordinator.coordinators import coordinators_of  # idempotent producers need none
    from tidelog.broker.coordinator.errors import error_for_old_producer

    try:
        return coordinators_of(broker).transactions.init_producer_id(request)
    except KafkaError as error:
        raise error if context.api_version >= _FIRST_VERSION_WITH_FENCED else error_for_old_producer(error) from error


def error_response(request: InitProducerIdRequest, error: KafkaError) -> InitProducerIdResponse:
    """Answer with the error, and no id."""
    return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)
