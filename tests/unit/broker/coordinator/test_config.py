"""Configuration of the coordinators."""

from __future__ import annotations

import pytest

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.coordinator.config import GroupConfig, group_config
from tidelog.protocol.errors import InvalidConfigError

PACKAGE = "org.apache.kafka.coordinator.group.assignor"


def test_absent_keys_keep_the_default() -> None:
    assert group_config({}) == GroupConfig()


@pytest.mark.parametrize(
    ("text", "names"),
    [("range", ("range",)), (f"{PACKAGE}.RangeAssignor,{PACKAGE}.UniformAssignor", ("range", "uniform"))],
)
def test_assignors_may_be_given_by_name_or_class(text: str, names: tuple[str, ...]) -> None:
    config = BrokerConfig({"group.consumer.assignors": text})
    assert group_config(config.values).group_consumer_assignors == names


@pytest.mark.parametrize("text", ["sticky", "range,range", ""])
def test_unknown_assignors_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"group\.consumer\.assignors"):
        BrokerConfig({"group.consumer.assignors": text})
