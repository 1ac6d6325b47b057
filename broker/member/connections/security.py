"""Security of the connections that a member opens, to controllers and to other brokers: TLS, and its own login.

    controllers      the protocol of the first of controller.listener.names; sasl.mechanism.controller.protocol
    other brokers    the protocol of inter.broker.listener.name, or security.inter.broker.protocol;
                     sasl.mechanism.inter.broker.protocol

Stores and logins come from the listener's security keys; those with the prefix ``listener.name.NAME.`` take precedence.
User and password are the options ``username`` and ``password`` of the mechanism's JAAS text. Source: Kafka's
ChannelBuilders, KafkaConfig.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tidelog.broker.cluster.quorum import Address
from tidelog.broker.config.broker_config import (
    PLAIN_PROTOCOLS,
    SASL_PROTOCOLS,
    SERVED_PROTOCOLS,
    BrokerConfig,
    invalid_value_error,
)
from tidelog.broker.config.keys.security import listener_values, mechanism_values
from tidelog.broker.member.connections.frame_link import FrameLink
from tidelog.broker.security.sasl.client.exchange import HASHES, MECHANISMS, PLAIN, Credentials
from tidelog.broker.security.sasl.jaas import JAAS_KEY, PLAIN_MODULE, SCRAM_MODULE, parse_jaas
from tidelog.protocol.config_def import ConfigError

if TYPE_CHECKING:
    from tidelog.broker.security.tls.client import TlsClient

logger = logging.getLogger(__name__)

CONTROLLER_NAMES, PROTOCOL_MAP = "controller.listener.names", "listener.security.protocol.map"
BROKER_NAME, BROKER_PROTOCOL = "inter.broker.listener.name", "security.inter.broker.protocol"
CONTROLLER_MECHANISM, BROKER_MECHANISM = "sasl.mechanism.controller.protocol", "sasl.mechanism.inter.broker.protocol"


class PeerSecurity:
    """Security of connections to listeners of one name. Loop thread only."""

    def __init__(
        self,
        listener_name: str,
        credentials: Credentials | None = None,
        tls: TlsClient | None = None,
        values: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """``values`` returns the present values of the listener's security keys."""
        self.listener_name = listener_name
        self.credentials = credentials
        """User and password to log in with; None if the listener needs no login."""
        self._tls = tls
        self._values = values

    async def connect(self, address: Address) -> FrameLink:
        """Open a connection, with its TLS handshake if there is one.

        Raises OSError, also for an untrusted certificate; ConfigError if a security key has an invalid value by now;
        RuntimeError if no thread can be started.
        """
        loop, options = asyncio.get_running_loop(), dict[str, Any]()
        if self._tls is not None:
            context = await loop.run_in_executor(None, self._tls.context, self._values())
            options = {"ssl": context, "server_hostname": address.host if context.check_hostname else ""}
        try:
            return (await loop.create_connection(FrameLink, address.host, address.port, **options))[1]
        except OSError:  # the error of an untrusted certificate is a ValueError too
            raise
        except ValueError as error:  # for an advertised text that no resolver takes, such as a..b
            raise OSError(f"{address.host!r} is not a host name") from error


def controller_security(config: BrokerConfig) -> PeerSecurity:
    """Return the security of connections to controllers; reads their TLS stores. Raises ConfigError, OSError."""
    names = config.get_list(CONTROLLER_NAMES)
    if not names:
        raise invalid_value_error(CONTROLLER_NAMES, "", "the name of the controllers' listener, such as CONTROLLER")
    name = names[0].upper()
    protocol = config.security_protocols.get(name) or _unnamed_protocol(config, name)
    if protocol not in SERVED_PROTOCOLS:
        raise invalid_value_error(PROTOCOL_MAP, f"{name}:{protocol}", ", ".join(SERVED_PROTOCOLS))
    return _security(config, name, protocol, CONTROLLER_MECHANISM)


def _unnamed_protocol(config: BrokerConfig, name: str) -> str:
    """Return PLAINTEXT for controllers without a protocol, if no protocol map is configured and no listener is secured.
    Raises ConfigError otherwise.
    """
    is_plain = all(one.security_protocol == "PLAINTEXT" for one in config.listeners)
    if config.static_texts.get(PROTOCOL_MAP) or not is_plain:
        raise invalid_value_error(CONTROLLER_NAMES, name, f"a name that has a protocol in {PROTOCOL_MAP}")
    return "PLAINTEXT"


def broker_security(config: BrokerConfig) -> PeerSecurity:
    """Return the security of connections to other brokers; reads their TLS stores. Raises ConfigError, OSError."""
    own = {one.listener_name: one.security_protocol for one in config.listeners}
    given = config.get(BROKER_NAME)
    if given and BROKER_PROTOCOL in config.static_texts:
        raise invalid_value_error(BROKER_NAME, given, f"one of {BROKER_NAME} and {BROKER_PROTOCOL}")
    name = (given or config.get_str(BROKER_PROTOCOL)).upper()
    if name not in own:
        key = BROKER_NAME if given else BROKER_PROTOCOL
        raise invalid_value_error(key, name, f"{BROKER_NAME}=NAME with a name that listeners has: {', '.join(own)}")
    return _security(config, name, own[name], BROKER_MECHANISM)


def _security(config: BrokerConfig, name: str, protocol: str, mechanism_key: str) -> PeerSecurity:
    credentials = _credentials(config, name, mechanism_key) if protocol in SASL_PROTOCOLS else None
    if protocol in PLAIN_PROTOCOLS:
        return PeerSecurity(name, credentials)
    from tidelog.broker.security.tls.client import TlsClient

    usable = listener_values(config.listener_texts(), name)

    def values() -> Mapping[str, Any]:
        """Return the present values, or the last usable ones: Kafka's controllers store others unchecked."""
        nonlocal usable
        try:
            usable = listener_values(config.listener_texts(), name)
        except ConfigError as error:
            logger.error("connections to listeners %s keep their settings of TLS: %s", name, error)
        return usable

    return PeerSecurity(name, credentials, TlsClient(name, usable), values)


def _credentials(config: BrokerConfig, name: str, mechanism_key: str) -> Credentials:
    """Return the user and password that this broker logs in with. Raises ConfigError, which shows no password."""
    mechanism = config.get_str(mechanism_key)
    if mechanism not in MECHANISMS:
        raise invalid_value_error(mechanism_key, mechanism, f"{PLAIN}, {' or '.join(HASHES)}")
    key = f"listener.name.{name.lower()}.{mechanism.lower()}.{JAAS_KEY}"
    expected = PLAIN_MODULE if mechanism == PLAIN else SCRAM_MODULE
    text = mechanism_values(config.listener_texts(), name, mechanism)[JAAS_KEY]
    module = None if text is None else parse_jaas(text)
    user, password = ("", "") if module is None else map(module.options.get, ("username", "password"), ("", ""))
    if module is None or module.name != expected or not user or not password:
        raise ConfigError(
            f'Invalid value [hidden] for configuration {key}; allowed: {expected} required username="USER" '
            'password="PASSWORD";'
        )
    return Credentials(mechanism, user, password)
