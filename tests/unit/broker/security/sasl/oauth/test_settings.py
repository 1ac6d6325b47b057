"""The token check that a configuration selects: refusals at the start, and the source of the keys."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support.issuer import AUDIENCE, ISSUER, Endpoint, Issuer, unsecured, write_keys
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.broker_config import Endpoint as Listener
from tidelog.broker.config.keys.security import SECURED_HANDLER, UNSECURED_HANDLER
from tidelog.broker.security.policy import find_weaknesses
from tidelog.broker.security.sasl.listener import check_listener
from tidelog.broker.security.sasl.oauth.server import TokenRefusedError
from tidelog.broker.security.sasl.oauth.settings import FIRST_KEYS_S, SignedTokenCheck, build_tokens
from tidelog.protocol.config_def import ConfigError

HANDLER = "sasl.server.callback.handler.class"
URL = "sasl.oauthbearer.jwks.endpoint.url"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed"
OWN = {"sasl.enabled.mechanisms": "OAUTHBEARER", HANDLER: SECURED_HANDLER}


def check(host: str = "127.0.0.1", **texts: str) -> None:
    check_listener(Listener("OUT", "SASL_SSL", host, 9092), texts)


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ({HANDLER: ""}, "OAuthBearerValidatorCallbackHandler"),
        ({URL: ""}, "without keys no token proves anything"),
        ({URL: "http://issuer.test/keys"}, "https or file"),
        ({URL: "ftp://issuer.test/keys"}, "https or file"),
        ({URL: "https:///keys"}, "https or file"),
        *(({URL: url}, "https or file") for url in (
            "https://issuer.test:x/keys", "https://issuer.test:99999/keys", "https://[::1/keys", "file:///%00",
            "https://issuer.test/\u00e9", "https://issuer.test/a b", f"https://{'a' * 70}/keys",
        )),
        ({URL: "https://svc:s3cret@issuer.test/keys"}, "without a login"),
        ({URL: "http://svc:s3cret@127.0.0.1/keys"}, "without a login"),
        ({URL: "https://svc@issuer.test/keys"}, "without a login"),
        ({URL: "https://issuer.test/keys", f"{ALLOWED}.urls": "https://other.test/keys"}, "allowed.urls"),
        ({URL: "file:///etc/passwd", f"{ALLOWED}.files": "/etc/keys"}, "allowed.files"),
        ({URL: "file:///k", "sasl.jaas.config": "com.sun.JndiLoginModule required;"}, "OAuthBearerLoginModule"),
        ({URL: "file:///k", "sasl.jaas.config": f'{MODULE} required ssl.truststore.location="/none";'}, "truststore"),
        ({URL: "file:///k", "sasl.oauthbearer.jwt.validator.class": "x.Y"}, "validator"),
        (
            {HANDLER: UNSECURED_HANDLER, "sasl.jaas.config": f"{MODULE} required "
             'unsecuredValidatorAllowableClockSkewMs="x";'}, "ClockSkewMs",
        ),
    ],
)  # fmt: skip
def test_settings_that_allow_no_check_refuse_the_start(texts: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        check(**OWN | texts)


@pytest.mark.parametrize(
    "url",
    [
        "https://svc:s3cret@issuer.test/keys",
        "https://svc:s3cret@issuer.test:x/keys",
        "https://svc:s3cret/2@issuer.test/keys",
        "https://svc:s3cret?2@issuer.test/keys",
        "ftp://svc:s3cret@issuer.test/keys",
        "http://issuer.test/keys?key=s3cret",
    ],
)
def test_a_refused_url_is_shown_without_its_secrets(url: str) -> None:
    for more in ({}, {f"{ALLOWED}.urls": "https://other.test/keys"}):
        with pytest.raises(ConfigError) as raised:
            check(**OWN | {URL: url} | more)
        assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    "texts",
    [
        {URL: "https://issuer.test/keys"},
        {URL: "https://issuer.test/keys?key=s3cret"},
        {URL: "https://issuer.test/keys", f"{ALLOWED}.urls": "https://x.test,https://issuer.test/keys"},
        {URL: "http://127.0.0.1:8080/keys"},
        {URL: "http://localhost/keys"},
        {"listener.name.out.oauthbearer." + URL: "file:///k", f"{ALLOWED}.files": "/k"},
        {HANDLER: UNSECURED_HANDLER},
    ],
)
def test_settings_that_allow_a_check_are_accepted(texts: dict[str, str]) -> None:
    check(**OWN | texts)


def test_unsecured_tokens_are_for_one_machine() -> None:
    with pytest.raises(ConfigError, match="this machine alone"):
        check("0.0.0.0", **OWN | {HANDLER: UNSECURED_HANDLER})


def test_a_handler_of_another_mechanism_refuses_the_start() -> None:
    texts = {"sasl.enabled.mechanisms": "SCRAM-SHA-256", f"listener.name.out.scram-sha-256.{HANDLER}": SECURED_HANDLER}
    with pytest.raises(ConfigError, match="callback"):
        check(**texts)


def test_without_the_extra_the_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr("tidelog.broker.security.sasl.oauth.settings.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"tidelog\[oauth\]"):
        check(**OWN | {URL: "file:///k"})


def test_the_keys_come_from_the_file_or_from_the_endpoint(tmp_path: Path) -> None:
    issuer = Issuer()
    token = issuer.token()
    with Endpoint(issuer) as endpoint:
        for url in (endpoint.url, write_keys(issuer, tmp_path / "keys")):
            tokens = build_tokens("OUT", OWN | {URL: url, "sasl.oauthbearer.expected.audience": f"x,{AUDIENCE}"})
            tokens.begin()
            try:
                assert tokens.validate(token).user == "ann"
                with pytest.raises(TokenRefusedError, match="audience"):
                    tokens.validate(issuer.token(aud="y"))
            finally:
                tokens.close()


def test_logins_do_not_each_wait_for_keys_that_do_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread checks the tokens, and tickets: an issuer that does not answer holds it for one wait, not for each."""
    waits: list[float] = []
    now_s = [100.0]
    tokens = build_tokens("OUT", OWN | {URL: f"file://{tmp_path}/none"})
    assert isinstance(tokens, SignedTokenCheck)
    monkeypatch.setattr("tidelog.broker.security.sasl.oauth.settings.monotonic", lambda: now_s[0])

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        now_s[0] += seconds
        return False

    monkeypatch.setattr(tokens, "_run", lambda: None)
    monkeypatch.setattr(tokens._ready, "wait", wait)
    tokens.begin()
    for _ in range(3):
        with pytest.raises(TokenRefusedError, match="not read yet"):
            tokens.validate("a.b.c")
    assert waits == [FIRST_KEYS_S, 0.0, 0.0]


