"""Java clients of all ages, unmodified, from the first KafkaProducer (0.8.2) to the newest; beside them librdkafka."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.rivals.kafka_jars import OLD_CLIENTS
from benchmarks.rivals.process import BrokerProcess
from tests.support.admin import Admin
from tests.support.kafka_jars import KAFKA_3, KAFKA_4
from tests.support.old_clients import java_line, run_java
from tests.support.placed_records import (
    COUNT,
    ENDS,
    PARTITIONS,
    bare,
    by_place,
    committed,
    ends,
    expected,
    placed,
    write_placed,
)
from tests.support.readers import read_with_confluent
from tests.support.toolchains import Record

pytestmark = pytest.mark.java
PRODUCERS = (*OLD_CLIENTS, KAFKA_3, KAFKA_4)
CONSUMERS = PRODUCERS[1:]
"""The KafkaConsumer of 0.8.2 was an empty shell: that release reads with the Scala client, which needs ZooKeeper."""
SINCE_0_11 = ("1.0.2", "2.0.1")
"""Releases with an AdminClient and transactions; the newest are driven in `test_java` and `test_transactions`."""
RESUMES = (CONSUMERS[0], "2.0.1", KAFKA_4)
CODECS = ("none", "gzip", "snappy", "lz4")


def knows_headers(version: str) -> bool:
    return not version.startswith("0.")


def codecs(version: str) -> tuple[str, ...]:
    return (*CODECS, "zstd") if version in (KAFKA_3, KAFKA_4) else CODECS


def produce(broker: BrokerProcess, version: str, topic: str) -> None:
    """Produce all records once for each codec that the release knows."""
    records = [(partition, record if knows_headers(version) else bare(record)) for partition, record in placed()]
    options = {"bootstrap": broker.bootstrap, "topic": topic, "codecs": ",".join(codecs(version))}
    run_java(version, "Produce", options, [java_line(*each) for each in records])


def consume(broker: BrokerProcess, version: str, topic: str, times: int, **options: Any) -> list[Record]:
    asked = {"bootstrap": broker.bootstrap, "topic": topic, "count": times * COUNT}
    return run_java(version, "Consume", {**asked, **(options or {"partitions": PARTITIONS})})


@pytest.mark.parametrize("version", PRODUCERS)
def test_the_newest_client_reads_records_of_the_old_one(broker: BrokerProcess, version: str) -> None:
    topic = f"written-{version}"
    Admin(broker.bootstrap).create(topic, PARTITIONS)
    produce(broker, version, topic)
    times = len(codecs(version))
    written = expected(times, headers=knows_headers(version))
    assert read_with_confluent(broker.bootstrap, topic, ends(times)) == written


@pytest.mark.parametrize("version", CONSUMERS)
def test_the_old_client_reads_records_of_the_newest(broker: BrokerProcess, version: str) -> None:
    topic = f"read-{version}"
    Admin(broker.bootstrap).create(topic, PARTITIONS)
    write_placed(broker.bootstrap, topic, codecs(version))
    times = len(codecs(version))
    records = consume(broker, version, topic, times)
    assert by_place(records) == expected(times, headers=knows_headers(version))
    assert {record.timestamp == -1 for record in records} == {version.startswith("0.9")}


@pytest.mark.parametrize(("version", "rounds"), [(version, 2 if version in RESUMES else 1) for version in CONSUMERS])
def test_a_group_of_the_old_client_resumes_where_it_committed(broker: BrokerProcess, version: str, rounds: int) -> None:
    """Each release joins and commits; the first, the middle and the last also come back."""
    topic = f"group-{version}"
    Admin(broker.bootstrap).create(topic, PARTITIONS)
    for round_number in range(1, rounds + 1):
        write_placed(broker.bootstrap, topic)
        found = by_place(consume(broker, version, topic, 1, group=topic))
        begin = ends(round_number - 1)
        assert {(partition, offset - begin[partition]) for partition, offset in found} == set(expected())
        assert committed(broker.bootstrap, topic, topic) == ends(round_number)


def test_the_oldest_and_the_newest_read_each_other(broker: BrokerProcess) -> None:
    """One topic: written by 0.8.2 and 4.3, read by 0.9 and 4.3."""
    Admin(broker.bootstrap).create("oldest-and-newest", PARTITIONS)
    produce(broker, PRODUCERS[0], "oldest-and-newest")
    write_placed(broker.bootstrap, "oldest-and-newest", ["none"])
    times = len(CODECS) + 1
    oldest = by_place(consume(broker, CONSUMERS[0], "oldest-and-newest", times))
    assert oldest == expected(times, headers=False)
    records = consume(broker, CONSUMERS[-1], "oldest-and-newest", times)
    late = {place: seen for place, seen in expected(times).items() if place[1] >= len(CODECS) * ENDS[place[0]]}
    assert by_place(records) == {**oldest, **late}
    assert {(record.partition, record.offset) for record in records if record.timestamp != -1} == set(late)


@pytest.mark.parametrize("message_format", ["0.9.0", "0.10.0"])
def test_topics_of_old_formats_serve_old_and_new(broker: BrokerProcess, message_format: str) -> None:
    topic = f"format-{message_format}"
    Admin(broker.bootstrap).create(topic, PARTITIONS, {"message.format.version": message_format})
    produce(broker, "0.10.2.2", topic)
    write_placed(broker.bootstrap, topic, CODECS)
    times = 2 * len(CODECS)
    for version in ("0.9.0.1", KAFKA_4):
        records = consume(broker, version, topic, times)
        assert by_place(records) == expected(times, headers=False)
        assert {record.timestamp == -1 for record in records} == {message_format == "0.9.0" or version == "0.9.0.1"}


@pytest.mark.parametrize("version", SINCE_0_11)
def test_the_old_client_manages_topics(broker: BrokerProcess, version: str) -> None:
    """`Manage` fails with the first thing it finds wrong."""
    run_java(version, "Manage", {"bootstrap": broker.bootstrap, "topic": f"managed-{version}"})
    assert f"managed-{version}" not in Admin(broker.bootstrap).topics()


@pytest.mark.parametrize("version", SINCE_0_11)
def test_transactions_of_the_old_client_commit_and_abort(broker: BrokerProcess, version: str) -> None:
    topic = f"transacted-{version}"
    Admin(broker.bootstrap).create(topic, PARTITIONS)
    run_java(version, "Transact", {"bootstrap": broker.bootstrap, "topic": topic})
    options = {"bootstrap": broker.bootstrap, "topic": topic, "partitions": PARTITIONS, "count": PARTITIONS}
    records = run_java(version, "Consume", {**options, "isolation": "read_committed"})
    kept = [(partition, 2, b"kept") for partition in range(PARTITIONS)]  # offset 1 is the abort marker
    assert [(record.partition, record.offset, record.seen.value) for record in records] == kept
