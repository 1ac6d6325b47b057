"""RenewDelegationToken: tokens are not enabled: DELEGATION_TOKEN_AUTH_DISABLED. Versions 0 to 2."""

from __future__ import annotations

from broker.broker import Broker, RequestContext
from protocol.api_keys import ApiKey
from protocol.errors import DelegationTokenAuthDisabledError, KafkaError
from protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse

API_KEY = ApiKey.RENEW_DELEGATION_TOKEN
MIN_VERSION = 0
MAX_VERSION = 2
Request = RenewDelegationTokenRequest


def handle(
    broker: Broker, context: RequestContext, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    """Raises DelegationTokenAuthDisabledError."""
    raise DelegationTokenAuthDisabledError


def error_response(request: RenewDelegationTokenRequest, error: KafkaError) -> RenewDelegationTokenResponse:
    """The error for the whole answer."""
    return RenewDelegationTokenResponse(error_code=error.code)
