"""Keystores and truststores: private key and certificates, read from configuration values or files.

PEM comes as values or in a file, PKCS12 in a file (read by ``cryptography``). A file whose type is JKS, Kafka's
default, is read if it holds PKCS12; Java's own JKS format is refused. Everything is converted to PEM, which OpenSSL
loads. Reading waits for the disk, so it is done in a worker thread, or at the start. Source:
Kafka's DefaultSslEngineFactory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from tidelog.protocol.config_def import ConfigError

STORE_FILES = ("ssl.keystore.location", "ssl.truststore.location")
KEY_STORE_KEYS = ("ssl.keystore.location", "ssl.keystore.key", "ssl.keystore.certificate.chain")
"""Keys of which each says that a keystore is given: the first alone, or the other two together."""
TYPE_KEYS = {"ssl.keystore": "ssl.keystore.type", "ssl.truststore": "ssl.truststore.type"}
_JKS_MAGIC = b"\xfe\xed\xfe\xed"
_PKCS12_TAG = b"\x30"
_JKS_HINT = (
    "PEM or PKCS12: `keytool -importkeystore -srckeystore FILE.jks -destkeystore FILE.p12 -deststoretype PKCS12` "
    "converts a JKS file"
)


class KeyStore(NamedTuple):
    """A private key and its certificate chain, in PEM form."""

    pem: bytes
    password: str


def read_key_store(values: Mapping[str, Any]) -> KeyStore:
    """Read the keystore of a listener. Raises ConfigError."""
    key, chain, location = (
        values["ssl.keystore.key"], values["ssl.keystore.certificate.chain"], values["ssl.keystore.location"]
    )  # fmt: skip
    password = values["ssl.key.password"] or ""
    if key or chain:
        if not (key and chain) or location:
            raise refuse("ssl.keystore.key", "[hidden]", "key and chain together, without ssl.keystore.location")
        return KeyStore(f"{key}\n{chain}\n".encode(), password)
    if not location:
        raise refuse("ssl.keystore.location", location, "a file with the listener's private key and certificate chain")
    data = read_store("ssl.keystore.location", location)
    if is_pem("ssl.keystore", values, data):
        return KeyStore(data, password)
    return KeyStore(key_store_of_pkcs12(location, data, values["ssl.keystore.password"] or password), "")


def read_trust_store(values: Mapping[str, Any]) -> str | None:
    """Read trusted certificates in PEM form; return None if no store is given. Raises ConfigError."""
    certificates, location = values["ssl.truststore.certificates"], values["ssl.truststore.location"]
    if certificates:
        if location:
            raise refuse("ssl.truststore.certificates", "[hidden]", "certificates or ssl.truststore.location, not both")
        return str(certificates)
    if not location:
        return None
    data = read_store("ssl.truststore.location", location)
    if is_pem("ssl.truststore", values, data):
        return data.decode("ascii", "replace")
    return trust_store_of_pkcs12(location, data, values["ssl.truststore.password"])


def read_store(key: str, location: str) -> bytes:
    """Read the bytes of a store's file. Raises ConfigError."""
    try:
        with open(location, "rb") as file:
            return file.read()
    except OSError as error:
        raise refuse(key, location, f"a file that can be read ({error.strerror})") from error


def is_pem(prefix: str, values: Mapping[str, Any], data: bytes) -> bool:
    """Return whether the store's type is PEM. Raises ConfigError unless the content then is PEM, or else PKCS12."""
    kind, location = values[TYPE_KEYS[prefix]], values[f"{prefix}.location"]
    if kind == "PEM":
        if b"-----BEGIN " not in data:
            raise refuse(f"{prefix}.location", location, "a PEM file, as its type says")
        return True
    if data.startswith(_JKS_MAGIC):
        raise refuse(f"{prefix}.location", location, _JKS_HINT)
    if not data.startswith(_PKCS12_TAG):
        raise refuse(f"{prefix}.location", location, f"a PKCS12 file, or {prefix}.type=PEM")
    return False


def key_store_of_pkcs12(location: str, data: bytes, password: str) -> bytes:
    """Convert key and chain of a PKCS12 file to PEM. Raises ConfigError."""
    store = load_pkcs12("ssl.keystore.location", location, data, password)
    from cryptography.hazmat.primitives import serialization as form

    if store.key is None or store.cert is None:
        raise refuse("ssl.keystore.location", location, "a file with a private key and its certificate")
    key: bytes = store.key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    chain = [store.cert, *store.additional_certs]
    return key + b"".join(one.certificate.public_bytes(form.Encoding.PEM) for one in chain)


def trust_store_of_pkcs12(location: str, data: bytes, password: str | None) -> str:
    """Convert certificates of a PKCS12 file to PEM. Raises ConfigError."""
    store = load_pkcs12("ssl.truststore.location", location, data, password)
    from cryptography.hazmat.primitives.serialization import Encoding

    found = [one for one in (store.cert, *store.additional_certs) if one is not None]
    return b"".join(one.certificate.public_bytes(Encoding.PEM) for one in found).decode()


def load_pkcs12(key: str, location: str, data: bytes, password: str | None) -> Any:
    """Load a PKCS12 file's content. Raises ConfigError, also if ``cryptography`` is not installed."""
    try:
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError as error:
        raise refuse(key, location, "PEM: PKCS12 needs `pip install tidelog[tls]`") from error
    try:
        return pkcs12.load_pkcs12(data, password.encode() if password else None)
    except ValueError as error:
        raise refuse(key, location, "a PKCS12 file that its password opens") from error


class FileStamp(NamedTuple):
    """Identity of a file's content, from the file's metadata."""

    modified_ns: int
    size: int
    inode: int


def stamps_of(values: Mapping[str, Any]) -> dict[str, FileStamp]:
    """Return the stamps of a listener's store files; a missing file has none. Call it in a worker thread."""
    stamps = {}
    for key in STORE_FILES:
        try:
            found = os.stat(values[key]) if values[key] else None
        except OSError:
            continue
        if found is not None:
            stamps[key] = FileStamp(found.st_mtime_ns, found.st_size, found.st_ino)
    return stamps


def refuse(key: str, value: object, allowed: str) -> ConfigError:
    """Build the error for an invalid value of a key."""
    return ConfigError(f"Invalid value {value!r} for configuration {key}; allowed: {allowed}")
