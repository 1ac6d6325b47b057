"""InitProducerId: an id and epoch for an idempotent producer; a transactional one's coordinator answers (KIP-98).

v2 flexible, v3+ a producer may name the id and epoch it has (KIP-360), v6 two-phase commit (KIP-939). Without a
transactional id every call gives a new id with epoch 0, whatever the producer had.
"""

from __future__ import annotations

from broker.broker import Broker, RequestContext
from broker.deferred import Deferred
from protocol.api_keys import ApiKey
from protocol.errors import CoordinatorNotAvailableError, InvalidRequestError, KafkaError
from protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

API_KEY = ApiKey.INIT_PRODUCER_ID
MIN_VERSION, MAX_VERSION = 0, 6
Request = InitProducerIdRequest


def handle(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | Deferred[InitProducerIdResponse]:
    """Give an id. Raises InvalidRequestError for an empty transactional id."""
    if request.transactional_id is None:
        return InitProducerIdResponse(producer_id=broker.producer_ids.next_id(), producer_epoch=0)
    if not request.transactional_id:
        raise InvalidRequestError
    raise CoordinatorNotAvailableError


def error_response(request: InitProducerIdRequest, error: KafkaError) -> InitProducerIdResponse:
    """The error, and no id."""
    return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)
