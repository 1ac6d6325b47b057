"""CreateDelegationToken: a token for the client itself or, if it has the right, for another owner (KIP-48, KIP-373).

Versions 0 to 3. These checks are made in this order, each with its error code: whether the connection may ask for
tokens (64), CREATE_TOKENS on the owner (65), the owner's and the renewers' type (67), whether there is a secret key
(61). The answer is sent when the token is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.broker import Broker
from tidelog.broker.loop.steps import Steps, wait_for
from tidelog.broker.loop.threads import run_in_thread
from tidelog.broker.requests.context import RequestContext
from tidelog.broker.security.changes import Notes, note_line
from tidelog.broker.security.principal import USER, Principal
from tidelog.broker.security.token_requests import check_may_ask
from tidelog.protocol.acl import AclOperation, ResourceType
from tidelog.protocol.api_keys import ApiKey
from tidelog.protocol.errors import (
    DelegationTokenAuthorizationFailedError,
    InvalidPrincipalTypeError,
    KafkaError,
)
from tidelog.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.security.authorization.authorizer import Authorizer

API_KEY = ApiKey.CREATE_DELEGATION_TOKEN
MIN_VERSION = 0
MAX_VERSION = 3
Request = CreateDelegationTokenRequest


def handle(
    broker: Broker, context: RequestContext, request: CreateDelegationTokenRequest
) -> Steps[CreateDelegationTokenResponse]:
    """Create a token, and answer when it is durable; a refusal is in the response. Raises KafkaStorageError."""
    from tidelog.broker.security import delegation_tokens  # not at the start: most brokers have no tokens

    requester = context.principal
    owner = owner_of(request, requester)
    response = CreateDelegationTokenResponse(
        principal_type=owner.type, principal_name=owner.name,
        token_requester_principal_type=requester.type, token_requester_principal_name=requester.name,
    )  # fmt: skip
    try:
        check(broker, context, request, owner)
        renewers = tuple(f"{one.principal_type}:{one.principal_name}" for one in request.renewers)
        tokens = broker.services.tokens.get()
        token = tokens.plan(delegation_tokens.Request(str(owner), str(requester), renewers, request.max_lifetime_ms))
    except KafkaError as error:
        refused = error_response(request, error)
        response.error_code, response.issue_timestamp_ms = refused.error_code, refused.issue_timestamp_ms
        response.expiry_timestamp_ms = response.max_timestamp_ms = -1
        return response
    secret = tokens.secret_of(token.token_id)
    credentials = yield from wait_for(
        run_in_thread(broker.loop, broker.executor, lambda: delegation_tokens.derive_credentials(secret))
    )
    tokens.create(token, credentials)
    synced = broker.controller.when_synced()
    with Notes(broker.late_lines) as notes:
        notes.add(synced, note_line("token created", context, token=token.token_id, owner=token.owner))
        yield from wait_for(synced)
        yield from notes.write()
    response.issue_timestamp_ms, response.expiry_timestamp_ms = token.issued_ms, token.expires_ms
    response.max_timestamp_ms, response.token_id, response.hmac = token.max_ms, token.token_id, secret
    return response


def owner_of(request: CreateDelegationTokenRequest, requester: Principal) -> Principal:
    """Return the token's owner: the requester, unless the request names another."""
    if not request.owner_principal_name:
        return requester
    return Principal(request.owner_principal_type or "", request.owner_principal_name)


def check(broker: Broker, context: RequestContext, request: CreateDelegationTokenRequest, owner: Principal) -> None:
    """Raise a KafkaError unless the client may have such a token."""
    check_may_ask(broker.config, context)
    if broker.authorizer is not None and owner != context.principal:
        require_right(broker.authorizer, context, owner)
    # Who has a token logs in as a user. A token for ``Group:admin`` would let a client in as User:admin, for whom
    # CREATE_TOKENS was not checked.
    if owner.type != USER or any(one.principal_type != USER for one in request.renewers):
        raise InvalidPrincipalTypeError


def require_right(authorizer: Authorizer, context: RequestContext, owner: Principal) -> None:
    """Raise DelegationTokenAuthorizationFailedError unless the client may have tokens for this owner."""
    if not authorizer.authorize(context, AclOperation.CREATE_TOKENS, ResourceType.USER, str(owner)):
        raise DelegationTokenAuthorizationFailedError


def error_response(request: CreateDelegationTokenRequest, error: KafkaError) -> CreateDelegationTokenResponse:
    """Build an answer that has only the error."""
    return CreateDelegationTokenResponse(
        error_code=error.code, issue_timestamp_ms=-1, expiry_timestamp_ms=-1, max_timestamp_ms=-1
    )
