"""The configured methods to log in to the admin interface, and what they require: TLS, an address, users.

Without ``admin.authentication`` no login is required if other machines cannot reach the interface and no Kafka listener
authenticates; else a password is required. The broker imports this module when it starts, so it imports neither aiohttp
nor OpenSSL.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.broker.config.broker_config import PLAIN_PROTOCOLS, SASL_PROTOCOLS, BrokerConfig, invalid_value_error
from tidelog.broker.config.keys.admin import ADMIN_AUTHENTICATION, ADMIN_LISTENER, ADMIN_TOKEN_KEYS, ADMIN_TOKENS_FILE
from tidelog.broker.config.keys.security import LISTENER_CONFIG_DEF, listener_values
from tidelog.broker.security.policy import is_loopback

NONE, BASIC, BEARER, MTLS = "none", "basic", "bearer", "mtls"
LISTENER = "admin"
"""The name of the HTTP interfaces in log lines, and the listener name of their TLS stores."""
_PREFIX = "admin."
_CLIENT_AUTH = "ssl.client.auth"
_ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed."
"""Prefix of the properties that allow URLs and files of token keys."""


def methods_of(config: BrokerConfig, listener: str = ADMIN_LISTENER) -> frozenset[str]:
    """Return the login methods of the interface whose listener this key configures; empty if no login is required."""
    given = config.get_list(ADMIN_AUTHENTICATION)
    if given:
        return frozenset(given) - {NONE}
    if is_local(config, listener) and not has_authenticating_listener(config):
        return frozenset()
    return frozenset({BASIC})


def is_local(config: BrokerConfig, listener: str = ADMIN_LISTENER) -> bool:
    """Return whether an interface can be reached only from this machine."""
    return is_loopback(config.get_str(listener).rpartition(":")[0].strip("[]"))


def has_authenticating_listener(config: BrokerConfig) -> bool:
    """Return whether a Kafka listener authenticates its clients, by SASL or by certificates."""
    texts = config.listener_texts()
    return any(
        one.security_protocol in SASL_PROTOCOLS
        or (
            one.security_protocol not in PLAIN_PROTOCOLS
            and listener_values(texts, one.listener_name)[_CLIENT_AUTH] != "none"
        )
        for one in config.listeners
    )


def tls_texts(config: BrokerConfig, listener: str = ADMIN_LISTENER) -> dict[str, str]:
    """Return the TLS configuration of the HTTP interfaces, by the keys that a Kafka listener has; empty without TLS."""
    given = config.listener_texts()
    texts = {key: given[_PREFIX + key] for key in LISTENER_CONFIG_DEF.keys if _PREFIX + key in given}
    if not texts.keys() & {"ssl.keystore.location", "ssl.keystore.key", "ssl.keystore.certificate.chain"}:
        return {}
    methods = methods_of(config, listener)
    asks = "none" if MTLS not in methods else "required" if methods == {MTLS} else "requested"
    return {**texts, _CLIENT_AUTH: asks}


def bearer_texts(config: BrokerConfig) -> dict[str, str]:
    """Return the configuration for checking signed tokens, by the keys that a Kafka listener has; empty if such tokens
    are not accepted."""
    if not config.get(ADMIN_TOKEN_KEYS):
        return {}
    given = config.listener_texts()
    own = {key: given[_PREFIX + key] for key in LISTENER_CONFIG_DEF.keys if _PREFIX + key in given}
    return {key: text for key, text in given.items() if key.startswith(_ALLOWED)} | own


def check_bearer(config: BrokerConfig) -> None:
    """Raise ConfigError if signed tokens are configured wrongly, or if neither they nor a token file are configured."""
    texts = bearer_texts(config)
    if texts:
        from tidelog.broker.security.sasl.oauth.settings import build_signed  # needs OpenSSL

        build_signed(listener_values(texts, LISTENER), None, _PREFIX)
    elif not config.get(ADMIN_TOKENS_FILE):
        raise invalid_value_error(
            ADMIN_TOKENS_FILE, "", f"a file of tokens, or {ADMIN_TOKEN_KEYS}, because {ADMIN_AUTHENTICATION} has bearer"
        )


def check_access(config: BrokerConfig, listener: str = ADMIN_LISTENER) -> Mapping[str, str]:
    """Return the TLS configuration of an interface. Raises ConfigError if its logins are configured wrongly, or need
    TLS that is not configured."""
    if not config.get_str(listener):
        return {}
    given, methods = config.get_list(ADMIN_AUTHENTICATION), methods_of(config, listener)
    texts = tls_texts(config, listener)
    if NONE in given and methods:
        raise invalid_value_error(
            ADMIN_AUTHENTICATION, ",".join(given), "none alone, or a list of basic, bearer and mtls"
        )
    if BEARER in methods:
        check_bearer(config)
    if MTLS in methods and not texts:
        raise invalid_value_error(ADMIN_AUTHENTICATION, MTLS, "mtls only with admin.ssl.keystore.location")
    if methods and not texts and not is_local(config, listener):
        raise invalid_value_error(
            listener, config.get_str(listener),
            "a loopback address, or TLS (admin.ssl.keystore.location), because logins are required; "
            f"{ADMIN_AUTHENTICATION}=none opens it to everyone who can reach it",
        )  # fmt: skip
    return texts
