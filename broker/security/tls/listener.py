"""One listener that encrypts: its present context, its replacement, and the principal of a client's certificate.

A changed store is read, and its context built, in a thread. The new context replaces the old one if its certificate has
the same subject and all host names of the old certificate. ``ssl.allow.dn.changes`` and ``ssl.allow.san.changes`` allow
another subject and missing host names. Connections keep the context that they began with. Source of the checks: Kafka's
SslFactory.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from hashlib import sha256
from math import inf
from typing import Any, NamedTuple

from tidelog.broker.config.keys.security import listener_values
from tidelog.broker.security.principal import ANONYMOUS, USER, Principal
from tidelog.broker.security.tls.contexts import build_context
from tidelog.broker.security.tls.principal_rules import PrincipalRules
from tidelog.broker.security.tls.stores import FileStamp, KeyStore, read_key_store, refuse, stamps_of
from tidelog.broker.security.tls.subject_names import MalformedCertificateError, expiry_of, host_names_of, subject_of

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class Identity(NamedTuple):
    """The broker's own subject and host names, from its certificate."""

    subject: str
    host_names: frozenset[tuple[int, bytes]]
    expires_s: float = inf
    """End of the certificate's validity, in seconds since 1970."""
    digest: bytes = b""
    """SHA-256 of the certificate."""


class StoreContents(NamedTuple):
    """Everything that a listener has read from its stores."""

    context: ssl.SSLContext
    identity: Identity
    stamps: dict[str, FileStamp]
    values: Mapping[str, Any]
    """Values of the listener's keys, by which the stores were read."""


class TlsListener:
    """TLS settings of one listener. ``prepared`` is replaced as a whole."""

    def __init__(self, name: str, texts: Mapping[str, str]) -> None:
        """Raises ConfigError, OSError."""
        self.name = name
        values = listener_values(texts, name)
        self._rules = PrincipalRules(values["ssl.principal.mapping.rules"])
        self.prepared = prepare(values)

    @property
    def values(self) -> Mapping[str, Any]:
        """Values of the keys in force."""
        return self.prepared.values

    @property
    def context(self) -> ssl.SSLContext:
        """The context of the next handshake."""
        return self.prepared.context

    def prepare_again(self, values: Mapping[str, Any], *, even_if_unchanged: bool) -> StoreContents | None:
        """Read the stores that these values of the keys name; return None if values and files have not changed, unless
        ``even_if_unchanged``. Any thread. Raises ConfigError, OSError.
        """
        present = self.prepared
        if not even_if_unchanged and values == present.values and stamps_of(values) == present.stamps:
            return None
        found = prepare(values)
        check_identity(values, present.identity, found.identity)
        return found

    def principal_of(self, certificate: bytes | None) -> Principal:
        """Return the principal of a verified certificate. Raises NoRuleMatchesError, MalformedCertificateError."""
        return Principal(USER, self._rules.name_of(subject_of(certificate))) if certificate else ANONYMOUS


def prepare(values: Mapping[str, Any]) -> StoreContents:
    """Read the stores and build their context. Any thread. Raises ConfigError, OSError."""
    stamps = stamps_of(values)  # first, so that a change meanwhile is noticed later
    store = read_key_store(values)
    return StoreContents(build_context(values, store), identity_of(store), stamps, values)


def identity_of(store: KeyStore) -> Identity:
    """Read the identity of the first certificate of a chain. Raises ConfigError."""
    match = _CERTIFICATE.search(store.pem.decode("ascii", "replace"))
    try:
        certificate = ssl.PEM_cert_to_DER_cert(match[0]) if match is not None else b""
        names = subject_of(certificate), host_names_of(certificate)
        return Identity(*names, expiry_of(certificate), sha256(certificate).digest())
    except (MalformedCertificateError, ValueError) as error:
        raise refuse("ssl.keystore", "[hidden]", "a store with a certificate") from error


def check_identity(values: Mapping[str, Any], old: Identity, new: Identity) -> None:
    """Raise ConfigError if the new certificate has another subject, or lacks a host name of the old one, and ``values``
    do not allow that.
    """
    if old.subject != new.subject and not values["ssl.allow.dn.changes"]:
        raise refuse("ssl.keystore", new.subject, f"the subject {old.subject}, unless ssl.allow.dn.changes=true")
    if not old.host_names <= new.host_names and not values["ssl.allow.san.changes"]:
        raise refuse("ssl.keystore", "[hidden]", "all host names of the old one, unless ssl.allow.san.changes=true")
