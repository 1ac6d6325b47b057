"""Clients in other languages, unmodified: franz-go and sarama (Go), kafkajs (Node), each beside librdkafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.rivals.process import BrokerProcess
from tests.support.admin import Admin
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
from tests.support.toolchains import STAY, answer_records, ask, go_program, node_program, question_record

Command = Callable[[], list[str]]
CLIENTS: dict[str, Command] = {
    "franz-go": lambda: go_program("franz"),
    "sarama": lambda: go_program("sarama"),
    "kafkajs": lambda: node_program("kafkajs", STAY),
}
ALL_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CODECS = {"franz-go": ALL_CODECS, "sarama": ALL_CODECS, "kafkajs": ("none", "gzip")}
EARLY_VERSIONS = {
    "franz-go": ("0.8.2", "0.9.0", "0.10.0", "0.11.0", "2.0"),
    "sarama": ("0.8.2.2", "0.9.0.1", "0.10.0.1", "0.11.0.2", "2.0.1"),
}
WITH_CODEC = [(client, codec) for client, codecs in CODECS.items() for codec in codecs]


def run(client: str, broker: BrokerProcess, mode: str, topic: str, **options: Any) -> dict[str, Any]:
    """Ask a client's program."""
    question = {"bootstrap": broker.bootstrap, "mode": mode, "topic": topic, "partitions": PARTITIONS, **options}
    return ask(CLIENTS[client](), question)


@pytest.mark.parametrize(("client", "codec"), WITH_CODEC)
def test_librdkafka_reads_records_of_the_client(broker: BrokerProcess, client: str, codec: str) -> None:
    topic = f"written-{client}-{codec}"
    Admin(broker.bootstrap).create(topic, PARTITIONS)
    records = [question_record(partition, record) for partition, record in placed()]
    run(client, broker, "produce", topic, codec=codec, records=records)
    assert read_with_confluent(broker.bootstrap, topic, ENDS) == expected()


@pytest.mark.parametrize(("client", "codec"), WITH_CODEC)
def test_the_client_reads_records_of_librdkafka(broker: BrokerProcess, client: str, codec: str) -> None:
    topic = f"read-{client}-{codec}"
    Admin(broker.bootstrap).create(topic, PARTITIONS)
    write_placed(broker.bootstrap, topic, [codec])
    records = answer_records(run(client, broker, "consume", topic, count=COUNT))
    assert by_place(records) == expected()
    assert all(record.timestamp > 0 for record in records)


@pytest.mark.parametrize(
    ("client", "protocol", "version"),
    [
        ("franz-go", "classic", ""),
        ("franz-go", "classic", "0.9.0"),
        ("franz-go", "consumer", ""),
        ("sarama", "classic", ""),
        ("sarama", "classic", "0.10.2.0"),
        ("kafkajs", "classic", ""),
    ],
)
def test_members_share_a_topic_and_resume_where_they_committed(
    broker: BrokerProcess, client: str, protocol: str, version: str
) -> None:
    topic = f"group-{client}-{protocol}-{version}"
    Admin(broker.bootstrap).create(topic, PARTITIONS)
    rounds = 1 if protocol == "consumer" else 2  # whose members learn of each other by a heartbeat every five seconds
    for round_number in range(1, rounds + 1):
        write_placed(broker.bootstrap, topic)
        options = {"group": topic, "protocol": protocol, "version": version}
        answer = run(client, broker, "group", topic, count=COUNT, **options)
        assert sorted(partition for owned in answer["owned"] for partition in owned) == list(range(PARTITIONS))
        assert committed(broker.bootstrap, topic, topic) == ends(round_number)
        first = ends(round_number - 1)
        # A record that its member had not committed when the group rebalanced comes twice.
        found = {(one.partition, one.offset - first[one.partition]) for one in answer_records(answer)}
        assert found == set(expected())


@pytest.mark.parametrize("client", CLIENTS)
def test_topics_are_administered(broker: BrokerProcess, client: str) -> None:
    topic = f"admin-{client}"
    answer = run(client, broker, "admin", topic)
    assert "already exists" in answer["again"].lower().replace("_", " ")
    assert answer["retention"] == "7000"
    assert answer["partitions"] == PARTITIONS + 1
    assert topic not in Admin(broker.bootstrap).topics()


@pytest.mark.parametrize("client", CLIENTS)
def test_transactions_pass_records_and_offsets_on(broker: BrokerProcess, client: str) -> None:
    source, topic = f"source-{client}", f"passed-{client}"
    for name in (source, topic):
        Admin(broker.bootstrap).create(name, PARTITIONS)
    write_placed(broker.bootstrap, source)
    options = {"source": source, "group": f"passes-{client}", "read_committed": True}
    assert run(client, broker, "transactions", topic, count=COUNT, **options)["committed"]
    assert committed(broker.bootstrap, f"passes-{client}", source) == ENDS
    passed = answer_records(run(client, broker, "consume", topic, count=COUNT, read_committed=True))
    assert by_place(passed) == expected()
    everything = run(client, broker, "consume", topic, count=COUNT + 1)
    assert b"dropped" in {record.seen.value for record in answer_records(everything)}


EARLY = [(client, version) for client in ("franz-go", "sarama") for version in EARLY_VERSIONS[client]]


@pytest.mark.parametrize(("client", "version"), EARLY)
def test_the_client_works_with_the_versions_of_an_old_kafka(broker: BrokerProcess, client: str, version: str) -> None:
    """Both Go clients can be held to the versions of an old Kafka."""
    topic = f"early-{client}-{version}"
    Admin(broker.bootstrap).create(topic, PARTITIONS)
    records = [question_record(partition, bare(record)) for partition, record in placed()]
    run(client, broker, "produce", topic, version=version, codec="gzip", records=records)
    assert read_with_confluent(broker.bootstrap, topic, ENDS) == expected(headers=False)
    found = answer_records(run(client, broker, "consume", topic, version=version, count=COUNT))
    assert by_place(found) == expected(headers=False)
