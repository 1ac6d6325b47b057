"""RenewDelegationToken: no listener authenticates, so tokens are not asked for on any:
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED. Versions 0 to 2."""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.requests.context import RequestContext
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import DelegationTokenRequestNotAllowedError, KafkaError
from tidelog.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse

API_KEY = ApiKey.RENEW_DELEGATION_TOKEN
MIN_VERSION = 0
MAX_VERSION = 2
Request = RenewDelegationTokenRequest


def handle(
    broker: Broker, context: RequestContext, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    """Raises DelegationTokenRequestNotAllowedError."""
    raise DelegationTokenRequestNotAllowedError


def error_response(request: RenewDelegationTokenRequest, error: KafkaError) -> RenewDelegationTokenResponse:
    """The error for the whole answer."""
    return RenewDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=-1)
