"""The login of a new connection: SaslHandshake, then SaslAuthenticate until the mechanism is done."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from typing import Protocol, TypeVar

from tidelog.broker.security.sasl.client.bearer import exchange_bearer
from tidelog.broker.security.sasl.client.exchange import NONCE_BYTES, Credentials, begin_exchange
from tidelog.client.sasl.bearer import BearerCredentials
from tidelog.client.sasl.credentials import MECHANISM_KEY
from tidelog.protocol.errors import SaslAuthenticationFailedError, UnsupportedSaslMechanismError, error_for_code
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tidelog.protocol.schema.fields import Message

_Response = TypeVar("_Response", bound=Message)


class BrokerConnection(Protocol):
    """A new connection to a broker, ``tidelog.client.connection.Client``."""

    bootstrap: str

    def call(self, request: Message, response_type: type[_Response]) -> _Response:
        """Send a request in the newest version that both sides know, and return the response.

        Raises ClientError, KafkaError.
        """
        ...


def log_in(client: BrokerConnection, credentials: Credentials | BearerCredentials) -> int:
    """Log in, and return the session's lifetime in ms; 0: unlimited. Raises ClientError, KafkaError."""
    exchange = _begin(credentials)
    _choose_mechanism(client, credentials.mechanism)
    token = next(exchange)
    while True:
        answer = client.call(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
        if answer.error_code:
            kind = error_for_code(answer.error_code)
            raise kind(_refusal(client, credentials, answer.error_message or kind.default_message))
        try:
            token = exchange.send(bytes(answer.auth_bytes))
        except StopIteration:
            return answer.session_lifetime_ms
        except SaslAuthenticationFailedError as error:
            raise SaslAuthenticationFailedError(_refusal(client, credentials, error.message)) from error


def _begin(credentials: Credentials | BearerCredentials) -> Generator[bytes, bytes, None]:
    """Begin the exchange of one login. Raises ClientError when there is no bearer token."""
    if isinstance(credentials, BearerCredentials):
        return exchange_bearer(credentials.fetch_token())
    return begin_exchange(credentials, secrets.token_urlsafe(NONCE_BYTES))


def _choose_mechanism(client: BrokerConnection, mechanism: str) -> None:
    """Choose the mechanism with SaslHandshake. Raises ClientError, KafkaError."""
    answer = client.call(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse)
    if answer.error_code == UnsupportedSaslMechanismError.code:
        offered = ", ".join(answer.mechanisms)
        raise UnsupportedSaslMechanismError(
            f"{client.bootstrap} does not support {MECHANISM_KEY}={mechanism}; it supports {offered}"
        )
    if answer.error_code:
        kind = error_for_code(answer.error_code)
        raise kind(f"{client.bootstrap} accepts no login: {kind.default_message}")


def _refusal(client: BrokerConnection, credentials: Credentials | BearerCredentials, reason: str) -> str:
    """Write the message of a refused login in one line, even if the broker's text has several."""
    return f"{client.bootstrap}, login of {credentials.user}: {' '.join(reason.split())}"
