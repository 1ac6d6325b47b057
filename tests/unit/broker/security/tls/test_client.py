"""The TLS context of a broker's connections: which changes and errors of its stores it survives."""

from __future__ import annotations

import errno
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Authority, Certificates
from tidelog.broker.config.keys.security import listener_values
from tidelog.broker.security.tls import stores
from tidelog.broker.security.tls.client import TlsClient, build_client_context
from tidelog.protocol.config_def import ConfigError

NO_DESCRIPTOR = OSError(errno.EMFILE, "Too many open files")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def values_of(trusted: Path, **texts: str) -> Mapping[str, Any]:
    return listener_values({"ssl.truststore.type": "PEM", "ssl.truststore.location": str(trusted), **texts}, "INSIDE")


def names_of(context: ssl.SSLContext) -> list[str]:
    """Return the common names of the trusted authorities."""
    return [dict(part[0] for part in one["subject"])["commonName"] for one in context.get_ca_certs()]  # type: ignore[misc]


def fail(*_: object, **__: object) -> Any:
    raise NO_DESCRIPTOR


@pytest.mark.parametrize("where", ["the store's file", "the copy in memory"])
def test_a_passing_error_keeps_the_old_stores_only_while_it_lasts(
    where: str,
    tmp_path: Path,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The files may not change for a year, and the old authority may be one that is not trusted any more."""
    store = tmp_path / "store.pem"
    store.write_text(certificates.authority.certificate.read_text())
    values = values_of(store, **client_texts(certificates))
    client = TlsClient("INSIDE", values)
    old = names_of(client.context(values))
    store.write_text(Authority(tmp_path, "other").certificate.read_text() + "\n")
    with monkeypatch.context() as patch:
        if where == "the store's file":
            patch.setattr(stores, "open", fail, raising=False)
        else:
            patch.setattr("os.memfd_create", fail)
        for _ in range(3):
            assert names_of(client.context(values)) == old
    assert caplog.text.count("connections to listeners INSIDE keep their stores") == 1
    assert "Too many open files" in caplog.text
    assert names_of(client.context(values)) != old


def client_texts(certificates: Certificates) -> dict[str, str]:
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificates.client.pem)}


def test_a_store_that_cannot_be_used_is_read_once(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store.pem"
    store.write_text(certificates.authority.certificate.read_text())
    values = values_of(store)
    client = TlsClient("INSIDE", values)
    store.write_text("-----BEGIN CERTIFICATE-----\nbroken\n-----END CERTIFICATE-----\n")
    reads = count_reads(monkeypatch)
    for _ in range(3):
        client.context(values)
    assert len(reads) == 1
    assert caplog.text.count("keep their stores") == 1


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the key of each store's file that is read."""
    reads: list[str] = []
    read: Callable[[str, str], bytes] = stores.read_store

    def read_and_note(key: str, location: str) -> bytes:
        reads.append(key)
        return read(key, location)

    monkeypatch.setattr(stores, "read_store", read_and_note)
    return reads


def test_a_certificate_chain_without_its_key_is_refused(certificates: Certificates) -> None:
    """The broker would show no certificate, although one is given."""
    chain = certificates.client.certificate.read_text()
    texts = {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain}
    with pytest.raises(ConfigError, match="key and chain together"):
        build_client_context(values_of(certificates.authority.certificate, **texts))
