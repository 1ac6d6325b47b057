"""Checks of bearer tokens, as one listener's configuration asks for them. The configuration keys are those of Kafka's
SaslConfigs and BrokerSecurityConfigs.

``sasl.server.callback.handler.class`` chooses between signed and unsecured tokens. Kafka's default, unsecured, must be
named here.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from tidelog.broker.config.broker_config import Endpoint
from tidelog.broker.config.keys.security import (
    LISTENER_CONFIG_DEF,
    SECURED_HANDLER,
    UNSECURED_HANDLER,
    listener_values,
    mechanism_values,
)
from tidelog.broker.security.policy import is_loopback
from tidelog.broker.security.sasl.jaas import JAAS_KEY, OAUTHBEARER_MODULE, LoginModule, parse_jaas
from tidelog.broker.security.sasl.oauth.key_set import KeySet, Pace, fetch_file, fetch_url, file_of
from tidelog.broker.security.sasl.oauth.server import OAUTHBEARER, BearerToken, TokenRefusedError
from tidelog.broker.security.sasl.oauth.unsecured_tokens import UnsecuredTokens, rules_of
from tidelog.broker.security.tls.contexts import trust
from tidelog.broker.security.tls.stores import read_trust_store
from tidelog.protocol.config_def import ConfigError
from tidelog.protocol.urls import has_login, write_url

if TYPE_CHECKING:
    from tidelog.broker.security.sasl.oauth.signed_tokens import Keys, SignedTokens

HANDLER_KEY = "sasl.server.callback.handler.class"
URL_KEY = "sasl.oauthbearer.jwks.endpoint.url"
ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
ALLOWED_FILES = "org.apache.kafka.sasl.oauthbearer.allowed.files"
FIRST_KEYS_S = 5.0
"""Time in s after the start during which tokens wait for the first keys. All tokens wait until the same moment, as one
thread checks them in turn, and waits of their own would add up.
"""
_MODULES = ("jwt", "cryptography")
_SIGNED = "tidelog.broker.security.sasl.oauth.signed_tokens"


class Tokens(Protocol):
    """The check of a listener's tokens."""

    def begin(self) -> None:
        """Begin to read the keys."""
        ...

    def close(self) -> None:
        """Stop reading the keys."""
        ...

    def validate(self, token: str) -> BearerToken:
        """Return the user and the expiry time of a token. Any thread but the loop's. Raises TokenRefusedError."""
        ...


