"""ExpireDelegationToken: set a token's expiry time, or delete it with a negative period (KIP-48). Versions 0 to 2.

The token's owner and its renewers may do so. The answer is sent when the change is durable.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.loop.steps import Steps
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.token_requests import change_expiry
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
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
) -> Steps[ExpireDelegationTokenResponse]:
    """Change a token's expiry time, or delete it. Raises a KafkaError if that is refused."""
    expires_ms = yield from change_expiry(
        broker,
        context,
        "token expired",
        lambda tokens, requester: tokens.expire(requester, bytes(request.hmac), request.expiry_time_period_ms),
    )
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=expires_ms)


def error_response(request: ExpireDelegationTokenRequest, error: KafkaError) -> ExpireDelegationTokenResponse:
    """Build an answer that has only the error."""
    return ExpireDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=-1)
