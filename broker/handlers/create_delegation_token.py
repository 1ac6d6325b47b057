"""CreateDelegationToken: no listener authenticates, so tokens are not asked for on any:
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED. Versions 0 to 3."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import DelegationTokenRequestNotAllowedError, KafkaError
from tidelog.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)

API_KEY = ApiKey.CREATE_DELEGATION_TOKEN
MIN_VERSION = 0
MAX_VERSION = 3
Request = CreateDelegationTokenRequest


def handle(
    broker: Broker, context: RequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    """Say no, to whom: the owner a token was asked for, and who asks."""
    kind, name = context.principal
    response = error_response(request, DelegationTokenRequestNotAllowedError())
    response.principal_type = request.owner_principal_type or kind
    response.principal_name = request.owner_principal_name or name
    response.token_requester_principal_type, response.token_requester_principal_name = kind, name
    return response


def error_response(request: CreateDelegationTokenRequest, error: KafkaError) -> CreateDelegationTokenResponse:
    """The error for the whole answer."""
    return CreateDelegationTokenResponse(
        error_code=error.code, issue_timestamp_ms=-1, expiry_timestamp_ms=-1, max_timestamp_ms=-1
    )
