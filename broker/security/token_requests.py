"""Connections that may ask for delegation tokens: those of a client that has shown who it is, other than by a token.

Source: KafkaApis.allowTokenRequests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.security.principal import ANONYMOUS
from tidelog.protocol.errors import DelegationTokenRequestNotAllowedError

if TYPE_CHECKING:
    from tidelog.broker.config.broker_config import BrokerConfig
    from tidelog.broker.requests.context import RequestContext


def check_may_ask(config: BrokerConfig, context: RequestContext) -> None:
    """Raises DelegationTokenRequestNotAllowedError."""
    protocols = {one.listener_name: one.security_protocol for one in config.listeners}
    protocol = protocols.get(context.listener_name, "PLAINTEXT")
    is_anonymous = protocol == "SSL" and context.principal == ANONYMOUS
    if context.token_authenticated or protocol == "PLAINTEXT" or is_anonymous:
        raise DelegationTokenRequestNotAllowedError
