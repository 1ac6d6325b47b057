"""SaslAuthenticate outside of an authentication: ILLEGAL_SASL_STATE. Versions 0 to 2.

While a connection authenticates, ``tidelog.broker.security.sasl.authenticator`` handles its requests.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import IllegalSaslStateError, KafkaError
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

API_KEY = ApiKey.SASL_AUTHENTICATE
MIN_VERSION, MAX_VERSION = 0, 2
Request = SaslAuthenticateRequest


def handle(broker: Broker, context: RequestContext, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    """Refuse: no authentication is under way. Raises IllegalSaslStateError."""
    raise IllegalSaslStateError


def error_response(request: SaslAuthenticateRequest, error: KafkaError) -> SaslAuthenticateResponse:
    """Build an answer that has only the error."""
    return SaslAuthenticateResponse(error_code=error.code)
