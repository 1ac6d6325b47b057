"""The logs that the cleaner sees: open ones, and those that it opens because they may have something to clean."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.topics import create_topic
from tests.unit.broker.data_broker import TIMESTAMP_MS, DataBroker
from tidelog.broker.cleaning import CompactedLogs
from tidelog.broker.config.resource_type import ResourceType
from tidelog.protocol.record.record_batch import Record, build_batch

COMPACT = {"cleanup.policy": "compact"}


def restarted(directory: Path, configs: Mapping[str, str], batches: int) -> DataBroker:
    """Return a broker after a clean stop: none of its logs is open."""
    first = DataBroker(directory)
    create_topic(first, "t", 1, 1, configs)
    for _ in range(batches):
        records = build_batch([Record(0, TIMESTAMP_MS, b"key", bytes(600))])
        first.replica_manager.partition("t", 0).append_records(memoryview(records))
    first.close()
    return DataBroker(directory)


@pytest.mark.parametrize(
    ("configs", "batches", "change"),
    [({"segment.bytes": "1024"}, 3, COMPACT), (COMPACT, 1, {**COMPACT, "max.compaction.lag.ms": "1000"})],
)
def test_a_closed_log_is_inspected_again_when_its_configuration_has_changed(
    tmp_path: Path, configs: Mapping[str, str], batches: int, change: Mapping[str, str]
) -> None:
    world = restarted(tmp_path, configs, batches)
    logs = CompactedLogs(world.broker)
    assert logs() == logs() == []
    changed = {**({"segment.bytes": "1024"} if batches > 1 else {}), **change}
    world.broker.configs.replace(ResourceType.TOPIC, "t", changed, validate_only=False)
    assert [log.topic_partition.topic for log in logs()] == ["t"]
    world.close()


def test_a_closed_log_is_inspected_again_when_the_defaults_have_changed(tmp_path: Path) -> None:
    world = restarted(tmp_path, {}, 1)
    logs = CompactedLogs(world.broker)
    assert logs() == []
    changed = {"log.cleanup.policy": "compact", "log.cleaner.max.compaction.lag.ms": "1000"}
    world.broker.configs.replace(ResourceType.BROKER, "", changed, validate_only=False)
    assert [log.topic_partition.topic for log in logs()] == ["t"]
    world.close()


def test_a_log_is_inspected_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = restarted(tmp_path, COMPACT, 1)
    logs = CompactedLogs(world.broker)
    seen = []
    monkeypatch.setattr(logs, "_may_be_cleaned", lambda partition, _: seen.append(partition))
    for _ in range(3):
        assert logs() == []
    assert len(seen) == 1
    world.close()
