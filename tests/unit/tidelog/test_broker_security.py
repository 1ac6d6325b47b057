"""Security of brokers for tests: ACLs as text, refusals, and the configuration of the broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tidelog
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.sources import parse_properties
from tidelog.broker.security.sasl.listener import SaslListener
from tidelog.broker.security.sasl.mechanism import Reply
from tidelog.broker_security import SecuredBroker, Security, parse_rule
from tidelog.client.admin.acls import Acl
from tidelog.private_files import write_properties


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("read topic orders", Acl("topic", "orders", "literal", "User:ann", "*", "read", "allow")),
        ("DENY Write TOPIC *", Acl("topic", "*", "literal", "User:ann", "*", "write", "deny")),
        ("all group team-*", Acl("group", "team-", "prefixed", "User:ann", "*", "all", "allow")),
        ("alter cluster", Acl("cluster", "kafka-cluster", "literal", "User:ann", "*", "alter", "allow")),
        ("allow write transactional-id x", Acl("transactional-id", "x", "literal", "User:ann", "*", "write", "allow")),
    ],
)
def test_a_rule_is_written_in_words(rule: str, expected: Acl) -> None:
    assert parse_rule("ann", rule) == expected


@pytest.mark.parametrize("rule", ["", "read", "read topic", "eat topic x", "read table x", "read topic x y", "deny"])
def test_a_rule_that_cannot_be_read_is_refused_when_it_is_written(rule: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Security(users={"ann": "a"}, acls={"ann": [rule]})


def test_contradictory_settings_are_refused() -> None:
    assert tidelog.Security is Security
    choices: list[dict[str, Any]] = [{"mechanism": "GSSAPI"}, {"tls": False}, {"acls": {}}]
    for wrong in choices:
        with pytest.raises(ValueError, match=r"expected|need"):
            Security(**wrong)


@pytest.mark.parametrize("name", ["java", "librdkafka", "kafka_python", "aiokafka"])
@pytest.mark.parametrize("user", ["", "bob"])
def test_settings_of_an_unknown_user_say_who_is_known(tmp_path: Path, name: str, user: str) -> None:
    secured = SecuredBroker(Security(users={"ann": "a", "eve": "e"}, tls=False), tmp_path)
    with pytest.raises(ValueError, match=rf"user '{user}': expected one of .*: 'ann', 'eve'$"):
        getattr(secured, name)(user)


def test_the_broker_parses_the_written_users(tmp_path: Path) -> None:
    users = {"ann": 'p "a\\ss; word', 'o\'x "y"': "x", "ä": "ü\n"}
    secured = SecuredBroker(Security(users=users, acls={}, super_users=["ann"]), tmp_path)
    write_properties(tmp_path / "server.properties", secured.texts({"num.partitions": "3"}))
    texts = parse_properties((tmp_path / "server.properties").read_text(encoding="utf-8"))
    config = BrokerConfig(texts)
    assert config.get_int("num.partitions") == 3
    assert config.get_str("super.users").endswith(";User:ann")
    listener = SaslListener("SASL_SSL", config.listener_texts(), lambda *_: None)
    for user, password in users.items():
        shown = f"\0{user}\0{password}".encode()
        assert listener.mechanisms["PLAIN"]().evaluate(shown) == Reply(b"", user)
