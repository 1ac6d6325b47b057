"""ExpireDelegationToken: no listener authenticates, so tokens are not asked for on any:
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED. Versions 0 to 2."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import DelegationTokenRequestNotAllowedError, KafkaError
from tidelog.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)

API_KEY = ApiKey.EXPIRE_DELEGATION_TOKEN
MIN_VERSION = 0
MAX_VERSION = 2
Request = ExpireDelegationTokenRequest


def handle(
    broker: Broker, context: RequestContext, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    """Raises DelegationTokenRequestNotAllowedError."""
    raise DelegationTokenRequestNotAllowedError


def error_response(request: ExpireDelegationTokenRequest, error: KafkaError) -> ExpireDelegationTokenResponse:
    """The error for the whole answer."""
    return ExpireDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=-1)
