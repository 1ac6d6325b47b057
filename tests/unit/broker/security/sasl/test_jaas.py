"""JAAS texts: parsed as by Java, and never shown."""

from __future__ import annotations

import pytest

from tidelog.broker.security.sasl.jaas import PLAIN_MODULE, SCRAM_MODULE, parse_jaas
from tidelog.broker.security.sasl.listener import SaslListener
from tidelog.broker.security.sasl.mechanism import Reply
from tidelog.protocol.config_def import ConfigError


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"{PLAIN_MODULE} required;", {}),
        (f'{PLAIN_MODULE} required user_ann="secret";', {"user_ann": "secret"}),
        (f"{PLAIN_MODULE} REQUIRED user_ann='se;cret' ;", {"user_ann": "se;cret"}),
        (
            f'{PLAIN_MODULE} required\n  user_ann="a=b"\n  user_b="\\"q\\" \\\\";',
            {"user_ann": "a=b", "user_b": '"q" \\'},
        ),
        (f'{PLAIN_MODULE} optional user_x = word // comment\n /* "more" */ ;', {"user_x": "word"}),
        (f'{PLAIN_MODULE} sufficient user_ann="";', {"user_ann": ""}),
    ],
)
def test_a_text_is_a_module_and_its_options(text: str, options: dict[str, str]) -> None:
    assert parse_jaas(text) == (PLAIN_MODULE, options)


@pytest.mark.parametrize(
    "text",
    [
        "", ";", "Module;", "Module required", "Module needed;", 'Module required user_a="secret"',
        'Module required user_a="secret;', 'Module required user_a "secret";', "Module required user_a=;",
        'Module required user_a="secret"; Module required;', 'Module required ="secret";',
    ],
)  # fmt: skip
def test_a_text_that_cannot_be_read_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config") as refused:
        parse_jaas(text)
    assert "secret" not in str(refused.value)


JNDI = 'com.sun.security.auth.module.JndiLoginModule required user.provider.url="ldap://x";'


def listener(**texts: str) -> SaslListener:
    return SaslListener(
        "OUT", {key.replace("__", "-").replace("_", "."): value for key, value in texts.items()}, lambda *_: None
    )


def test_the_text_of_a_mechanism_of_a_listener_wins() -> None:
    text = f'{PLAIN_MODULE} required user_ann="secret";'
    built = listener(
        sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-256",
        listener_name_out_plain_sasl_jaas_config=text,
        sasl_jaas_config=f"{SCRAM_MODULE} required;",
    )
    assert built.mechanisms["PLAIN"]().evaluate(b"\0ann\0secret") == Reply(b"", "ann")
    assert list(built.mechanisms) == ["PLAIN", "SCRAM-SHA-256"]


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ({}, "GSSAPI"),
        ({"sasl_enabled_mechanisms": ""}, "sasl.enabled.mechanisms"),
        ({"sasl_enabled_mechanisms": "PLAIN,LDAP", "sasl_jaas_config": f"{PLAIN_MODULE} required;"}, "LDAP"),
        ({"sasl_enabled_mechanisms": "PLAIN"}, "user_NAME"),
        ({"sasl_enabled_mechanisms": "PLAIN", "sasl_jaas_config": f"{SCRAM_MODULE} required;"}, "PlainLoginModule"),
        ({"sasl_enabled_mechanisms": "SCRAM-SHA-512", "sasl_jaas_config": JNDI}, "ScramLoginModule"),
        ({"sasl_enabled_mechanisms": "PLAIN", "sasl_server_callback_handler_class": "x.Y"}, "callback.handler"),
        ({"sasl_enabled_mechanisms": "OAUTHBEARER"}, "OAUTHBEARER"),
    ],
)  # fmt: skip
def test_unusable_sasl_settings_refuse_the_start(texts: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        listener(**texts)
