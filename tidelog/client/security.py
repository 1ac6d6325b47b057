"""The client's side of a secured connection, configured with the keys of Kafka's clients: TLS with PEM stores, SASL.

security.protocol                       PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
ssl.truststore.location, .certificates  trusted certificates and revocation lists, as a file or as text; by default
                                        those of the system
ssl.keystore.location                   the client's own key and certificate in one file
ssl.truststore.type, ssl.keystore.type  only PEM, which is the default here (in Kafka it is JKS)
ssl.key.password                        the password of that key, if it is encrypted
ssl.endpoint.identification.algorithm   empty: the certificate need not name the host
sasl.*                                  see ``tidelog.client.sasl.credentials``
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidelog.client.trust import build_context, read_trusted
from tidelog.client.wire import ClientError, SettingsError

if TYPE_CHECKING:
    import ssl

    from tidelog.broker.security.sasl.client.exchange import Credentials
    from tidelog.client.sasl.bearer import BearerCredentials

PROTOCOL_KEY = "security.protocol"
PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
TLS_KEYS = frozenset(
    {
        PROTOCOL_KEY,
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.certificates",
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)


def known_keys() -> frozenset[str]:
    """Return all supported keys."""
    from tidelog.client.sasl.credentials import KEYS  # late: a command without a profile does not need it

    return TLS_KEYS | KEYS


class Security:
    """Protocol, stores and credentials of a client. Raises SettingsError for unsupported values."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties
        self.protocol = properties.get(PROTOCOL_KEY, PLAINTEXT).upper()
        if self.protocol not in (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL):
            allowed = f"{PLAINTEXT}, {SSL}, {SASL_PLAINTEXT} or {SASL_SSL}"
            raise SettingsError(f"{PROTOCOL_KEY}={self.protocol}: expected {allowed}")
        for store in ("truststore", "keystore"):
            kind = properties.get(f"ssl.{store}.type", "PEM").upper()
            if kind != "PEM":
                raise SettingsError(f"ssl.{store}.type={kind}: expected PEM")
        has_login = self.protocol in (SASL_PLAINTEXT, SASL_SSL)
        self.credentials = read_login(properties) if has_login else None
        self._context: ssl.SSLContext | None = None

    def __reduce__(self) -> tuple[type[Security], tuple[dict[str, str]]]:
        """Leave out the TLS context, which cannot be pickled: Spark's tasks get these settings."""
        return Security, (dict(self._properties),)

    def secure(self, plain: socket.socket, host: str) -> socket.socket:
        """Return the connection, after the TLS handshake if the protocol has TLS. Raises ClientError, OSError."""
        if self.protocol in (PLAINTEXT, SASL_PLAINTEXT):
            return plain
        import ssl

        try:
            return self.context().wrap_socket(plain, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise ClientError(f"the certificate of {host} is not trusted: {error.verify_message}") from error
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError) as error:
            raise ClientError(
                f"{host} closed the connection during the TLS handshake; does this listener have TLS "
                f"({PROTOCOL_KEY}={self.protocol})?"
            ) from error

    def context(self) -> ssl.SSLContext:
        """Return the TLS context with the client's stores. Raises SettingsError."""
        if self._context is None:
            self._context = self._build_context()
        return self._context

    def _build_context(self) -> ssl.SSLContext:
        given = self._properties
        trusted, keystore = given.get("ssl.truststore.location"), given.get("ssl.keystore.location")
        with _errors_of("ssl.truststore", trusted):
            context = build_context(read_trusted(trusted, given.get("ssl.truststore.certificates")))
        if given.get("ssl.endpoint.identification.algorithm", "https") == "":
            context.check_hostname = False
        if keystore is not None:
            with _errors_of("ssl.keystore", keystore):
                context.load_cert_chain(keystore, password=given.get("ssl.key.password", ""))
        return context


@contextmanager
def _errors_of(store: str, path: str | None) -> Iterator[None]:
    """Turn errors of a store's file inside ``with`` into SettingsErrors that name the key and the file."""
    try:
        yield
    except OSError as error:  # ssl.SSLError too
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        key = f"{store}.certificates" if path is None else f"{store}.location={path}"
        raise SettingsError(f"{key}: {reason}") from error


def read_login(properties: Mapping[str, str]) -> Credentials | BearerCredentials:
    """Read the credentials of a profile. Raises SettingsError, whose message has no password."""
    from tidelog.client.sasl.credentials import read_credentials  # late: few clients log in

    return read_credentials(properties)
