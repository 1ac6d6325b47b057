"""A group's own configs within the broker's bounds, as the coordinator uses them."""

from __future__ import annotations

import pytest

from tidelog.broker.config.broker_config import BrokerConfig, bounded_texts


@pytest.mark.parametrize(
    ("key", "text", "broker", "expected"),
    [
        ("consumer.session.timeout.ms", "90000", {}, "60000"),
        ("consumer.session.timeout.ms", "1", {}, "45000"),
        ("consumer.heartbeat.interval.ms", "60000", {"group.consumer.max.heartbeat.interval.ms": "7000"}, "7000"),
        ("streams.session.timeout.ms", "50000", {"group.streams.max.session.timeout.ms": "46000"}, "46000"),
        ("streams.num.standby.replicas", "5", {}, "2"),
        ("streams.initial.rebalance.delay.ms", "999999", {}, "999999"),
        ("streams.heartbeat.interval.ms", "-1", {}, "5000"),
        ("share.auto.offset.reset", "earliest", {}, "earliest"),
        ("errors.deadletterqueue.topic.name", "7", {}, "7"),
    ],
)
def test_a_groups_configs_are_held_within_the_brokers_bounds(
    key: str, text: str, broker: dict[str, str], expected: str
) -> None:
    assert bounded_texts({key: text}, BrokerConfig(broker).values) == {key: expected}
