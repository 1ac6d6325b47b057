"""The client's side of a secured connection, by the keys of Kafka's clients: TLS with PEM stores.

security.protocol                       PLAINTEXT or SSL
ssl.truststore.location, .certificates  trusted certificates, as a file or as text; else those of the system
ssl.keystore.location                   the client's own key and certificate in one file; ssl.key.password
ssl.endpoint.identification.algorithm   empty: the certificate need not name the host
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.client.wire import ClientError

if TYPE_CHECKING:
    import ssl

PROTOCOL_KEY = "security.protocol"
PLAINTEXT, SSL = "PLAINTEXT", "SSL"
KEYS = frozenset(
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
"""The keys that are understood."""


class Security:
    """Protocol and stores of a client. Raises ClientError for what is not understood."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties
        self.protocol = properties.get(PROTOCOL_KEY, PLAINTEXT).upper()
        if self.protocol not in (PLAINTEXT, SSL):
            raise ClientError(f"{PROTOCOL_KEY}={self.protocol}: expected {PLAINTEXT} or {SSL}")
        for store in ("truststore", "keystore"):
            kind = properties.get(f"ssl.{store}.type", "PEM").upper()
            if kind != "PEM":
                raise ClientError(f"ssl.{store}.type={kind}: expected PEM")
        self._context: ssl.SSLContext | None = None

    def secure(self, plain: socket.socket, host: str) -> socket.socket:
        """Return the connection as the protocol wants it, after the handshake. Raises ClientError, OSError."""
        if self.protocol == PLAINTEXT:
            return plain
        import ssl

        if self._context is None:
            self._context = self._build_context()
        try:
            return self._context.wrap_socket(plain, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise ClientError(f"the certificate of {host} is not trusted: {error.verify_message}") from error

    def _build_context(self) -> ssl.SSLContext:
        import ssl

        given = self._properties
        context = ssl.create_default_context(
            cafile=given.get("ssl.truststore.location"), cadata=given.get("ssl.truststore.certificates")
        )
        if given.get("ssl.endpoint.identification.algorithm", "https") == "":
            context.check_hostname = False
        keystore = given.get("ssl.keystore.location")
        if keystore is not None:
            context.load_cert_chain(keystore, password=given.get("ssl.key.password", ""))
        return context
