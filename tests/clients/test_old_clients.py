"""Old clients, unmodified: what one of them writes the newest reads and the other way round, in every codec."""

from __future__ import annotations

import pytest

from benchmarks.rivals.process import BrokerProcess
from tests.support.admin import Admin
from tests.support.old_clients import run_java_client, run_kafka_python
from tests.support.readers import Seen, read_with_confluent
from tests.support.real_text import real_lines
from tests.support.writers import Writer

VALUES = [line.text for line in real_lines()[:300]]
KAFKA_PYTHON = ("1.4.7", "2.0.2")
API_VERSIONS = ("0.8.2", "0.9", "0.10", "0.11")
JAVA = ("0.8.2.2", "0.10.2.2", "1.0.2", "2.0.1")
OLD_CODECS = ("none", "gzip", "snappy", "lz4")


def read_newest(broker: BrokerProcess, topic: str, count: int) -> list[bytes | None]:
    found = read_with_confluent(broker.bootstrap, topic, {0: count})
    return [found[0, offset].value for offset in range(count)]


def write_newest(broker: BrokerProcess, topic: str, codec: str) -> None:
    writer = Writer(broker.bootstrap, topic, {"compression.type": codec, "linger.ms": 20})
    for value in VALUES:
        writer.send(Seen(b"key", value, (("header", b"of the new world"),)))
    writer.flush()
    assert not writer.acknowledged.failures


@pytest.mark.parametrize("api_version", API_VERSIONS)
@pytest.mark.parametrize("version", KAFKA_PYTHON)
def test_newest_reads_what_old_kafka_python_wrote(broker: BrokerProcess, version: str, api_version: str) -> None:
    topic = f"old-python-{version}-{api_version}"
    Admin(broker.bootstrap).create(topic)
    options: dict[str, str | int] = {"bootstrap": broker.bootstrap, "topic": topic, "api_version": api_version}
    for codec in OLD_CODECS:
        run_kafka_python(version, {**options, "mode": "produce", "codec": codec.replace("none", "")}, VALUES)
    count = len(OLD_CODECS) * len(VALUES)
    assert read_newest(broker, topic, count) == len(OLD_CODECS) * VALUES
    assert run_kafka_python(version, {**options, "mode": "consume", "count": count}) == len(OLD_CODECS) * VALUES


@pytest.mark.parametrize("api_version", API_VERSIONS)
@pytest.mark.parametrize("version", KAFKA_PYTHON)
def test_old_kafka_python_reads_what_the_newest_wrote(broker: BrokerProcess, version: str, api_version: str) -> None:
    topic = f"new-python-{version}-{api_version}"
    Admin(broker.bootstrap).create(topic)
    for codec in OLD_CODECS:
        write_newest(broker, topic, codec)
    count = len(OLD_CODECS) * len(VALUES)
    options: dict[str, str | int] = {"bootstrap": broker.bootstrap, "topic": topic, "api_version": api_version}
    assert run_kafka_python(version, {**options, "mode": "consume", "count": count}) == len(OLD_CODECS) * VALUES


@pytest.mark.java
@pytest.mark.parametrize("version", JAVA)
def test_newest_reads_what_old_java_wrote(broker: BrokerProcess, version: str) -> None:
    topic = f"old-java-{version}"
    Admin(broker.bootstrap).create(topic)
    for codec in OLD_CODECS:
        run_java_client(version, "Produce", [broker.bootstrap, topic, codec], VALUES)
    count = len(OLD_CODECS) * len(VALUES)
    assert read_newest(broker, topic, count) == len(OLD_CODECS) * VALUES


@pytest.mark.java
@pytest.mark.parametrize("version", [version for version in JAVA if not version.startswith("0.8")])
def test_old_java_reads_what_the_newest_wrote(broker: BrokerProcess, version: str) -> None:
    """The Java consumer of 0.8.2 was an empty shell: its release reads with the Scala client, which needs ZooKeeper."""
    topic = f"new-java-{version}"
    Admin(broker.bootstrap).create(topic)
    for codec in OLD_CODECS:
        write_newest(broker, topic, codec)
    count = len(OLD_CODECS) * len(VALUES)
    found = run_java_client(version, "Consume", [broker.bootstrap, topic, str(count)])
    assert found == len(OLD_CODECS) * VALUES


def test_oldest_reads_what_the_next_wrote(broker: BrokerProcess) -> None:
    """One topic that holds what message sets v0 and v1 and batches v2 brought, read through the oldest protocol."""
    Admin(broker.bootstrap).create("all-ages")
    options: dict[str, str | int] = {"bootstrap": broker.bootstrap, "topic": "all-ages"}
    for api_version in API_VERSIONS:
        old = {**options, "api_version": api_version, "mode": "produce", "codec": "gzip"}
        run_kafka_python("2.0.2", old, VALUES)
    count = len(API_VERSIONS) * len(VALUES)
    oldest: dict[str, str | int] = {**options, "api_version": "0.8.2", "mode": "consume", "count": count}
    assert run_kafka_python("1.4.7", oldest) == len(API_VERSIONS) * VALUES
