"""Topics, configs and offsets through the admin clients of librdkafka, kafka-python and aiokafka."""

from __future__ import annotations

import asyncio
import time

import aiokafka
import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin
import pytest
from confluent_kafka import KafkaException

from benchmarks.rivals.process import BrokerProcess
from tests.support.admin import Admin
from tests.support.kafka_python import kafka
from tests.support.readers import read_with_confluent
from tests.support.seen import Seen
from tests.support.writers import Writer

CONFIGS = {"retention.ms": "123456789", "cleanup.policy": "compact", "max.message.bytes": "2000000"}
SECONDS = 20.0


def write(broker: BrokerProcess, topic: str, *records: Seen) -> None:
    writer = Writer(broker.bootstrap, topic)
    for record in records:
        writer.send(record)
    writer.flush()
    assert not writer.acknowledged.failures


def test_confluent_creates_grows_and_deletes(broker: BrokerProcess) -> None:
    admin = Admin(broker.bootstrap)
    admin.create("by-confluent", 2)
    assert admin.topics()["by-confluent"] == 2
    admin.grow("by-confluent", 5)
    assert admin.topics()["by-confluent"] == 5
    admin.delete("by-confluent")
    assert "by-confluent" not in admin.topics()


def test_deleted_topic_can_be_created_again_and_is_empty(broker: BrokerProcess) -> None:
    admin = Admin(broker.bootstrap)
    for _ in range(3):
        admin.create("again", 1)
        assert admin.offset("again", 0, "latest") == 0
        write(broker, "again", Seen(b"k", b"v", ()))
        assert admin.offset("again", 0, "latest") == 1
        admin.delete("again")


def test_a_name_is_free_as_soon_as_its_deletion_is_answered(broker: BrokerProcess) -> None:
    client = Admin(broker.bootstrap).client
    for partitions in (1, 3, 2) * 10:
        new = confluent_kafka.admin.NewTopic("again-and-again", partitions, 1)  # type: ignore[attr-defined]
        client.create_topics([new], request_timeout=SECONDS)["again-and-again"].result()
        client.delete_topics(["again-and-again"], request_timeout=SECONDS)["again-and-again"].result()
    assert "again-and-again" not in Admin(broker.bootstrap).topics()


def test_kafka_python_creates_grows_and_deletes(broker: BrokerProcess) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        admin.create_topics({"by-kafka-python": {"num_partitions": 2, "replication_factor": 1}})
        assert "by-kafka-python" in admin.list_topics()
        admin.create_partitions({"by-kafka-python": 4})
        [found] = admin.describe_topics(["by-kafka-python"])
        assert len(found["partitions"]) == 4
        admin.delete_topics(["by-kafka-python"])
        assert "by-kafka-python" not in admin.list_topics()
    finally:
        admin.close()


async def aiokafka_topics(bootstrap: str) -> list[str]:
    """Make a topic, grow it, delete it; return the topics after each step."""
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([aiokafka.admin.NewTopic("by-aiokafka", 2, 1)])
        await admin.create_partitions({"by-aiokafka": aiokafka.admin.NewPartitions(3)})
        [found] = await admin.describe_topics(["by-aiokafka"])
        await admin.delete_topics(["by-aiokafka"])
        return [f"{found['topic']} {len(found['partitions'])}", *await admin.list_topics()]
    finally:
        await admin.close()


def test_aiokafka_creates_grows_and_deletes(broker: BrokerProcess) -> None:
    described, *left = asyncio.run(aiokafka_topics(broker.bootstrap))
    assert described == "by-aiokafka 3"
    assert "by-aiokafka" not in left


def test_taken_name_is_refused(broker: BrokerProcess) -> None:
    admin = Admin(broker.bootstrap)
    admin.create("taken")
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create("taken")


@pytest.mark.parametrize(
    ("name", "partitions", "configs", "error"),
    [
        ("bad/name", 1, {}, "TOPIC_EXCEPTION"),
        ("bad-config", 1, {"retention.ms": "often"}, "INVALID_CONFIG"),
        ("no-partitions", 0, {}, "INVALID_PARTITIONS"),
    ],
)
def test_impossible_topic_is_refused(
    broker: BrokerProcess, name: str, partitions: int, configs: dict[str, str], error: str
) -> None:
    with pytest.raises(KafkaException, match=error):
        Admin(broker.bootstrap).create(name, partitions, configs)


