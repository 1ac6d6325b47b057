"""Parts that the handlers of delegation tokens share: the check of the client, and changes of a token's expiry time.

Source: KafkaApis.allowTokenRequests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.broker.loop.steps import Steps, wait_for
from tidelog.broker.security.changes import Notes, note_line
from tidelog.broker.security.principal import ANONYMOUS
from tidelog.protocol.errors import DelegationTokenRequestNotAllowedError

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.config.broker_config import BrokerConfig
    from tidelog.broker.requests.context import RequestContext
    from tidelog.broker.security.delegation_tokens import DelegationTokens


def check_may_ask(config: BrokerConfig, context: RequestContext) -> None:
    """Raise DelegationTokenRequestNotAllowedError unless the client is authenticated, and not by a delegation token.

    A listener without TLS and SASL authenticates no one; one with TLS alone does if the client has a certificate.
    """
    protocols = {one.listener_name: one.security_protocol for one in config.listeners}
    protocol = protocols.get(context.listener_name, "PLAINTEXT")
    is_anonymous = protocol == "SSL" and context.principal == ANONYMOUS
    if context.token_authenticated or protocol == "PLAINTEXT" or is_anonymous:
        raise DelegationTokenRequestNotAllowedError


def change_expiry(
    broker: Broker, context: RequestContext, event: str, change: Callable[[DelegationTokens, str], int]
) -> Steps[int]:
    """Change a token's expiry time by ``change(tokens, requester)``; return the new time in ms once it is durable.

    ``event`` names the change in the audit log. Raises DelegationTokenRequestNotAllowedError, what ``change`` raises,
    and KafkaStorageError if the change does not become durable.
    """
    check_may_ask(broker.config, context)
    expires_ms = change(broker.services.tokens.get(), str(context.principal))
    synced = broker.controller.when_synced()
    with Notes(broker.late_lines) as notes:
        notes.add(synced, note_line(event, context, until_ms=expires_ms))
        yield from wait_for(synced)
        yield from notes.write()
    return expires_ms