def test_unsecured_tokens_have_no_keys() -> None:
    tokens = build_tokens("OUT", OWN | {HANDLER: UNSECURED_HANDLER})
    tokens.begin()
    assert tokens.validate(unsecured()).user == "ann"
    tokens.close()


@pytest.mark.parametrize(
    ("texts", "count"),
    [
        ({HANDLER: UNSECURED_HANDLER}, 1),
        ({URL: "file:///k"}, 2),
        ({URL: "file:///k", "sasl.oauthbearer.expected.issuer": ISSUER}, 1),
        ({URL: "file:///k", "sasl.oauthbearer.expected.issuer": ISSUER, "sasl.oauthbearer.expected.audience": "x"}, 0),
    ],
)
def test_tokens_of_any_audience_or_issuer_are_a_weakness(texts: dict[str, str], count: int) -> None:
    config = BrokerConfig({
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0", "authorizer.class.name":
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer", **OWN, **texts,
    })  # fmt: skip
    assert len(find_weaknesses(config)) == count


def test_kafkas_system_properties_are_read() -> None:
    options = f'-Xmx1g -D{ALLOWED}.urls=https://issuer.test/keys "-D{ALLOWED}.files=/k" -Dlog.dirs=/evil'
    config = BrokerConfig.load(environment={"KAFKA_OPTS": options})
    assert config.get_list(f"{ALLOWED}.urls") == ["https://issuer.test/keys"]
    assert config.get_list(f"{ALLOWED}.files") == ["/k"]
    assert config.get("log.dirs") is None
