from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.unit.broker.admin_broker import AdminBroker
from tidelog.broker.broker import Broker
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.config.offset_reset import duration_ms, is_offset_reset
from tidelog.broker.share import config
from tidelog.broker.share.config import ShareConfigs
from tidelog.protocol.errors import InvalidConfigError

GROUP = 32


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("PT1H", 3_600_000),
        ("P2DT3H4M5.5S", 183_845_500),
        ("p1d", 86_400_000),
        ("PT0.001S", 1),
        ("P", None),
        ("PT", None),
        ("1H", None),
        ("-PT1H", None),
        ("P1M", None),
        ("PT9223372036854776S", None),
        pytest.param(f"P{'9' * 400}D", None, id="beyond a double"),
    ],
)
def test_durations_are_iso_8601(text: str, milliseconds: int | None) -> None:
    assert duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "good"),
    [("earliest", True), ("latest", True), ("by_duration:PT1H", True), ("by_duration:1H", False), ("none", False)],
)
def test_where_a_group_may_begin(text: str, good: bool) -> None:
    assert is_offset_reset(text) is good


def test_a_groups_own_configs_come_before_the_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = AdminBroker(tmp_path, {"group.share.heartbeat.interval.ms": "6000", "group.share.max.size": "10"})
    configs = ShareConfigs(admin.broker)
    assert (configs.of("g").heartbeat_interval_ms, configs.of("g").max_size) == (6_000, 10)
    assert configs.of("g") is configs.of("g"), "parsed once"
    texts = {
        "share.heartbeat.interval.ms": "7000",
        "share.record.lock.duration.ms": "20000",
        "share.delivery.count.limit": "7",
        "share.partition.max.record.locks": "300",
        "share.isolation.level": "read_committed",
        "share.renew.acknowledge.enable": "false",
    }
    admin.configs.replace(GROUP, "g", texts, validate_only=False)
    found = configs.of("g")
    assert (found.heartbeat_interval_ms, found.read_committed, found.limits) == (7_000, True, (20_000, 7, 300, False))
    assert configs.of("other").heartbeat_interval_ms == 6_000
    monkeypatch.setattr(config, "MAX_REMEMBERED_GROUPS", 1)
    assert configs.of("third").heartbeat_interval_ms == 6_000


def configs_with(texts: dict[str, str], broker: dict[str, str]) -> ShareConfigs:
    """Return the configurations of groups that have these configs in an image of other controllers, unchecked."""
    configs = SimpleNamespace(resource_texts=lambda *_: texts)
    return ShareConfigs(cast("Broker", SimpleNamespace(config=BrokerConfig(broker), configs=configs)))


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("share.record.lock.duration.ms", "60000", 40_000),
        ("share.record.lock.duration.ms", "20000", 20_000),
        ("share.record.lock.duration.ms", "999", 15_000),
        ("share.delivery.count.limit", "9", 8),
        ("share.partition.max.record.locks", "10", 100),
    ],
)
def test_values_are_held_within_the_brokers_bounds(key: str, text: str, expected: int) -> None:
    """They were set before the bounds were narrowed, or by controllers with other bounds."""
    broker = {"group.share.max.record.lock.duration.ms": "40000", "group.share.max.delivery.count.limit": "8"}
    assert expected in configs_with({key: text}, broker).of("g").limits


def test_unknown_configs_of_a_group_are_ignored() -> None:
    """A newer controller has more of them."""
    texts = {"errors.deadletterqueue.topic.name": "dlq", "share.isolation.level": "read_committed"}
    assert configs_with(texts, {}).of("g").read_committed


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("share.record.lock.duration.ms", "70000"),
        ("share.record.lock.duration.ms", "14000"),
        ("share.delivery.count.limit", "11"),
        ("share.partition.max.record.locks", "5000"),
        ("share.auto.offset.reset", "by_duration:x"),
    ],
)
def test_values_beyond_the_brokers_bounds_are_refused(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(InvalidConfigError):
        AdminBroker(tmp_path).configs.replace(GROUP, "g", {key: value}, validate_only=False)
