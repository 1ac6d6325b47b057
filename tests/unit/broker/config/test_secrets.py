"""References to secrets: each provider, the files it may read, and that no secret is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.description import ConfigDescriber, DynamicTexts
from tidelog.broker.config.secrets import HIDDEN, MAX_BYTES, resolve
from tidelog.client.settings import load_settings
from tidelog.protocol.config_def import ConfigError

PACKAGE = "org.apache.kafka.common.config.provider."


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    (tmp_path / "kafka.properties").write_text("password=s3=cret\nwith\\:colon=x\n")
    (tmp_path / "token").write_text("mounted\n")
    (tmp_path / "key.pem").write_text("-----BEGIN X-----\na\n-----END X-----\n")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${file:DIR/kafka.properties:password}", "s3=cret"),
        ("${file:DIR/kafka.properties:with:colon}", "x"),
        ("${dir:DIR:token}", "mounted"),
        ("${dir:DIR/:key.pem}", "-----BEGIN X-----\na\n-----END X-----"),
        ("${env:WORD}", "word"),
        ("a ${env:WORD} and ${env:WORD}${dir:DIR:token}.", "a word and wordmounted."),
        ("${env:NESTED}", "${env:WORD}"),
        ("${other:x}", "${other:x}"),
        ("${env}", "${env}"),
        ("$1 {x} $", "$1 {x} $"),
    ],
)
def test_a_reference_is_replaced_by_its_secret(secrets: Path, text: str, expected: str) -> None:
    environment = {"WORD": "word", "NESTED": "${env:WORD}"}
    found = resolve({"ssl.key.password": text.replace("DIR", str(secrets)), "plain": "1"}, environment)
    assert found.texts == {"ssl.key.password": expected, "plain": "1"}
    assert found.keys == ({"ssl.key.password"} if "${" in text and expected not in text else frozenset())


@pytest.mark.parametrize(
    "text",
    [
        "${file:DIR/none:password}", "${file:DIR/kafka.properties:none}", "${file::password}", "${file:DIR:x}",
        "${dir:DIR:none}", "${dir:DIR:../x}", "${dir:DIR:..}", "${dir:DIR:}", "${dir:DIR:sub/token}", "${env:NONE}",
        "${env:x:WORD}", "${dir:DIR:binary}", "${dir:DIR:huge}", "${file:DIR/broken:x}",
    ],
)  # fmt: skip
def test_a_secret_that_is_not_there_refuses_the_start(secrets: Path, text: str) -> None:
    (secrets / "binary").write_bytes(b"\xff\xfe")
    (secrets / "huge").write_bytes(b"x" * (MAX_BYTES + 1))
    (secrets / "broken").write_text("x=\\u00zz\n")
    with pytest.raises(ConfigError, match=r"^sasl.jaas.config: \$\{"):
        resolve({"sasl.jaas.config": text.replace("DIR", str(secrets))}, {"WORD": "word"})


def test_providers_may_have_other_names_and_limits(secrets: Path) -> None:
    texts = {
        "config.providers": "vault, vars",
        "config.providers.vault.class": f"{PACKAGE}DirectoryConfigProvider",
        "config.providers.vault.param.allowed.paths": f"/none,{secrets}",
        "config.providers.vars.class": f"{PACKAGE}EnvVarConfigProvider",
        "config.providers.vars.param.allowlist.pattern": "TIDELOG_.*",
    }
    environment = {"TIDELOG_A": "a", "HOME": "/root"}
    good = {"a": f"${{vault:{secrets}:token}}", "b": "${vars:TIDELOG_A}", "c": "${env:HOME}"}
    found = resolve(texts | good, environment).texts
    assert [found[key] for key in "abc"] == ["mounted", "a", "${env:HOME}"]
    (secrets / "link").symlink_to("/etc")
    for bad in ("${vault:/etc:hostname}", f"${{vault:{secrets}/link:hostname}}", "${vars:HOME}"):
        with pytest.raises(ConfigError):
            resolve(texts | {"a": bad}, environment)


@pytest.mark.parametrize(
    "texts",
    [
        {"config.providers": "x"},
        {"config.providers": "x", "config.providers.x.class": "com.evil.Provider"},
        {
            "config.providers": "x",
            "config.providers.x.class": f"{PACKAGE}EnvVarConfigProvider",
            "config.providers.x.param.allowlist.pattern": "(",
        },
        {
            "config.providers": "x",
            "config.providers.x.class": f"{PACKAGE}EnvVarConfigProvider",
            "config.providers.x.param.allowlist.pattern": "(" * 5000 + ")" * 5000,
        },
    ],
)
def test_another_provider_refuses_the_start(texts: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"config\.providers"):
        resolve(texts | {"a": "${x:b}"}, {})


def described(config: BrokerConfig, key: str) -> list[object]:
    entry = ConfigDescriber(config, DynamicTexts()).broker("1", [key])[0]
    return [entry.value, entry.is_sensitive, [synonym.value for synonym in entry.synonyms]]


def test_a_resolved_secret_is_not_described(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("log.retention.ms=${env:MS}\nnum.partitions=3\nconfig.providers.x.param.y=1\n")
    config = BrokerConfig.load(str(path), {"MS": "12345"})
    assert config.get_int("log.retention.ms") == 12345
    assert described(config, "log.retention.ms")[:2] == [None, True]
    assert "12345" not in str(described(config, "log.retention.ms"))
    assert described(config, "num.partitions")[:2] == ["3", False]
    assert config.unknown_keys == []


@pytest.mark.parametrize("name", ["", "1"])
@pytest.mark.parametrize(
    "key", ["ssl.keystore.password", "sasl.jaas.config", "listener.name.internal.ssl.key.password"]
)
def test_a_sensitive_value_is_in_no_description_whoever_set_it(key: str, name: str) -> None:
    """Apache Kafka's controllers accept such keys for all brokers, and a member has them in its image."""
    texts = DynamicTexts()
    texts.set_cluster({key: "topsecret"})
    texts.set_node({key: "topsecret"})
    entries = ConfigDescriber(BrokerConfig({key: "topsecret"}), texts).broker(name, [key])
    assert [entry.name for entry in entries] == [key]
    assert "topsecret" not in repr(entries)


