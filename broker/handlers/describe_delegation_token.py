"""DescribeDelegationToken: no listener authenticates, so tokens are not asked for on any:
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED. Versions 0 to 3."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import DelegationTokenRequestNotAllowedError, KafkaError
from tidelog.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)

API_KEY = ApiKey.DESCRIBE_DELEGATION_TOKEN
MIN_VERSION = 0
MAX_VERSION = 3
Request = DescribeDelegationTokenRequest


def handle(
    broker: Broker, context: RequestContext, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """Raises DelegationTokenRequestNotAllowedError."""
    raise DelegationTokenRequestNotAllowedError


def error_response(request: DescribeDelegationTokenRequest, error: KafkaError) -> DescribeDelegationTokenResponse:
    """The error for the whole answer."""
    return DescribeDelegationTokenResponse(error_code=error.code)
