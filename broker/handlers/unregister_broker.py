"""UnregisterBroker on a lone node: its only broker cannot be unregistered (KIP-500). Version 0."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import BrokerIdNotRegisteredError, InvalidRequestError, KafkaError
from tidelog.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

API_KEY = ApiKey.UNREGISTER_BROKER
MIN_VERSION = 0
MAX_VERSION = 0
Request = UnregisterBrokerRequest


def handle(broker: Broker, context: RequestContext, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
    """Refuse to unregister a broker: this is the only one. Raises BrokerIdNotRegisteredError, InvalidRequestError."""
    if request.broker_id != broker.node_id:
        raise BrokerIdNotRegisteredError(f"Broker ID {request.broker_id} is not currently registered")
    raise InvalidRequestError(f"Broker {request.broker_id} is the only one of this cluster")


def error_response(request: UnregisterBrokerRequest, error: KafkaError) -> UnregisterBrokerResponse:
    """Build an answer that has only the error."""
    return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)
