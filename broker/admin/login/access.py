"""The configured ways to log in to the admin interface, and what they need: TLS, an address, users.

Without ``admin.authentication`` it asks for no login while other machines do not reach it and no listener
authenticates; else for a password. Imported at the start, so it knows neither aiohttp nor OpenSSL.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.broker.config.broker_config import PLAIN_PROTOCOLS, SASL_PROTOCOLS, BrokerConfig, invalid
from tidelog.broker.config.keys.admin import ADMIN_AUTHENTICATION, ADMIN_LISTENER, ADMIN_TOKEN_KEYS, ADMIN_TOKENS_FILE
from tidelog.broker.config.keys.security import LISTENER_CONFIG_DEF, listener_values
from tidelog.broker.security.policy import is_loopback

NONE, BASIC, BEARER, MTLS = "none", "basic", "bearer", "mtls"
LISTENER = "admin"
"""The interface's name in log lines, also for its TLS stores."""
_PREFIX = "admin."
_CLIENT_AUTH = "ssl.client.auth"
_ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed."
"""URLs and files of keys that may be used at all."""


def methods_of(config: BrokerConfig, listener: str = ADMIN_LISTENER) -> frozenset[str]:
    """Return the ways to log in to the interface with this key; empty where no login is asked for."""
    given = config.get_list(ADMIN_AUTHENTICATION)
    if given:
        return frozenset(given) - {NONE}
    return frozenset() if is_local(config, listener) and not any_listener_authenticates(config) else frozenset({BASIC})


def is_local(config: BrokerConfig, listener: str = ADMIN_LISTENER) -> bool:
    """Return whether an interface is reached from this machine alone."""
    return is_loopback(config.get_str(listener).rpartition(":")[0].strip("[]"))


def any_listener_authenticates(config: BrokerConfig) -> bool:
    """Return whether clients of the broker have to say who they are."""
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
    """Return the texts of the HTTP interfaces' own TLS, by the keys of a listener; empty where it speaks none."""
    given = config.listener_texts()
    texts = {key: given[_PREFIX + key] for key in LISTENER_CONFIG_DEF.keys if _PREFIX + key in given}
    if not texts.keys() & {"ssl.keystore.location", "ssl.keystore.key"}:
        return {}
    methods = methods_of(config, listener)
    asks = "none" if MTLS not in methods else "required" if methods == {MTLS} else "requested"
    return {**texts, _CLIENT_AUTH: asks}


def bearer_texts(config: BrokerConfig) -> dict[str, str]:
    """Return the texts of the check of signed tokens, by the keys of a listener; empty where none are taken."""
    if not config.get(ADMIN_TOKEN_KEYS):
        return {}
    given = config.listener_texts()
    own = {key: given[_PREFIX + key] for key in LISTENER_CONFIG_DEF.keys if _PREFIX + key in given}
    return {key: text for key, text in given.items() if key.startswith(_ALLOWED)} | own


def check_bearer(config: BrokerConfig) -> None:
    """Raise ConfigError where no token could be valid."""
    texts = bearer_texts(config)
    if texts:
        from tidelog.broker.security.sasl.oauth.settings import build_signed  # needs OpenSSL

        build_signed(listener_values(texts, LISTENER), None, _PREFIX)
    elif not config.get(ADMIN_TOKENS_FILE):
        raise invalid(
            ADMIN_TOKENS_FILE, "", f"the file of tokens, or {ADMIN_TOKEN_KEYS}, as {ADMIN_AUTHENTICATION} has bearer"
        )


def check_access(config: BrokerConfig, listener: str = ADMIN_LISTENER) -> Mapping[str, str]:
    """Return the texts of an interface's TLS. Raises ConfigError where the configured logins cannot work."""
    if not config.get_str(listener):
        return {}
    given, methods = config.get_list(ADMIN_AUTHENTICATION), methods_of(config, listener)
    texts = tls_texts(config, listener)
    if NONE in given and methods:
        raise invalid(ADMIN_AUTHENTICATION, ",".join(given), "none alone, or a list of basic, bearer and mtls")
    if BEARER in methods:
        check_bearer(config)
    if MTLS in methods and not texts:
        raise invalid(ADMIN_AUTHENTICATION, MTLS, "mtls only with admin.ssl.keystore.location")
    if methods and not texts and not is_local(config, listener):
        raise invalid(
            listener, config.get_str(listener),
            "with logins an address of this machine alone, or TLS (admin.ssl.keystore.location); "
            f"{ADMIN_AUTHENTICATION}=none opens it to everyone who reaches it",
        )  # fmt: skip
    return texts
