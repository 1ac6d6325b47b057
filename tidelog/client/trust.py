"""The certificates that a client trusts; brokers, admin interfaces and token issuers are verified in the same way.

Revocation lists beside the certificates are used, as in a broker's truststore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.client.wire import SettingsError

if TYPE_CHECKING:
    import ssl


def read_trusted(location: str | None, certificates: str | None) -> str | None:
    """Read the certificates and revocation lists of a store in PEM form; None if none is given.

    Raises SettingsError, OSError.
    """
    if location is not None and certificates is not None:
        raise SettingsError("ssl.truststore.certificates: expected certificates or ssl.truststore.location, not both")
    if location is None:
        return certificates
    with open(location, encoding="ascii", errors="replace") as file:
        return file.read()


def build_context(trusted: str | None) -> ssl.SSLContext:
    """Build a context that trusts these certificates, else those of the system. Raises SettingsError, OSError."""
    import ssl

    from tidelog.broker.security.tls.contexts import load_trusted
    from tidelog.broker.security.tls.subject_names import MalformedCertificateError

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if trusted is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return context
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in a broker: a store's certificates need no root
    try:
        load_trusted(context, trusted)
    except MalformedCertificateError as error:
        raise SettingsError(
            "ssl.truststore: expected certificates and complete revocation lists in PEM form"
        ) from error
    return context
