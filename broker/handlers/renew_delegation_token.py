"""RenewDelegationToken: let a token expire after another period, counted from now (KIP-48). Versions 0 to 2.

The token's owner and its renewers may do so. The answer is sent when the new time is durable.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.loop.steps import Steps
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.token_requests import change_expiry
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

API_KEY = ApiKey.RENEW_DELEGATION_TOKEN
MIN_VERSION = 0
MAX_VERSION = 2
Request = RenewDelegationTokenRequest


def handle(
    broker: Broker, context: RequestContext, request: RenewDelegationTokenRequest
) -> Steps[RenewDelegationTokenResponse]:
    """Renew a token. Raises a KafkaError if that is refused or cannot be stored."""
    expires_ms = yield from change_expiry(
        broker,
        context,
        "token renewed",
        lambda tokens, requester: tokens.renew(requester, bytes(request.hmac), request.renew_period_ms),
    )
    return RenewDelegationTokenResponse(expiry_timestamp_ms=expires_ms)


def error_response(request: RenewDelegationTokenRequest, error: KafkaError) -> RenewDelegationTokenResponse:
    """Build an answer that has only the error."""
    return RenewDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=-1)
