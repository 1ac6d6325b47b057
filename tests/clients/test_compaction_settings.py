"""Settings that decide when a log is cleaned, with a real broker: compaction lags, and compact together with delete."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.support.admin import Admin
from tests.support.broker import TidelogProcess
from tidelog.cli import main
from tidelog.client.settings import ClientSettings
from tidelog.commands.running.compaction import ask

HOUR_MS = 3_600_000
KEYS = 10
SETTINGS = {"log.cleaner.backoff.ms": "100", "log.retention.check.interval.ms": "100"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogProcess]:
    """A broker whose cleaner and retention look ten times a second."""
    with TidelogProcess(tmp_path_factory.mktemp("broker"), SETTINGS) as process:
        yield process


def create(broker: TidelogProcess, topic: str, **config: str) -> None:
    values = {"cleanup.policy": "compact", **{name.replace("_", "."): value for name, value in config.items()}}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=values)])[topic].result()


def produce(broker: TidelogProcess, topic: str, *, age_ms: int, count: int = 100) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    timestamp = int(time.time() * 1000) - age_ms
    for number in range(count):
        producer.produce(topic, b"value", b"key %d" % (number % KEYS), timestamp=timestamp)
    producer.flush()


def run_and_count(broker: TidelogProcess, topic: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    """Run ``compaction run --wait``, and return the records of the cleanable range before and after."""
    assert main(["compaction", "run", topic, "--wait", "--bootstrap", broker.bootstrap]) == 0
    records = capsys.readouterr().out.split("bytes, ")[1]
    return int(records.split()[0]), int(records.split()[2])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it does not come"


def status_of(broker: TidelogProcess, topic: str) -> dict[str, object]:
    _, entries = ask(ClientSettings(broker.bootstrap), "GET", "/compaction", 30.0)
    found: dict[str, object] = next(entry for entry in entries if entry["topic_partition"]["topic"] == topic)
    return found


def test_records_younger_than_min_lag_are_left_alone_until_it_is_changed(
    broker: TidelogProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    create(broker, "lagging", min_compaction_lag_ms=str(HOUR_MS), min_cleanable_dirty_ratio="1.0")
    produce(broker, "lagging", age_ms=2 * HOUR_MS)
    assert run_and_count(broker, "lagging", capsys) == (100, KEYS)

    produce(broker, "lagging", age_ms=0)
    assert run_and_count(broker, "lagging", capsys) == (KEYS, KEYS)

    entry = ConfigEntry("min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "lagging", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result()
    assert run_and_count(broker, "lagging", capsys) == (KEYS + 100, KEYS)


def test_idle_log_is_cleaned_by_itself_when_max_lag_has_passed(broker: TidelogProcess) -> None:
    create(broker, "overdue", max_compaction_lag_ms=str(HOUR_MS), min_cleanable_dirty_ratio="1.0")

    produce(broker, "overdue", age_ms=2 * HOUR_MS)

    wait_for(lambda: status_of(broker, "overdue")["last_round"] is not None)
    last_round = status_of(broker, "overdue")["last_round"]
    assert isinstance(last_round, dict)
    assert last_round["end_offset"] > 0


def test_dirty_log_is_cleaned_by_itself_and_one_below_the_ratio_is_not(broker: TidelogProcess) -> None:
    create(broker, "due", min_cleanable_dirty_ratio="0.1", segment_bytes="2000")
    create(broker, "not-due", min_cleanable_dirty_ratio="1.0", segment_bytes="2000")
    for _ in range(10):
        produce(broker, "not-due", age_ms=0)
        produce(broker, "due", age_ms=0)

    wait_for(lambda: status_of(broker, "due")["last_round"] is not None)

    other = status_of(broker, "not-due")
    assert (other["last_round"], other["cleanable_ratio"]) == (None, 1.0)


def test_a_topic_is_compacted_and_its_old_segments_are_deleted(
    broker: TidelogProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    create(broker, "both", cleanup_policy="compact,delete", retention_ms="-1", min_cleanable_dirty_ratio="1.0")
    produce(broker, "both", age_ms=2 * HOUR_MS)
    assert run_and_count(broker, "both", capsys) == (100, KEYS)

    entry = ConfigEntry("retention.ms", str(HOUR_MS), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "both", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result()

    offsets = Admin(broker.bootstrap)
    wait_for(lambda: offsets.offset("both", 0, "earliest") == 100)
    produce(broker, "both", age_ms=0)
    assert run_and_count(broker, "both", capsys) == (100, KEYS)


def test_cleaned_offset_survives_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with TidelogProcess(tmp_path) as first:
        create(first, "kept", min_cleanable_dirty_ratio="1.0")
        produce(first, "kept", age_ms=0)
        assert run_and_count(first, "kept", capsys) == (100, KEYS)
    with TidelogProcess(tmp_path, port=first.port) as again:
        entry = status_of(again, "kept")
        assert (entry["first_dirty_offset"], entry["dirty_bytes"]) == (100, 0)


def test_idle_log_is_cleaned_after_a_restart_too_when_max_lag_has_passed(tmp_path: Path) -> None:
    with TidelogProcess(tmp_path, SETTINGS) as first:
        create(first, "quiet", max_compaction_lag_ms=str(2 * HOUR_MS), min_cleanable_dirty_ratio="1.0")
        produce(first, "quiet", age_ms=HOUR_MS)
        admin = AdminClient({"bootstrap.servers": first.bootstrap})
        entry = ConfigEntry("max.compaction.lag.ms", "1000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, "quiet", incremental_configs=[entry])
        first.terminate()
        first.overrides["log.cleaner.enable"] = "false"
        first.start()
        admin.incremental_alter_configs([resource])[resource].result()
        first.terminate()
    with TidelogProcess(tmp_path, SETTINGS, port=first.port) as again:
        wait_for(lambda: "cleaned quiet-0 from offset 0 to 100" in again.output())
