"""One listener that authenticates: its mechanisms, and where their users come from. Source of the keys: Kafka's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from tidelog.broker.config.keys.security import listener_values, mechanism_values
from tidelog.broker.security.sasl.authenticator import Identity, SaslAuthenticator
from tidelog.broker.security.sasl.jaas import JAAS_KEY, PLAIN_MODULE, SCRAM_MODULE, LoginModule, parse_jaas
from tidelog.broker.security.sasl.mechanism import Mechanism
from tidelog.broker.security.sasl.plain import PLAIN, PlainServer, PlainUsers
from tidelog.broker.security.sasl.scram import SCRAM_MECHANISMS, Credentials, ScramServer, ScramUsers, TokenCredentials
from tidelog.protocol.config_def import ConfigError

USER_OPTION = "user_"


class SaslLimits(NamedTuple):
    """Limits of connections that are not authenticated yet."""

    max_receive_bytes: int
    timeout_ms: int
    failed_delay_ms: int


class SaslListener:
    """SASL as one listener speaks it. Loop thread only."""

    def __init__(
        self,
        name: str,
        texts: Mapping[str, str],
        credentials: Credentials,
        tokens: TokenCredentials = lambda _id, _mechanism: None,
    ) -> None:
        """``tokens`` finds the credentials of delegation tokens. Raises ConfigError."""
        values = listener_values(texts, name)
        mechanisms = list(values["sasl.enabled.mechanisms"])
        if not mechanisms or mechanisms == ["GSSAPI"]:
            raise _refuse(name, ",".join(mechanisms), "at least one; Kafka's default, GSSAPI, is not here")
        self.name = name
        self.lifetime_ms: int = values["connections.max.reauth.ms"]
        self.limits = SaslLimits(
            values["sasl.server.max.receive.size"],
            values["connection.authentication.timeout.ms"],
            values["connection.failed.authentication.delay.ms"],
        )
        self.mechanisms: dict[str, Callable[[], Mechanism]] = {
            mechanism: build_mechanism(name, mechanism, texts, credentials, tokens) for mechanism in mechanisms
        }

    def authenticate(self, previous: Identity | None = None) -> SaslAuthenticator:
        """Begin an exchange; with the identity of before, a re-authentication."""
        return SaslAuthenticator(self.mechanisms, self.lifetime_ms, previous)


def build_mechanism(
    listener: str, mechanism: str, texts: Mapping[str, str], credentials: Credentials, tokens: TokenCredentials
) -> Callable[[], Mechanism]:
    """The way to begin an exchange by a mechanism. Raises ConfigError."""
    jaas = mechanism_values(texts, listener, mechanism)[JAAS_KEY]
    module = None if jaas is None else parse_jaas(jaas)
    if mechanism in SCRAM_MECHANISMS:
        if module is not None and module.name != SCRAM_MODULE:
            raise _refuse_module(mechanism, SCRAM_MODULE)
        return partial(ScramServer, ScramUsers(SCRAM_MECHANISMS[mechanism], credentials, tokens))
    if mechanism != PLAIN:
        raise _refuse(listener, mechanism, ", ".join((PLAIN, *SCRAM_MECHANISMS)))
    if module is None or module.name != PLAIN_MODULE:
        raise _refuse_module(mechanism, f'{PLAIN_MODULE} required user_NAME="PASSWORD";')
    return partial(PlainServer, plain_users(module))


def plain_users(module: LoginModule) -> PlainUsers:
    """The users of PLAIN's login module."""
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
