"""Java's own tools against the broker: performance tools, console clients, and the admin commands."""

from __future__ import annotations

import re

import pytest

from benchmarks.rivals.process import BrokerProcess
from tests.support.admin import Admin
from tests.support.apache_kafka import (
    CONFIG_COMMAND,
    CONSOLE_CONSUMER,
    CONSUMER_PERFORMANCE,
    DELETE_RECORDS,
    GET_OFFSETS,
    PRODUCER_PERFORMANCE,
    TOPIC_COMMAND,
    VERIFIABLE_PRODUCER,
    console_producer,
    run_tool,
)
from tests.support.kafka_jars import KAFKA_3, KAFKA_4
from tests.support.real_text import real_lines

pytestmark = pytest.mark.java
VERSIONS = (KAFKA_4, KAFKA_3)
RECORDS = 50_000


def tool(name: str, *arguments: str, version: str = KAFKA_4, stdin: str | None = None, in_own_jvm: bool = False) -> str:
    """Run a tool that must succeed; return what it printed."""
    done = run_tool(name, list(arguments), version=version, stdin=stdin, in_own_jvm=in_own_jvm)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def producer_performance(broker: BrokerProcess, topic: str, version: str, codec: str) -> str:
    """Load `RECORDS` records; return the tool's summary."""
    properties = [f"bootstrap.servers={broker.bootstrap}", f"compression.type={codec}"]
    return tool(
        PRODUCER_PERFORMANCE,
        *("--topic", topic, "--num-records", str(RECORDS), "--record-size", "200", "--throughput", "-1"),
        *("--producer-props", *properties),
        version=version,
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_producer_performance_tool_sends_all_records(broker: BrokerProcess, version: str, codec: str) -> None:
    topic = f"perf-{version}-{codec}"
    Admin(broker.bootstrap).create(topic, 2)
    summary = producer_performance(broker, topic, version, codec)
    assert re.search(rf"^{RECORDS} records sent", summary, re.MULTILINE), summary
    assert tool(GET_OFFSETS, "--bootstrap-server", broker.bootstrap, "--topic", topic, version=version)
    assert sum(Admin(broker.bootstrap).offset(topic, partition, "latest") for partition in range(2)) == RECORDS


@pytest.mark.parametrize("version", VERSIONS)
def test_the_consumer_performance_tool_reads_all_records(broker: BrokerProcess, version: str) -> None:
    topic = f"perf-read-{version}"
    Admin(broker.bootstrap).create(topic)
    producer_performance(broker, topic, version, "lz4")
    count = "--num-records" if version == KAFKA_4 else "--messages"
    words = ["--bootstrap-server", broker.bootstrap, "--topic", topic, count, str(RECORDS), "--hide-header"]
    printed = tool(CONSUMER_PERFORMANCE, *words, version=version)
    assert [line.split(", ")[4] for line in printed.splitlines() if ", " in line] == [str(RECORDS)]


@pytest.mark.parametrize("version", VERSIONS)
def test_console_clients_pass_real_text_on(broker: BrokerProcess, version: str) -> None:
    topic = f"console-{version}"
    lines = [line.text.decode() for line in real_lines(2000) if line.text]
    Admin(broker.bootstrap).create(topic)
    server = ["--bootstrap-server", broker.bootstrap, "--topic", topic]
    tool(console_producer(version), *server, version=version, stdin="\n".join(lines) + "\n")
    reading = ["--partition", "0", "--offset", "earliest", "--max-messages", str(len(lines))]
    assert tool(CONSOLE_CONSUMER, *server, *reading, version=version).splitlines() == lines


def test_kafka_topics_creates_describes_alters_and_deletes(broker: BrokerProcess) -> None:
    server = ["--bootstrap-server", broker.bootstrap]
    tool(TOPIC_COMMAND, *server, "--create", "--topic", "by-java", "--partitions", "3", "--config", "retention.ms=7000")
    described = tool(TOPIC_COMMAND, *server, "--describe", "--topic", "by-java")
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: .*retention.ms=7000", described), described
    tool(TOPIC_COMMAND, *server, "--alter", "--topic", "by-java", "--partitions", "4")
    assert Admin(broker.bootstrap).topics()["by-java"] == 4
    tool(TOPIC_COMMAND, *server, "--delete", "--topic", "by-java")
    assert "by-java" not in tool(TOPIC_COMMAND, *server, "--list").split()


def test_kafka_configs_sets_describes_and_deletes(broker: BrokerProcess) -> None:
    Admin(broker.bootstrap).create("configured-by-java")
    entity = ["--bootstrap-server", broker.bootstrap, "--entity-type", "topics", "--entity-name", "configured-by-java"]
    tool(CONFIG_COMMAND, *entity, "--alter", "--add-config", "retention.ms=9000,cleanup.policy=[compact,delete]")
    described = tool(CONFIG_COMMAND, *entity, "--describe")
    assert "retention.ms=9000" in described
    assert "cleanup.policy=compact,delete" in described
    tool(CONFIG_COMMAND, *entity, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms=9000" not in tool(CONFIG_COMMAND, *entity, "--describe")


def test_broker_configs_are_described(broker: BrokerProcess) -> None:
    entity = ["--bootstrap-server", broker.bootstrap, "--entity-type", "brokers", "--entity-name", "1"]
    assert "log.retention.hours=168" in tool(CONFIG_COMMAND, *entity, "--describe", "--all")


def test_kafkas_tools_delete_records_and_get_offsets(broker: BrokerProcess) -> None:
    Admin(broker.bootstrap).create("trimmed-by-java")
    server = ["--bootstrap-server", broker.bootstrap]
    tool(console_producer(), *server, "--topic", "trimmed-by-java", stdin="a\nb\nc\n")
    request = '{"partitions":[{"topic":"trimmed-by-java","partition":0,"offset":2}],"version":1}'
    printed = tool(DELETE_RECORDS, *server, "--offset-json-file", "/dev/stdin", stdin=request, in_own_jvm=True)
    assert "low_watermark: 2" in printed
    offsets = [*server, "--topic", "trimmed-by-java", "--time"]
    assert tool(GET_OFFSETS, *offsets, "earliest") == "trimmed-by-java:0:2\n"
    assert tool(GET_OFFSETS, *offsets, "latest") == "trimmed-by-java:0:3\n"
    assert tool(GET_OFFSETS, *offsets, "max-timestamp") == "trimmed-by-java:0:2\n"


def test_verifiable_producer_is_acknowledged(broker: BrokerProcess) -> None:
    Admin(broker.bootstrap).create("verifiable")
    words = ["--bootstrap-server", broker.bootstrap, "--topic", "verifiable", "--max-messages", "1000", "--acks", "-1"]
    printed = tool(VERIFIABLE_PRODUCER, *words, in_own_jvm=True)
    assert '"sent":1000,"acked":1000' in printed, printed[-500:]
