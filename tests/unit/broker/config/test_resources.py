"""Configs of topics, brokers, groups and client metrics: which values may be shown to people."""

from __future__ import annotations

import pytest

from tidelog.broker.config.resource_type import ResourceType
from tidelog.broker.config.resources import is_shown

TOPIC, BROKER, GROUP = ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (BROKER, "ssl.key.password"),
        (BROKER, "sasl.jaas.config"),
        (BROKER, "delegation.token.secret.key"),
        (BROKER, "listener.name.a.ssl.keystore.key"),
        (BROKER, "listener.name.a.ssl.truststore.certificates"),
        (BROKER, "listener.name.a.plain.sasl.jaas.config"),
        (BROKER, "listener.name.a.oauthbearer.sasl.oauthbearer.assertion.private.key.passphrase"),
        (BROKER, "listener.name.a.token"),
        (BROKER, "of.a.plugin"),
        (BROKER, ""),
        (TOPIC, "ssl.keystore.location"),
        (GROUP, "retention.ms"),
        (8, "kafka.network"),
        (99, "retention.ms"),
    ],
)
def test_passwords_and_values_of_unknown_keys_are_hidden(kind: int, key: str) -> None:
    assert not is_shown(kind, key)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (TOPIC, "retention.ms"),
        (BROKER, "log.retention.ms"),
        (BROKER, "ssl.keystore.location"),
        (BROKER, "listener.name.a.ssl.keystore.location"),
        (BROKER, "listener.name.a.oauthbearer.sasl.oauthbearer.jwks.endpoint.url"),
        (GROUP, "consumer.session.timeout.ms"),
        (ResourceType.CLIENT_METRICS, "interval.ms"),
    ],
)
def test_values_of_known_keys_are_shown(kind: int, key: str) -> None:
    assert is_shown(kind, key)
