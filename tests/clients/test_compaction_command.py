"""Compaction as an operator uses it: ``tidelog compaction``, and the admin interface of a real broker."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.procfs import rss_bytes
from tests.support.broker import TidelogProcess
from tests.support.prometheus import parse
from tidelog.cli import main
from tidelog.commands.running.compaction import admin_address

TOPIC = "compacted"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogProcess]:
    """A broker with a compacted topic of two partitions, every key written ten times."""
    with TidelogProcess(tmp_path_factory.mktemp("broker")) as process:
        admin = AdminClient({"bootstrap.servers": process.bootstrap})
        topic = NewTopic(TOPIC, 2, 1, config={"cleanup.policy": "compact"})
        for created in admin.create_topics([topic]).values():
            created.result()
        producer = Producer({"bootstrap.servers": process.bootstrap, "linger.ms": 5})
        for number in range(1000):
            producer.produce(TOPIC, b"value %d" % number, b"key %d" % (number % 100))
        producer.flush()
        yield process


def get(broker: TidelogProcess, path: str) -> tuple[int, str]:
    host, port = admin_address(broker.bootstrap)
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_run_waits_and_reports_the_removed_records(broker: TidelogProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compaction", "run", TOPIC, "--dry-run", "--bootstrap", broker.bootstrap]) == 0
    assert capsys.readouterr().out.count("would go from") == 2

    assert main(["compaction", "run", TOPIC, "--wait", "--bootstrap", broker.bootstrap]) == 0
    lines = capsys.readouterr().out.splitlines()
    kept = [int(line.split(" to ")[2].split()[0]) for line in lines]
    assert sum(kept) == 100

    assert main(["compaction", "status", "--json", "--bootstrap", broker.bootstrap]) == 0
    printed = json.loads(capsys.readouterr().out)
    partitions = [entry for entry in printed if entry["topic_partition"]["topic"] == TOPIC]
    assert [entry["topic_partition"]["partition"] for entry in partitions] == [0, 1]
    assert sum(entry["last_round"]["records_after"] for entry in partitions) == 100
    assert all(entry["state"] == "idle" and entry["dirty_bytes"] == 0 for entry in partitions)

    assert main(["compaction", "status", "--bootstrap", broker.bootstrap]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{TOPIC}-1 "))
    assert re.search(r" \d+ s ago: \d+ -> \d+ bytes, \d+ -> \d+ records in \d+ ms, map \d\.\d% full, collisions ", line)


def test_run_without_waiting_comes_back_at_once(broker: TidelogProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compaction", "run", TOPIC, "--bootstrap", broker.bootstrap]) == 0

    assert capsys.readouterr().out == f"{TOPIC}: 2 partitions will be cleaned\n"


def test_unknown_topic_and_absent_broker_are_one_line(
    broker: TidelogProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compaction", "run", "nothing", "--bootstrap", broker.bootstrap]) == 1
    assert capsys.readouterr().err == "tidelog compaction run: there is no topic nothing\n"

    assert main(["compaction", "status", "--bootstrap", "127.0.0.1:1"]) == 1
    assert "cannot connect to 127.0.0.1:1" in capsys.readouterr().err


def test_health_readiness_and_metrics_are_served(broker: TidelogProcess) -> None:
    assert get(broker, "/healthz") == (200, "ok\n")
    assert get(broker, "/readyz") == (200, "ok\n")
    assert main(["compaction", "run", TOPIC, "--wait", "--bootstrap", broker.bootstrap]) == 0
    status, text = get(broker, "/metrics")

    assert status == 200
    assert "# TYPE kafka_log_logcleaner_rounds_total counter" in text
    assert f'kafka_log_logcleaner_partition_dirty_bytes{{topic="{TOPIC}",partition="0"}}' in text
    assert f'kafka_log_logcleaner_partition_last_round_records_after{{topic="{TOPIC}",partition="0"}}' in text
    page = parse(text)
    assert page.value("kafka_server_topicmetrics_bytesin_total", topic=TOPIC) > 1000
    assert page.value("kafka_log_log_logendoffset", topic=TOPIC, partition="0") > 0
    assert page.value("kafka_log_logmanager_offlinelogdirectorycount") == 0
    assert page.value("tidelog_log_damaged_batches_total") == 0
    produced = [v for (name, labels), v in page.samples.items() if ("request", "Produce") in labels]
    assert sum(produced) > 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to see memory")
def test_admin_interface_costs_nothing_until_it_is_asked(tmp_path: Path) -> None:
    with TidelogProcess(tmp_path) as process:
        modules = f"/proc/{process.pid}/maps"
        idle = rss_bytes(process.pid)
        assert "aiohttp" not in Path(modules).read_text()

        assert get(process, "/healthz") == (200, "ok\n")

        assert "aiohttp" in Path(modules).read_text()
        asked = rss_bytes(process.pid)
        print(f"RSS idle {idle / 1e6:.1f} MB, with the admin interface {asked / 1e6:.1f} MB")
        assert idle < 45e6
        assert asked < idle + 40e6


def test_admin_interface_can_be_switched_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with TidelogProcess(tmp_path, {"admin.listener": ""}) as process:
        assert main(["compaction", "status", "--bootstrap", process.bootstrap]) == 1

    assert "has no admin interface (admin.listener)" in capsys.readouterr().err


def test_stop_with_the_admin_interface_in_use_is_clean(tmp_path: Path) -> None:
    with TidelogProcess(tmp_path) as process:
        assert get(process, "/compaction") == (200, "[]")


def test_topic_created_again_does_not_inherit_the_cleaned_offset(broker: TidelogProcess) -> None:
    name = "made-again"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topic = NewTopic(name, 1, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([topic])[name].result()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(name, b"value", b"key")
    producer.flush()
    assert main(["compaction", "run", name, "--wait", "--bootstrap", broker.bootstrap]) == 0
    checkpoint = next(broker.directory.rglob("cleaner-offset-checkpoint"))
    assert f"{name} 0 1\n" in checkpoint.read_text()

    admin.delete_topics([name])[name].result()

    deadline = time.monotonic() + 30
    while f"{name} 0" in checkpoint.read_text() and time.monotonic() < deadline:
        pass
    assert f"{name} 0" not in checkpoint.read_text()


def test_status_lists_unopened_and_refused_logs(tmp_path: Path) -> None:
    """After a clean stop a log of one segment is not opened for the cleaner: it is there all the same."""
    with TidelogProcess(tmp_path / "broker") as process:
        admin = AdminClient({"bootstrap.servers": process.bootstrap})
        topic = NewTopic("small", 2, 1, config={"cleanup.policy": "compact"})
        for created in admin.create_topics([topic, NewTopic("plain", 1, 1)]).values():
            created.result()
        producer = Producer({"bootstrap.servers": process.bootstrap})
        for partition in range(2):
            producer.produce("small", b"value", b"key", partition=partition)
        producer.flush()
    log = next((process.data_directory / "small-1").glob("*.log"))
    log.rename(log.with_name(f"{7:020d}.log"))
    with TidelogProcess(tmp_path / "broker", port=process.port) as process:
        first, second = json.loads(get(process, "/compaction")[1])
        assert (first["topic_partition"], first["state"]) == ({"topic": "small", "partition": 0}, "idle")
        assert (first["dirty_bytes"], first["last_error"]) == (0, None)
        assert second["topic_partition"] == {"topic": "small", "partition": 1}
        producer = Producer({"bootstrap.servers": process.bootstrap, "message.timeout.ms": 60_000, "log_level": 0})
        producer.produce("small", b"value", b"key", partition=1)
        deadline = time.monotonic() + 30
        while (refused := json.loads(get(process, "/compaction")[1])[1])["last_error"] is None:
            assert time.monotonic() < deadline, "the log that cannot be opened is not told"
            producer.poll(0.1)
        producer.purge()
        producer.flush()
        assert "begins with offset 0, which does not fit its name" in refused["last_error"]


def test_a_batch_that_a_round_could_not_read_is_reported(
    broker: TidelogProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "poisoned"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1, config={"cleanup.policy": "compact"})])[name].result()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(2):
        producer.produce(name, b"value", b"key")
        producer.flush()
    with next(broker.directory.rglob(f"{name}-0/*.log")).open("r+b") as records:
        records.seek(66)
        records.write(b"X")

    assert main(["compaction", "run", name, "--wait", "--bootstrap", broker.bootstrap]) == 0
    assert main(["compaction", "status", "--bootstrap", broker.bootstrap]) == 0

    printed = "; 1 unreadable batch kept, first: segment 0, byte 0, offset 0: its checksum is wrong\n"
    assert capsys.readouterr().out.count(printed) == 2