class UnsecuredTokenCheck(UnsecuredTokens):
    """Check of unsecured tokens, for which there are no keys to read."""

    def begin(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class SignedTokenCheck:
    """Check of signed tokens, and the thread that imports PyJWT and reads their keys."""

    def __init__(self, values: Mapping[str, Any], context: ssl.SSLContext | None) -> None:
        self._values = values
        self._context = context
        self._keys: KeySet[Keys] | None = None
        self._check: SignedTokens | None = None
        self._stopped = False
        self._ready = threading.Event()
        self._wait_until_s = 0.0

    def begin(self) -> None:
        """Start the thread."""
        self._wait_until_s = monotonic() + FIRST_KEYS_S
        threading.Thread(target=self._run, name="jwks", daemon=True).start()

    def _run(self) -> None:
        signed, values = import_module(_SIGNED), self._values
        url = values[URL_KEY]
        path = file_of(url)
        fetch = partial(fetch_url, url, self._context) if path is None else partial(fetch_file, path)
        keys = self._keys = KeySet(fetch, signed.read_keys, {}, pace_of(values))
        rules = signed.SignedRules(
            list(values["sasl.oauthbearer.expected.audience"] or ()),
            values["sasl.oauthbearer.expected.issuer"],
            values["sasl.oauthbearer.clock.skew.seconds"],
            values["sasl.oauthbearer.sub.claim.name"],
            values["sasl.oauthbearer.scope.claim.name"],
        )
        self._check = signed.SignedTokens(rules, lambda: keys.keys, keys.note_unknown)
        keys.step()
        self._ready.set()
        if not self._stopped:
            keys.run()

    def close(self) -> None:
        """Let the thread end."""
        self._stopped = True
        if self._keys is not None:
            self._keys.stop()

    def validate(self, token: str) -> BearerToken:
        """Return the user and the expiry time of a token. Any thread but the loop's. Raises TokenRefusedError."""
        if not self._ready.wait(max(self._wait_until_s - monotonic(), 0.0)) or self._check is None:
            raise TokenRefusedError("the keys are not read yet")
        return self._check.validate(token)


def pace_of(values: Mapping[str, Any]) -> Pace:
    """Return the intervals between two reads of the keys."""
    prefix = "sasl.oauthbearer.jwks.endpoint."
    names = ("refresh.ms", "retry.backoff.ms", "retry.backoff.max.ms")
    return Pace(*(values[prefix + name] / 1000 for name in names))


def build_tokens(listener: str, texts: Mapping[str, str]) -> Tokens:
    """Build the check of a listener's tokens, which has not read keys yet. Raises ConfigError, OSError."""
    values = mechanism_values(texts, listener, OAUTHBEARER)
    module = LoginModule(OAUTHBEARER_MODULE, {}) if values[JAAS_KEY] is None else parse_jaas(values[JAAS_KEY])
    if module.name != OAUTHBEARER_MODULE:
        raise refuse(JAAS_KEY, "[hidden]", f"{OAUTHBEARER_MODULE} required;")
    handler = values[HANDLER_KEY]
    if handler == UNSECURED_HANDLER:
        try:
            return UnsecuredTokenCheck(rules_of(module.options))
        except ValueError as error:
            raise refuse(JAAS_KEY, "[hidden]", "unsecuredValidatorAllowableClockSkewMs as a number from 0") from error
    if handler != SECURED_HANDLER:
        raise refuse(
            f"{HANDLER_KEY} of listener {listener}, {OAUTHBEARER}", handler, f"{SECURED_HANDLER}, or "
            f"{UNSECURED_HANDLER} on a listener of this machine alone"
        )  # fmt: skip
    return build_signed(values, trust_of(module.options))


def build_signed(values: Mapping[str, Any], context: ssl.SSLContext | None, prefix: str = "") -> SignedTokenCheck:
    """Build the check of signed tokens. ``context`` is for TLS to the endpoint of the keys; an error about the
    endpoint's URL names the configuration key with ``prefix``. Raises ConfigError.
    """
    check_url(values, prefix)
    for name in _MODULES:
        if find_spec(name) is None:
            raise refuse("sasl.enabled.mechanisms", OAUTHBEARER, "it only with `pip install tidelog[oauth]`")
    return SignedTokenCheck(values, context)


def check_endpoint(endpoint: Endpoint, texts: Mapping[str, str]) -> None:
    """Raise ConfigError if other machines could use unsecured tokens on this listener."""
    handler = mechanism_values(texts, endpoint.listener_name, OAUTHBEARER)[HANDLER_KEY]
    if handler == UNSECURED_HANDLER and not is_loopback(endpoint.host):
        raise refuse(HANDLER_KEY, handler, f"it only on a listener of this machine alone, unlike {endpoint}")


def check_url(values: Mapping[str, Any], prefix: str = "") -> None:
    """Raise ConfigError, which names the key with its prefix, unless the endpoint's URL may be used."""
    url = values[URL_KEY]
    path = file_of(url) if url and is_well_formed(url) else None
    shown = url and write_url(url)
    allowed = values[ALLOWED_URLS if path is None else ALLOWED_FILES]
    if allowed is not None and (url if path is None else path) not in allowed:
        raise refuse(prefix + URL_KEY, shown, f"one of {ALLOWED_URLS if path is None else ALLOWED_FILES}")
    if path or (url and is_well_formed(url) and is_safe(url)):
        return
    raise refuse(
        prefix + URL_KEY,
        shown,
        "a URL of https or file, or of http on this machine, without a login: without keys no token proves anything",
    )


def is_well_formed(url: str) -> bool:
    """Return whether a URL can be fetched: ASCII without blanks and without a login, with a valid host and port."""
    try:
        parts = urlsplit(url)
        if has_login(url):
            return False
        (parts.hostname or "").encode("idna")
        return parts.port != 0 and "\0" not in unquote(url) and url.isascii() and url.isprintable() and " " not in url
    except ValueError:
        return False


def is_safe(url: str) -> bool:
    """Return whether no other machine can forge a URL's content: it is https, or on this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


def trust_of(options: Mapping[str, str]) -> ssl.SSLContext | None:
    """Build the TLS context for the endpoint of the keys from the ssl.truststore.* options of the JAAS text; return
    None for the system's certificates.

    Raises ConfigError, OSError.
    """
    given = {name: text for name, text in options.items() if name in LISTENER_CONFIG_DEF and name.startswith("ssl.")}
    values = listener_values(given, "")
    if read_trust_store(values) is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust(context, values, ssl.Purpose.SERVER_AUTH)
    return context


def refuse(key: str, value: object, allowed: str) -> ConfigError:
    """Build the error for an invalid value of a key."""
    return ConfigError(f"Invalid value {value!r} for configuration {key}; allowed: {allowed}")
