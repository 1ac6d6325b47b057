"""The entrance of a broker: weak settings of listeners and HTTP interfaces are logged at the start."""

from __future__ import annotations

import pytest

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.entrance import warn_of_weaknesses

PLAIN, NO_LOGIN = "PLAINTEXT://0.0.0.0:9092", {"admin.authentication": "none"}


@pytest.mark.parametrize(
    ("listeners", "texts", "finding"),
    [
        ("SASL_SSL://127.0.0.1:9092", {}, "without authorizer.class.name"),
        (PLAIN, {"admin.listener": "0.0.0.0:9464", **NO_LOGIN}, "the admin interface is open to the network"),
        (PLAIN, {"schema.registry.listener": "0.0.0.0:8081", **NO_LOGIN}, "the schema registry is open to the network"),
    ],
)
def test_each_weakness_has_a_line(
    listeners: str, texts: dict[str, str], finding: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_weaknesses(BrokerConfig({"listeners": listeners, **texts}))
    (line,) = [record.getMessage() for record in caplog.records if record.name == "tidelog.broker.entrance"]
    assert finding in line


def test_without_a_weakness_there_is_no_line(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_weaknesses(BrokerConfig({"listeners": PLAIN, "admin.listener": "127.0.0.1:9464", **NO_LOGIN}))
    warn_of_weaknesses(BrokerConfig({"listeners": PLAIN}))
    assert [record for record in caplog.records if record.name == "tidelog.broker.entrance"] == []
