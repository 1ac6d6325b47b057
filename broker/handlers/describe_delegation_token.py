"""DescribeDelegationToken: the tokens of some principals, or of all, that the client may see (KIP-48, KIP-373).

Versions 0 to 3. The request calls the principals owners; tokens that they requested or may renew are found, too. A
token's owner, requester and renewers may see it; others need DESCRIBE on it, or DESCRIBE_TOKENS on its owner. Without
an authorizer every client may see every token.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.loop.steps import Steps
from tidelog.broker.metadata.metadata_image import TokenState
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.token_requests import check_may_ask
from tidelog.protocol.acl import AclOperation, ResourceType
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)

API_KEY = ApiKey.DESCRIBE_DELEGATION_TOKEN
MIN_VERSION = 0
MAX_VERSION = 3
Request = DescribeDelegationTokenRequest


def handle(
    broker: Broker, context: RequestContext, request: DescribeDelegationTokenRequest
) -> Steps[DescribeDelegationTokenResponse]:
    """Describe tokens; null owners mean all. Raises DelegationTokenRequestNotAllowedError,
    DelegationTokenAuthDisabledError."""
    check_may_ask(broker.config, context)
    tokens = broker.services.tokens.get()
    asked = None if request.owners is None else {f"{one.principal_type}:{one.principal_name}" for one in request.owners}
    described = []
    for token in list(tokens.all_tokens()):
        if (asked is None or asked & parties(token)) and may_see(broker, context, token):
            described.append(describe(token, tokens.secret_of(token.token_id)))
        yield None
    return DescribeDelegationTokenResponse(tokens=described)


def parties(token: TokenState) -> set[str]:
    """Return the principals that a token belongs to: its owner, its requester and its renewers."""
    return {token.owner, token.requester, *token.renewers}


def may_see(broker: Broker, context: RequestContext, token: TokenState) -> bool:
    """Return whether a client may see a token."""
    authorizer = broker.authorizer
    if authorizer is None or str(context.principal) in parties(token):
        return True
    return authorizer.authorize(
        context, AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id
    ) or authorizer.authorize(context, AclOperation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)


def describe(token: TokenState, secret: bytes) -> DescribedDelegationToken:
    """Describe one token."""
    owner_type, _, owner = token.owner.partition(":")
    requester_type, _, requester = token.requester.partition(":")
    renewers = [one.partition(":") for one in token.renewers]
    return DescribedDelegationToken(
        principal_type=owner_type,
        principal_name=owner,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=secret,
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name) for kind, _, name in renewers
        ],
    )


def error_response(request: DescribeDelegationTokenRequest, error: KafkaError) -> DescribeDelegationTokenResponse:
    """Build an answer that has only the error."""
    return DescribeDelegationTokenResponse(error_code=error.code)