def test_topic_is_created_by_the_first_record(broker: BrokerProcess) -> None:
    write(broker, "made-by-writing", Seen(None, b"first", ()))
    assert Admin(broker.bootstrap).topics()["made-by-writing"] == 1
    assert read_with_confluent(broker.bootstrap, "made-by-writing", {0: 1}) == {(0, 0): Seen(None, b"first", ())}


def begin_again(broker: BrokerProcess, how: str) -> None:
    """Start again after a clean stop, or after kill -9."""
    if how == "kill":
        broker.kill()
        broker.start()
    else:
        broker.restart()


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_topics_and_configs_are_kept(fresh_broker: BrokerProcess, how: str) -> None:
    admin = Admin(fresh_broker.bootstrap)
    admin.create("configured", 2, CONFIGS)
    admin.set_config("configured", "segment.bytes", "1048576")
    admin.create("gone")
    admin.grow("configured", 3)
    admin.delete("gone")
    begin_again(fresh_broker, how)
    admin = Admin(fresh_broker.bootstrap)
    assert admin.topics() == {"configured": 3}
    found = admin.configs("configured")
    expected = {**CONFIGS, "segment.bytes": "1048576"}
    assert {name: found[name] for name in expected} == expected


def test_bad_config_value_is_refused_and_changes_nothing(broker: BrokerProcess) -> None:
    admin = Admin(broker.bootstrap)
    admin.create("stays", 1, {"retention.ms": "5000"})
    with pytest.raises(KafkaException, match="INVALID_CONFIG"):
        admin.set_config("stays", "retention.ms", "often")
    assert admin.configs("stays")["retention.ms"] == "5000"


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_deleted_records_stay_deleted(fresh_broker: BrokerProcess, how: str) -> None:
    admin = Admin(fresh_broker.bootstrap)
    admin.create("trimmed")
    write(fresh_broker, "trimmed", *(Seen(None, b"%d" % number, ()) for number in range(10)))
    assert admin.delete_records("trimmed", 0, 4) == 4
    begin_again(fresh_broker, how)
    admin = Admin(fresh_broker.bootstrap)
    assert admin.offset("trimmed", 0, "earliest") == 4
    assert admin.offset("trimmed", 0, "latest") == 10
    assert admin.delete_records("trimmed", 0, -1) == 10


def test_delete_records_beyond_the_end_is_refused(broker: BrokerProcess) -> None:
    Admin(broker.bootstrap).create("short")
    with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
        Admin(broker.bootstrap).delete_records("short", 0, 1)


def test_offsets_are_found_by_time(broker: BrokerProcess) -> None:
    admin = Admin(broker.bootstrap)
    admin.create("timed")
    start_ms = int(time.time() * 1000) - 60_000
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(5):
        producer.produce("timed", b"%d" % number, timestamp=start_ms + 1000 * number)
        producer.flush(SECONDS)
    assert admin.offset("timed", 0, start_ms + 2000) == 2
    assert admin.offset("timed", 0, start_ms + 2001) == 3
    assert admin.offset("timed", 0, start_ms - 1) == 0
    assert admin.offset("timed", 0, start_ms + 4001) == -1
    assert admin.offset("timed", 0, "max-timestamp") == 4


def test_kafka_python_finds_offsets_by_time(broker: BrokerProcess) -> None:
    Admin(broker.bootstrap).create("timed-2")
    start_ms = int(time.time() * 1000) - 60_000
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap)
    for number in range(3):
        producer.send("timed-2", b"x", timestamp_ms=start_ms + 1000 * number).get(SECONDS)
    producer.close()
    place = kafka.TopicPartition("timed-2", 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=None)
    try:
        found = consumer.offsets_for_times({place: start_ms + 500})[place]
        assert (found.offset, found.timestamp) == (1, start_ms + 1000)
        assert consumer.beginning_offsets([place]) == {place: 0}
        assert consumer.end_offsets([place]) == {place: 3}
    finally:
        consumer.close()


def test_cluster_is_described(broker: BrokerProcess) -> None:
    client = Admin(broker.bootstrap).client
    found = client.describe_cluster(request_timeout=SECONDS).result()
    assert found.cluster_id
    assert [f"{node.host}:{node.port}" for node in found.nodes] == [broker.bootstrap]
    assert found.controller.id == found.nodes[0].id
