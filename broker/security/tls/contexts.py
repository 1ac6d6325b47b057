"""OpenSSL contexts of listeners: versions, cipher suites, key, and the certificates that verify the other side.

Only TLS 1.2 and 1.3; forward secrecy and authenticated encryption unless ``ssl.cipher.suites`` names other suites; no
compression, no renegotiation. Every certificate of the truststore is a trust anchor, even if it is not a root, as in
Java.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tidelog.broker.security.tls.revocation import revocation_flags
from tidelog.broker.security.tls.stores import KeyStore, read_trust_store, refuse
from tidelog.broker.security.tls.subject_names import MalformedCertificateError

DEFAULT_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
TLS13_SUITES = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"})
TLS12_SUITES = {
    f"TLS_{exchange}_WITH_{cipher}": f"{prefix}{name}"
    for exchange, prefix in (
        ("ECDHE_ECDSA", "ECDHE-ECDSA-"), ("ECDHE_RSA", "ECDHE-RSA-"), ("DHE_RSA", "DHE-RSA-"), ("RSA", "")
    )
    for cipher, name in (
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
        ("AES_256_CBC_SHA384", "AES256-SHA384"),
        ("AES_256_CBC_SHA256", "AES256-SHA256"),
        ("AES_128_CBC_SHA256", "AES128-SHA256"),
        ("AES_256_CBC_SHA", "AES256-SHA"),
        ("AES_128_CBC_SHA", "AES128-SHA"),
    )
}  # fmt: skip
"""IANA's name of a cipher suite, which Java uses -> OpenSSL's name."""
VERIFY_MODES = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def build_context(values: Mapping[str, Any], store: KeyStore) -> ssl.SSLContext:
    """Build the context of a listener with these values and this keystore. Reads files. Raises ConfigError, OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 1
    set_versions_and_suites(context, values["ssl.enabled.protocols"], values["ssl.cipher.suites"])
    load_key_store(context, store)
    set_client_checks(context, values)
    return context


def set_versions_and_suites(context: ssl.SSLContext, protocols: Sequence[str], suites: Sequence[str]) -> None:
    """Set the versions and the cipher suites: those of ``suites``, or DEFAULT_CIPHERS. Raises ConfigError."""
    versions = {ssl.TLSVersion.TLSv1_2} if "TLSv1.2" in protocols else set()
    versions |= {ssl.TLSVersion.TLSv1_3} if "TLSv1.3" in protocols else set()
    if suites:
        ciphers = [TLS12_SUITES[suite] for suite in suites if suite in TLS12_SUITES]
        versions -= set() if ciphers else {ssl.TLSVersion.TLSv1_2}
        versions -= set() if TLS13_SUITES.issubset(suites) else {ssl.TLSVersion.TLSv1_3}
        check_suites(suites)
    else:
        ciphers = [DEFAULT_CIPHERS]
    if not versions:
        raise refuse("ssl.cipher.suites", ",".join(suites), "at least one suite of ssl.enabled.protocols")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if ciphers:
        try:
            context.set_ciphers(":".join(ciphers))
        except ssl.SSLError as error:
            raise refuse("ssl.cipher.suites", ",".join(suites), "suites that this system's OpenSSL has") from error


def check_suites(suites: Sequence[str]) -> None:
    """Raise ConfigError for an unknown suite, and for some but not all suites of TLS 1.3."""
    unknown = sorted(set(suites) - TLS12_SUITES.keys() - TLS13_SUITES)
    if unknown:
        raise refuse("ssl.cipher.suites", ",".join(unknown), ", ".join(sorted({*TLS12_SUITES, *TLS13_SUITES})))
    if not TLS13_SUITES.isdisjoint(suites) and not TLS13_SUITES.issubset(suites):
        raise refuse(
            "ssl.cipher.suites", ",".join(suites), f"all of TLS 1.3 or none, since Python cannot narrow them: "
            f"{', '.join(sorted(TLS13_SUITES))}"
        )  # fmt: skip


def load_key_store(context: ssl.SSLContext, store: KeyStore) -> None:
    """Load key and chain, without writing them to a disk. Raises ConfigError, OSError."""
    try:
        with file_in_memory(store.pem) as path:
            context.load_cert_chain(path, password=lambda: store.password)
    except ssl.SSLError as error:
        what = "whose key and certificate belong together" if error.reason == "KEY_VALUES_MISMATCH" else "with a key"
        raise refuse("ssl.keystore", "[hidden]", f"a store {what}, and the password that opens it") from error


@contextmanager
def file_in_memory(data: bytes) -> Iterator[str]:
    """Give a path to bytes in memory, as OpenSSL reads some things only from files. Raises OSError."""
    with os.fdopen(os.memfd_create("store"), "wb", buffering=0) as file:
        file.write(data)
        yield f"/proc/self/fd/{file.fileno()}"


def set_client_checks(context: ssl.SSLContext, values: Mapping[str, Any]) -> None:
    """Set whether clients are asked for certificates, and how these are verified. Raises ConfigError, OSError."""
    context.verify_mode = VERIFY_MODES[values["ssl.client.auth"]]
    if context.verify_mode is ssl.CERT_NONE:
        return
    trust(context, values, ssl.Purpose.CLIENT_AUTH)


def trust(context: ssl.SSLContext, values: Mapping[str, Any], purpose: ssl.Purpose) -> None:
    """Verify the other side by the truststore's certificates, or by the system's if there is none. Raises
    ConfigError, OSError.
    """
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusted = read_trust_store(values)
    if trusted is None:
        context.load_default_certs(purpose)
        return
    try:
        load_trusted(context, trusted)
    except (ssl.SSLError, MalformedCertificateError) as error:
        raise refuse("ssl.truststore", "[hidden]", "a store of certificates and complete revocation lists") from error


def load_trusted(context: ssl.SSLContext, trusted: str) -> None:
    """Verify the other side by these certificates and revocation lists in PEM form.

    Raises OSError, such as ssl.SSLError, and MalformedCertificateError.
    """
    context.verify_flags |= revocation_flags(trusted)
    with file_in_memory(trusted.encode()) as path:
        context.load_verify_locations(path)  # ``cadata`` would ignore the revocation lists
