"""Keystores and TLS contexts: formats, protocols, and refusals of the start in one line that names the key."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.certificates import PASSWORD, Certificates, openssl
from tests.support.tls import TlsPair, client_context, server_context
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.keys.security import listener_values
from tidelog.broker.security.tls.contexts import TLS12_SUITES, TLS13_SUITES, build_context
from tidelog.broker.security.tls.listener import TlsListener
from tidelog.broker.security.tls.stores import key_store_of_pkcs12, read_key_store, trust_store_of_pkcs12
from tidelog.protocol.config_def import ConfigError


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def build(texts: dict[str, str]) -> ssl.SSLContext:
    values = listener_values(texts, "SSL")
    return build_context(values, read_key_store(values))


def assert_serves(context: ssl.SSLContext, certificates: Certificates) -> TlsPair:
    pair = TlsPair(context, client_context(certificates.authority.certificate))
    pair.close()
    return pair


def test_a_pem_file_holds_key_and_chain(certificates: Certificates) -> None:
    assert_serves(server_context(certificates), certificates)


def test_key_and_chain_may_be_values(certificates: Certificates) -> None:
    texts = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": certificates.server.key.read_text(),
        "ssl.keystore.certificate.chain": certificates.server.certificate.read_text(),
    }
    assert_serves(build(texts), certificates)


def test_a_key_may_have_a_password(certificates: Certificates, tmp_path: Path) -> None:
    locked = tmp_path / "locked.pem"
    text = openssl("pkcs8", "-topk8", "-in", certificates.server.key, "-passout", "pass:secret")
    locked.write_text(text + certificates.server.certificate.read_text())
    texts = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(locked)}
    assert_serves(build({**texts, "ssl.key.password": "secret"}), certificates)
    for wrong in ({}, {"ssl.key.password": "wrong"}):
        with pytest.raises(ConfigError, match="password that opens it"):
            build({**texts, **wrong})


@pytest.mark.parametrize("convert", [key_store_of_pkcs12, trust_store_of_pkcs12])
def test_a_pkcs12_file_without_cryptography_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, convert: Callable[[str, bytes, str], object]
) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r"pip install tidelog\[tls\]"):
        convert("store.p12", b"\x30", "secret")


@pytest.mark.parametrize("kind", ["PKCS12", "JKS"])
def test_a_pkcs12_file_is_read_also_under_kafkas_default_type(certificates: Certificates, kind: str) -> None:
    pytest.importorskip("cryptography", reason="pip install tidelog[tls]")
    texts = {
        "ssl.keystore.type": kind,
        "ssl.keystore.location": str(certificates.server.export(certificates.authority.certificate)),
        "ssl.keystore.password": PASSWORD,
    }
    assert_serves(build(texts), certificates)
    with pytest.raises(ConfigError, match="password opens") as refused:
        build({**texts, "ssl.keystore.password": "wrong"})
    assert "wrong" not in str(refused.value)


def test_a_prefixed_key_is_for_its_listener_alone(certificates: Certificates) -> None:
    texts = certificates.server_texts() | {
        "listener.name.inner.ssl.client.auth": "required",
        "listener.name.inner.ssl.keystore.location": str(certificates.client.pem),
    }
    assert TlsListener("SSL", texts).context.verify_mode is ssl.CERT_NONE
    assert TlsListener("INNER", texts).context.verify_mode is ssl.CERT_REQUIRED


def test_by_default_only_tls_1_2_and_1_3_with_aead_suites_are_offered(certificates: Certificates) -> None:
    context = server_context(certificates)
    assert (context.minimum_version, context.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    names = {cipher["name"] for cipher in context.get_ciphers()}
    assert names >= {"TLS_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES128-GCM-SHA256"}
    assert all("GCM" in name or "CHACHA" in name for name in names)
    assert all(name.startswith(("TLS_", "ECDHE-")) for name in names)
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION


@pytest.mark.parametrize(
    ("protocols", "suites", "lowest", "highest"),
    [
        ("TLSv1.2", "", "1.2", "1.2"),
        ("TLSv1.3", "", "1.3", "1.3"),
        ("TLSv1.2,TLSv1.3", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "1.2", "1.2"),
        ("TLSv1.2,TLSv1.3", ",".join(sorted(TLS13_SUITES)), "1.3", "1.3"),
        ("TLSv1.2,TLSv1.3", ",".join([*sorted(TLS13_SUITES), "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]), "1.2", "1.3"),
    ],
)
def test_suites_narrow_the_versions(
    certificates: Certificates, protocols: str, suites: str, lowest: str, highest: str
) -> None:
    context = server_context(certificates, ssl_enabled_protocols=protocols, ssl_cipher_suites=suites)
    numbers = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
    assert (context.minimum_version, context.maximum_version) == (numbers[lowest], numbers[highest])


def all_ciphers() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


@pytest.mark.parametrize("suite", sorted(TLS12_SUITES))
def test_every_suite_of_the_table_is_known_to_openssl_or_refused(certificates: Certificates, suite: str) -> None:
    known = {cipher["name"] for cipher in all_ciphers().get_ciphers()}
    if TLS12_SUITES[suite] not in known:
        with pytest.raises(ConfigError, match=suite):
            server_context(certificates, ssl_cipher_suites=suite)
        return
    context = server_context(certificates, ssl_cipher_suites=suite)
    chosen = [cipher["name"] for cipher in context.get_ciphers() if not cipher["name"].startswith("TLS_")]
    assert chosen == [TLS12_SUITES[suite]]


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ({"ssl.keystore.location": ""}, "ssl.keystore.location"),
        ({"ssl.keystore.location": "/nowhere"}, "No such file"),
        ({"ssl.keystore.type": "BKS"}, "ssl.keystore.type"),
        ({"ssl.keystore.key": "x"}, "together"),
        ({"ssl.cipher.suites": "TLS_RSA_WITH_RC4_128_MD5"}, "TLS_RSA_WITH_RC4_128_MD5"),
        ({"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}, "Python cannot narrow"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "ssl.enabled.protocols"),
        ({"ssl.enabled.protocols": ""}, "ssl.enabled.protocols"),
        ({"ssl.client.auth": "maybe"}, "ssl.client.auth"),
        ({"ssl.engine.factory.class": "com.example.Factory"}, "ssl.engine.factory.class"),
        ({"ssl.truststore.location": "/nowhere", "ssl.client.auth": "required"}, "ssl.truststore.location"),
    ],
)
def test_an_unusable_store_or_setting_refuses_the_start(
    certificates: Certificates, texts: dict[str, str], named: str
) -> None:
    with pytest.raises(ConfigError, match=named) as refused:
        TlsListener("SSL", {**certificates.server_texts(), **texts})
    assert "\n" not in str(refused.value)


def test_a_key_of_another_certificate_refuses_the_start(certificates: Certificates) -> None:
    with pytest.raises(ConfigError, match="belong together"):
        build({
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": certificates.client.key.read_text(),
            "ssl.keystore.certificate.chain": certificates.server.certificate.read_text(),
        })  # fmt: skip


def test_a_jks_file_is_refused_with_the_command_that_converts_it(certificates: Certificates, tmp_path: Path) -> None:
    store = tmp_path / "old.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed" + bytes(100))
    with pytest.raises(ConfigError, match="importkeystore"):
        build({"ssl.keystore.location": str(store)})


def test_an_ssl_listener_is_served_and_its_keys_are_known(certificates: Certificates) -> None:
    config = BrokerConfig({"listeners": "SSL://:0", "listener.name.ssl.ssl.client.auth": "required",
                           **certificates.server_texts()})  # fmt: skip
    assert config.unknown_keys == []
    assert listener_values(config.listener_texts(), "SSL")["ssl.client.auth"] == "required"


def test_passwords_are_not_shown(certificates: Certificates) -> None:
    values = listener_values({**certificates.server_texts(), "ssl.key.password": "secret"}, "SSL")
    assert "secret" not in repr(values)
