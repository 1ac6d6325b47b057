"""CreateDelegationToken: tokens are not enabled: DELEGATION_TOKEN_AUTH_DISABLED. Versions 0 to 3."""

from __future__ import annotations

from broker.broker import Broker, RequestContext
from protocol.api_keys import ApiKey
from protocol.errors import DelegationTokenAuthDisabledError, KafkaError
from protocol.messages.create_delegation_token import CreateDelegationTokenRequest, CreateDelegationTokenResponse

API_KEY = ApiKey.CREATE_DELEGATION_TOKEN
MIN_VERSION = 0
MAX_VERSION = 3
Request = CreateDelegationTokenRequest


def handle(
    broker: Broker, context: RequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    """Raises DelegationTokenAuthDisabledError."""
    raise DelegationTokenAuthDisabledError


def error_response(request: CreateDelegationTokenRequest, error: KafkaError) -> CreateDelegationTokenResponse:
    """The error for the whole answer."""
    return CreateDelegationTokenResponse(error_code=error.code)
