"""kafka-python 1.4 and 2.0, unmodified, set to the protocol of old Kafka versions; beside them the newest librdkafka.

Message sets know no headers, and those of v0 (Fetch before v2) no timestamps: what such a client reads has lost them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Consumer

from benchmarks.rivals.process import BrokerProcess
from tests.support.admin import Admin
from tests.support.old_clients import ask_kafka_python
from tests.support.placed_records import (
    COUNT,
    ENDS,
    PARTITIONS,
    SECONDS,
    bare,
    by_place,
    committed,
    ends,
    expected,
    placed,
    write_placed,
)
from tests.support.readers import read_with_confluent
from tests.support.toolchains import Record, answer_records, question_record

RELEASES = ("1.4.7", "2.0.2")
API_VERSIONS = ("0.8.2", "0.9", "0.10", "0.11.0")
CODECS = ("none", "gzip", "snappy", "lz4")
OLD = [(release, api_version) for release in RELEASES for api_version in API_VERSIONS]
MEMBERS = [("1.4.7", "0.9"), ("2.0.2", "0.11.0")]
REPRESENTATIVES = [("1.4.7", "0.8.2"), ("2.0.2", "0.10")]
FORMATS = ("0.9.0", "0.10.0")


def run(broker: BrokerProcess, old: tuple[str, str], mode: str, topic: str, **options: Any) -> list[Record]:
    """Ask a release of kafka-python that speaks to a broker of an old version; the records it read."""
    release, api_version = old
    asked = {"bootstrap": broker.bootstrap, "api_version": api_version, "mode": mode, "topic": topic}
    answer = ask_kafka_python(release, {**asked, "partitions": PARTITIONS, **options})
    return answer_records({"records": [], **answer})


def produce(broker: BrokerProcess, old: tuple[str, str], topic: str, codecs: tuple[str, ...] = CODECS) -> None:
    records = [question_record(partition, record) for partition, record in placed()]
    run(broker, old, "produce", topic, codecs=codecs, records=records)


def consume(broker: BrokerProcess, old: tuple[str, str], topic: str, times: int = len(CODECS)) -> list[Record]:
    return run(broker, old, "consume", topic, count=times * COUNT)


def poll_until(condition: Callable[[], bool], poll: Callable[[], Any]) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        poll()


def knows_headers(old: tuple[str, str]) -> bool:
    return old[1] == "0.11.0"


def assert_timestamps(old: tuple[str, str], records: list[Record]) -> None:
    """Compare timestamps as the fetched format has them; releases ask v0 of brokers before 0.10."""
    without = old[1] in ("0.8.2", "0.9")
    assert {record.timestamp == -1 for record in records} == {without}


@pytest.mark.parametrize("old", OLD, ids="-".join)
def test_the_newest_and_the_old_client_read_records_of_the_old_one(broker: BrokerProcess, old: tuple[str, str]) -> None:
    topic = f"old-{'-'.join(old)}"
    Admin(broker.bootstrap).create(topic, PARTITIONS)
    produce(broker, old, topic)
    written = expected(len(CODECS), headers=knows_headers(old))
    assert read_with_confluent(broker.bootstrap, topic, ends(len(CODECS))) == written
    assert by_place(consume(broker, old, topic)) == written


@pytest.mark.parametrize("old", OLD, ids="-".join)
def test_the_old_client_reads_records_of_the_newest(broker: BrokerProcess, old: tuple[str, str]) -> None:
    topic = f"new-{'-'.join(old)}"
    Admin(broker.bootstrap).create(topic, PARTITIONS)
    write_placed(broker.bootstrap, topic, CODECS)
    records = consume(broker, old, topic)
    assert by_place(records) == expected(len(CODECS), headers=knows_headers(old))
    assert_timestamps(old, records)


@pytest.mark.parametrize("old", [*OLD, ("1.4.7", "0.8.1")], ids="-".join)
def test_a_group_of_the_old_client_resumes_where_it_committed(broker: BrokerProcess, old: tuple[str, str]) -> None:
    """0.8.1 and 0.8.2 (OffsetCommit v0 and v1) commit without being members; the later ones join."""
    topic = f"group-{'-'.join(old)}"
    Admin(broker.bootstrap).create(topic, PARTITIONS)
    for round_number in (1, 2):
        write_placed(broker.bootstrap, topic)
        found = by_place(run(broker, old, "group", topic, group=topic, count=COUNT))
        assert {(partition, offset - ends(round_number - 1)[partition]) for partition, offset in found} == set(
            expected()
        )
        assert committed(broker.bootstrap, topic, topic) == ends(round_number)


@pytest.mark.parametrize("old", MEMBERS, ids="-".join)
def test_the_old_client_shares_a_group_with_the_newest(broker: BrokerProcess, old: tuple[str, str]) -> None:
    """JoinGroup of the first version and of the last in one generation."""
    topic = f"shared-{'-'.join(old)}"
    Admin(broker.bootstrap).create(topic, PARTITIONS)
    new = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic, "heartbeat.interval.ms": 200})
    new.subscribe([topic])
    poll_until(lambda: len(new.assignment()) == PARTITIONS, lambda: new.poll(0.05))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(run, broker, old, "group", topic, group=topic, count=min(ENDS.values()))
        poll_until(lambda: 0 < len(new.assignment()) < PARTITIONS, lambda: new.poll(0.05))
        kept = {place.partition for place in new.assignment()}
        write_placed(broker.bootstrap, topic)
        poll_until(reading.done, lambda: new.poll(0.05))
    assert {record.partition for record in reading.result()} <= set(range(PARTITIONS)) - kept
    poll_until(lambda: len(new.assignment()) == PARTITIONS, lambda: new.poll(0.05))
    new.close()


@pytest.mark.parametrize("message_format", FORMATS)
@pytest.mark.parametrize("old", REPRESENTATIVES, ids="-".join)
def test_topics_of_old_formats_serve_old_and_new(
    broker: BrokerProcess, old: tuple[str, str], message_format: str
) -> None:
    topic = f"format-{message_format}-{'-'.join(old)}"
    Admin(broker.bootstrap).create(topic, PARTITIONS, {"message.format.version": message_format})
    produce(broker, old, topic)
    write_placed(broker.bootstrap, topic, CODECS)
    times = 2 * len(CODECS)
    assert read_with_confluent(broker.bootstrap, topic, ends(times)) == expected(times, headers=False)
    assert by_place(consume(broker, old, topic, times)) == expected(times, headers=False)


def test_one_topic_with_batches_of_all_formats_is_read_by_old_and_new_clients(broker: BrokerProcess) -> None:
    """Message sets v0 and v1 and batches v2 are read through the oldest protocol and the newest."""
    Admin(broker.bootstrap).create("all-ages", PARTITIONS)
    for old in OLD:
        produce(broker, old, "all-ages", ("gzip",))
    write_placed(broker.bootstrap, "all-ages", ["lz4"])
    times = len(OLD) + 1
    assert by_place(consume(broker, ("1.4.7", "0.8.2"), "all-ages", times)) == expected(times, headers=False)
    keeps = [*map(knows_headers, OLD), True]
    written = expected(times)
    all_ages = {place: seen if keeps[place[1] // ENDS[place[0]]] else bare(seen) for place, seen in written.items()}
    assert read_with_confluent(broker.bootstrap, "all-ages", ends(times)) == all_ages
