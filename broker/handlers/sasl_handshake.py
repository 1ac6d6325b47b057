"""SaslHandshake that begins no authentication: ILLEGAL_SASL_STATE. Versions 0 to 1.

It comes on a listener without SASL, or within a second after the last re-authentication began. All others are handled
by ``tidelog.broker.network.authentication``.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import IllegalSaslStateError, KafkaError
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

API_KEY = ApiKey.SASL_HANDSHAKE
MIN_VERSION, MAX_VERSION = 0, 1
Request = SaslHandshakeRequest


def handle(broker: Broker, context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Refuse: no authentication is under way. Raises IllegalSaslStateError."""
    raise IllegalSaslStateError


def error_response(request: SaslHandshakeRequest, error: KafkaError) -> SaslHandshakeResponse:
    """Build an answer that has only the error."""
    return SaslHandshakeResponse(error_code=error.code)
