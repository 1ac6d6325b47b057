"""The check of a configuration's security at the start: each finding, and none for the usual configurations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.keys.authorizer import STANDARD_AUTHORIZER
from tidelog.broker.security.policy import find_weaknesses, is_loopback

AUTHORIZER = {"authorizer.class.name": STANDARD_AUTHORIZER}


def weaknesses(listeners: str, **texts: str) -> list[str]:
    given = {key.replace("_", "."): text for key, text in texts.items()}
    return find_weaknesses(BrokerConfig({"listeners": listeners, **given}))


@pytest.mark.parametrize(
    ("listeners", "texts"),
    [
        ("PLAINTEXT://127.0.0.1:1", {}),
        ("PLAINTEXT://0.0.0.0:1", {}),
        ("SSL://:1", {}),
        ("SASL_SSL://:1,PLAINTEXT://localhost:2", AUTHORIZER),
        ("SASL_PLAINTEXT://[::1]:1", AUTHORIZER),
        ("PLAINTEXT://:1", {"admin_authentication": "none"}),
        ("PLAINTEXT://:1", {"admin_listener": "", "admin_authentication": "none"}),
    ],
)
def test_usual_configurations_have_no_findings(listeners: str, texts: dict[str, str]) -> None:
    assert weaknesses(listeners, **texts) == []


@pytest.mark.parametrize(
    ("listeners", "texts", "finding"),
    [
        ("SASL_SSL://:1", {}, "without authorizer.class.name"),
        ("SSL://:1", {"ssl_client_auth": "required"}, "without authorizer.class.name"),
        ("SASL_PLAINTEXT://10.0.0.1:1", AUTHORIZER, "without TLS"),
        ("SASL_SSL://:1,PLAINTEXT://:2", AUTHORIZER, "PLAINTEXT is open to the network"),
        ("SSL://:1", {"ssl_client_auth": "requested", **AUTHORIZER}, "User:ANONYMOUS"),
        ("PLAINTEXT://:1", {"admin_listener": "0.0.0.0:9644", "admin_authentication": "none"}, "requires no login"),
        (
            "PLAINTEXT://:1",
            {"schema_registry_listener": "0.0.0.0:8081", "admin_authentication": "none"},
            "the schema registry is open to the network",
        ),
    ],
)
def test_each_weakness_is_found_alone(listeners: str, texts: dict[str, str], finding: str) -> None:
    (found,) = weaknesses(listeners, **texts)
    assert finding in found


@pytest.mark.parametrize(
    ("given", "claims"),
    [
        ({}, ["audience", "issuer"]),
        ({"expected_audience": "tidelog"}, ["issuer"]),
        ({"expected_issuer": "https://issuer.test"}, ["audience"]),
        ({"expected_issuer": "https://issuer.test", "expected_audience": "tidelog,kafka"}, []),
    ],
)
@pytest.mark.parametrize("methods", ["bearer", "basic,bearer"])
def test_the_admin_interface_is_for_tokens_that_were_made_for_it(
    given: dict[str, str], claims: list[str], methods: str
) -> None:
    keys = {"jwks_endpoint_url": "file:///keys", **given}
    texts = {f"admin_sasl_oauthbearer_{key}": text for key, text in keys.items()}
    found = weaknesses("PLAINTEXT://127.0.0.1:1", admin_authentication=methods, admin_listener="127.0.0.1:0", **texts)
    assert len(found) == len(claims)
    assert all(
        f"the admin interface: tokens of any {claim} are accepted" in line
        for claim, line in zip(claims, found, strict=True)
    )
    assert (
        weaknesses("PLAINTEXT://127.0.0.1:1", admin_authentication="none", admin_listener="127.0.0.1:0", **texts) == []
    )
    registry = {"admin_listener": "", "schema_registry_listener": "127.0.0.1:0"}
    assert weaknesses("PLAINTEXT://127.0.0.1:1", admin_authentication=methods, **registry, **texts) == [
        line.replace("the admin interface", "the schema registry") for line in found
    ]


@pytest.mark.parametrize(("mode", "is_found"), [(0o644, True), (0o640, False), (0o600, False)])
def test_a_private_key_is_for_its_owner(tmp_path: Path, mode: int, is_found: bool) -> None:
    store = tmp_path / "server.pem"
    store.touch()
    store.chmod(mode)
    found = weaknesses("SSL://:1", ssl_keystore_location=str(store))
    assert ["chmod 600" in finding for finding in found] == [True] * is_found


@pytest.mark.parametrize(("mode", "is_found"), [(0o644, True), (0o604, True), (0o640, False), (0o600, False)])
@pytest.mark.parametrize("prefix", ["", "file:"])
def test_a_keytab_is_for_its_owner(tmp_path: Path, mode: int, is_found: bool, prefix: str) -> None:
    keytab = tmp_path / "kafka.keytab"
    keytab.touch()
    keytab.chmod(mode)
    module = "com.sun.security.auth.module.Krb5LoginModule required"
    jaas = f'{module} useKeyTab=true keyTab="{prefix}{keytab}" principal="kafka/here@REALM";'
    key = "listener.name.sasl_ssl.gssapi.sasl.jaas.config"
    config = BrokerConfig({"listeners": "SASL_SSL://:1", "sasl.enabled.mechanisms": "GSSAPI", key: jaas, **AUTHORIZER})
    assert ["chmod 600" in finding for finding in find_weaknesses(config)] == [True] * is_found


@pytest.mark.parametrize(("mode", "is_found"), [(0o644, True), (0o600, False)])
def test_the_keytab_of_the_machine_is_for_its_owner_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_found: bool
) -> None:
    keytab = tmp_path / "kafka.keytab"
    keytab.touch()
    keytab.chmod(mode)
    monkeypatch.setenv("KRB5_KTNAME", f"FILE:{keytab}")
    key = "listener.name.sasl_ssl.gssapi.sasl.jaas.config"
    jaas = 'com.sun.security.auth.module.Krb5LoginModule required principal="kafka/here@REALM";'
    config = BrokerConfig({"listeners": "SASL_SSL://:1", "sasl.enabled.mechanisms": "GSSAPI", key: jaas, **AUTHORIZER})
    assert [f"chmod 600 {keytab}" in finding for finding in find_weaknesses(config)] == [True] * is_found


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_hosts_are_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "kafka.example.com"])
def test_other_hosts_are_the_network(host: str) -> None:
    assert not is_loopback(host)


def test_the_keystore_of_the_http_interfaces_is_for_its_owner(tmp_path: Path) -> None:
    store = tmp_path / "admin.pem"
    store.touch(mode=0o644)
    (found,) = weaknesses("PLAINTEXT://127.0.0.1:1", admin_ssl_keystore_location=str(store))
    assert f"chmod 600 {store}" in found
    store.chmod(0o600)
    assert weaknesses("PLAINTEXT://127.0.0.1:1", admin_ssl_keystore_location=str(store)) == []
