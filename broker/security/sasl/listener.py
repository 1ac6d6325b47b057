"""One listener that authenticates by SASL: its mechanisms, and the sources of their users.

The configuration keys are Kafka's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.config.broker_config import Endpoint
from tidelog.broker.config.keys.security import PLAIN_HANDLER, listener_prefix, listener_values, mechanism_values
from tidelog.broker.controller.clients.scram_credentials import MIN_ITERATIONS
from tidelog.broker.security.sasl.authenticator import Identity, SaslAuthenticator
from tidelog.broker.security.sasl.jaas import JAAS_KEY, PLAIN_MODULE, SCRAM_MODULE, LoginModule, parse_jaas
from tidelog.broker.security.sasl.kerberos.server import GSSAPI
from tidelog.broker.security.sasl.mechanism import Mechanism
from tidelog.broker.security.sasl.oauth.server import OAUTHBEARER, OAuthBearerServer
from tidelog.broker.security.sasl.plain import PLAIN, PlainServer, PlainUsers
from tidelog.broker.security.sasl.scram import (
    SCRAM_MECHANISMS,
    Credentials,
    ScramServer,
    ScramUsers,
    TokenCredentials,
    UsualIterations,
)
from tidelog.protocol.config_def import ConfigError

if TYPE_CHECKING:
    from tidelog.broker.security.sasl.oauth.settings import Tokens

USER_OPTION = "user_"
HANDLER_KEY = "sasl.server.callback.handler.class"
LIFETIME_KEY = "connections.max.reauth.ms"


class SaslLimits(NamedTuple):
    """Limits of connections that are not authenticated yet."""

    max_receive_bytes: int
    timeout_ms: int
    failed_delay_ms: int


class SaslListener:
    """SASL settings and mechanisms of one listener. Loop thread only."""

    def __init__(
        self,
        name: str,
        texts: Mapping[str, str],
        credentials: Credentials,
        tokens: TokenCredentials = lambda _id, _mechanism: None,
        usual_iterations: UsualIterations = lambda _mechanism: MIN_ITERATIONS,
    ) -> None:
        """``tokens`` finds the credentials of delegation tokens; ``usual_iterations`` returns the iterations that
        unknown users of SCRAM get. Raises ConfigError.
        """
        values = listener_values(texts, name)
        mechanisms = list(values["sasl.enabled.mechanisms"])
        if not mechanisms:
            raise _refuse(name, "", "at least one")
        self.name = name
        self.limits = SaslLimits(
            values["sasl.server.max.receive.size"],
            values["connection.authentication.timeout.ms"],
            values["connection.failed.authentication.delay.ms"],
        )
        self._texts = texts
        self._usual_iterations = usual_iterations
        self._bearer_tokens: Tokens | None = None
        self._lifetimes_ms: dict[str, int] = {
            mechanism: mechanism_values(texts, name, mechanism)[LIFETIME_KEY] for mechanism in mechanisms
        }
        self.mechanisms: dict[str, Callable[[], Mechanism]] = {
            mechanism: self._build(mechanism, credentials, tokens) for mechanism in mechanisms
        }

    def begin(self) -> None:
        """Begin to read the keys that verify bearer tokens, if the listener accepts any."""
        if self._bearer_tokens is not None:
            self._bearer_tokens.begin()

    def close(self) -> None:
        """Stop reading the keys that verify bearer tokens."""
        if self._bearer_tokens is not None:
            self._bearer_tokens.close()

    def authenticate(self, previous: Identity | None = None) -> SaslAuthenticator:
        """Begin an exchange; with the previous identity it is a re-authentication."""
        return SaslAuthenticator(self.mechanisms, self._lifetimes_ms, previous)

    def _build(self, mechanism: str, credentials: Credentials, tokens: TokenCredentials) -> Callable[[], Mechanism]:
        """Return a function that begins an exchange by a mechanism. Raises ConfigError."""
        if mechanism == OAUTHBEARER:
            from tidelog.broker.security.sasl.oauth.settings import build_tokens  # needs OpenSSL

            bearer_tokens = build_tokens(self.name, self._texts)
            self._bearer_tokens = bearer_tokens
            return partial(OAuthBearerServer, bearer_tokens.validate)
        if mechanism == GSSAPI:
            from tidelog.broker.security.sasl.kerberos.keytab import build_server  # only this mechanism needs it

            return build_server(self.name, self._texts)
        check_handler(self.name, mechanism, self._texts)
        module = module_of(self.name, mechanism, self._texts)
        if mechanism in SCRAM_MECHANISMS:
            if module is not None and module.name != SCRAM_MODULE:
                raise _refuse_module(mechanism, SCRAM_MODULE)
            users = ScramUsers(SCRAM_MECHANISMS[mechanism], credentials, tokens, self._usual_iterations)
            return partial(ScramServer, users)
        if mechanism != PLAIN:
            raise _refuse(self.name, mechanism, ", ".join((PLAIN, *SCRAM_MECHANISMS, OAUTHBEARER, GSSAPI)))
        if module is None or module.name != PLAIN_MODULE:
            raise _refuse_module(mechanism, f'{PLAIN_MODULE} required user_NAME="PASSWORD";')
        return partial(PlainServer, plain_users(module))


def check_listener(endpoint: Endpoint, texts: Mapping[str, str]) -> None:
    """Raise ConfigError for a listener that cannot authenticate by its configuration."""
    name = endpoint.listener_name
    if OAUTHBEARER in SaslListener(name, texts, lambda _user, _mechanism: None).mechanisms:
        from tidelog.broker.security.sasl.oauth.settings import check_endpoint

        check_endpoint(endpoint, texts)


def check_handler(listener: str, mechanism: str, texts: Mapping[str, str]) -> None:
    """Raise ConfigError for a callback handler that is not for this mechanism."""
    key = f"{listener_prefix(listener)}{mechanism.lower()}.{HANDLER_KEY}"
    allowed = PLAIN_HANDLER if mechanism == PLAIN else "no value"
    if texts.get(key, "") not in ("", allowed):
        raise ConfigError(f"Invalid value {texts[key]!r} for configuration {key}; allowed: {allowed}")


def module_of(listener: str, mechanism: str, texts: Mapping[str, str]) -> LoginModule | None:
    """Parse the login module of a mechanism's JAAS text; return None if there is no text. Raises ConfigError."""
    jaas = mechanism_values(texts, listener, mechanism)[JAAS_KEY]
    return None if jaas is None else parse_jaas(jaas)


def plain_users(module: LoginModule) -> PlainUsers:
    """Collect the users of PLAIN's login module."""
    return PlainUsers(
        {
            option.removeprefix(USER_OPTION): password
            for option, password in module.options.items()
            if option.startswith(USER_OPTION)
        }
    )


def _refuse(listener: str, value: str, allowed: str) -> ConfigError:
    return ConfigError(
        f"Invalid value {value!r} for configuration sasl.enabled.mechanisms of listener {listener}; allowed: {allowed}"
    )


def _refuse_module(mechanism: str, allowed: str) -> ConfigError:
    return ConfigError(f"Invalid value [hidden] for configuration {JAAS_KEY} of {mechanism}; allowed: {allowed}")