@pytest.mark.parametrize("text", ["log.retention.ms=${env:BAD}", "listeners=X://${env:BAD}:1,${env:BAD}"])
def test_a_resolved_secret_is_in_no_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "server.properties"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.load(str(path), {"BAD": "topsecret"})
    assert "topsecret" not in str(refused.value)
    assert HIDDEN in str(refused.value)


@pytest.mark.parametrize(
    "secret", ["top'sec\"ret", "top\\secret", " topsecret ", "top\nsecret", "topsecret,more", "tOpsecret"]
)
@pytest.mark.parametrize("key", ["num.partitions", "listeners", "log.cleanup.policy", "listener.security.protocol.map"])
def test_no_other_form_of_a_secret_is_in_an_error(key: str, secret: str) -> None:
    """Errors quote a value, or a part of a list, stripped and in capitals, as it was parsed."""
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.load(environment={"BAD": secret}, overrides=[f"{key}=${{env:BAD}}"])
    assert "top" not in str(refused.value).lower()
    assert HIDDEN in str(refused.value)


def test_an_error_in_a_file_of_secrets_quotes_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("password=\\usecret\n")
    with pytest.raises(ConfigError) as refused:
        resolve({"a": f"${{file:{tmp_path}/secrets:password}}"}, {})
    assert "secr" not in str(refused.value).replace(str(tmp_path / "secrets"), "")


def test_a_profile_of_commands_has_references_too(tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    profile.write_text("bootstrap.servers=${env:WHERE}\n")
    assert load_settings(None, str(profile), 1, {"WHERE": "there:1"}).bootstrap == "there:1"
