"""Groups and their offsets through the admin clients of librdkafka, kafka-python and aiokafka, each with the calls that
it has.

Every test has a group with a member, an empty one with offsets, and none. ``--broker=kafka`` shows the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiokafka
import aiokafka.admin
import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from benchmarks.rivals.process import BrokerProcess
from tests.support.admin import Admin
from tests.support.kafka_python import kafka
from tidelog.protocol.errors import GroupIdNotFoundError, NonEmptyGroupError

SECONDS = 20.0
PROTOCOLS = ("classic", "consumer")


@contextmanager
def member(broker: BrokerProcess, group: str, topic: str, protocol: str = "classic") -> Iterator[Consumer]:
    """A consumer that owns the topic's partitions."""
    settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "group.id": group, "group.protocol": protocol}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "client.id": "held", "enable.auto.commit": False})
    consumer.subscribe([topic])
    deadline = time.monotonic() + SECONDS
    while len(consumer.assignment()) < 2:
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    try:
        yield consumer
    finally:
        consumer.close()


def commit(broker: BrokerProcess, group: str, topic: str, offset: int) -> None:
    """Commit offsets of a group without members."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset), TopicPartition(topic, 1, offset)], asynchronous=False)
    consumer.close()


@pytest.fixture
def topic(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.replace("[", "-").rstrip("]")
    Admin(broker.bootstrap).create(name, 2)
    return name


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_confluent_describes_resets_and_deletes_groups(broker: BrokerProcess, topic: str, protocol: str) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    commit(broker, f"{topic}-empty", topic, 5)
    with member(broker, f"{topic}-live", topic, protocol):
        listed = {
            found.group_id: found for found in client.list_consumer_groups(request_timeout=SECONDS).result().valid
        }
        assert listed[f"{topic}-live"].state is ConsumerGroupState.STABLE
        assert listed[f"{topic}-live"].type is ConsumerGroupType[protocol.upper()]
        assert listed[f"{topic}-empty"].state is ConsumerGroupState.EMPTY
        described = client.describe_consumer_groups([f"{topic}-live"], request_timeout=SECONDS)[
            f"{topic}-live"
        ].result()
        (only,) = described.members
        assert (only.client_id, len(only.assignment.topic_partitions)) == ("held", 2)
        with pytest.raises(KafkaException) as refused:
            client.delete_consumer_groups([f"{topic}-live"], request_timeout=SECONDS)[f"{topic}-live"].result()
        assert refused.value.args[0].code() == NonEmptyGroupError.code
    group = f"{topic}-empty"
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])
    client.alter_consumer_group_offsets([asked], request_timeout=SECONDS)[group].result()
    found = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=SECONDS)
    assert {(p.partition, p.offset) for p in found[group].result().topic_partitions} == {(0, 3), (1, 5)}
    client.delete_consumer_groups([group], request_timeout=SECONDS)[group].result()
    with pytest.raises(KafkaException) as gone:
        client.delete_consumer_groups([group], request_timeout=SECONDS)[group].result()
    assert gone.value.args[0].code() == GroupIdNotFoundError.code


def test_kafka_python_describes_resets_and_deletes_groups(broker: BrokerProcess, topic: str) -> None:
    group, first, second = f"{topic}-empty", kafka.TopicPartition(topic, 0), kafka.TopicPartition(topic, 1)
    commit(broker, group, topic, 5)
    client = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        with member(broker, f"{topic}-live", topic):
            listed = {found["group_id"]: found for found in client.list_groups()}
            assert listed[f"{topic}-live"]["group_state"] == "Stable"
            assert listed[group]["group_state"] == "Empty"
            described = client.describe_groups([f"{topic}-live"])[f"{topic}-live"]
            assert [found["client_id"] for found in described["members"]] == ["held"]
        client.alter_group_offsets(group, {first: kafka.structs.OffsetAndMetadata(3, "", -1)})
        offsets = client.list_group_offsets([group])[group]
        assert {place: found.offset for place, found in offsets.items()} == {first: 3, second: 5}
        client.delete_group_offsets(group, [second])
        assert set(client.list_group_offsets([group])[group]) == {first}
        client.delete_groups([group])
        assert group not in {found["group_id"] for found in client.list_groups()}
    finally:
        client.close()


async def test_aiokafka_describes_groups_and_reads_offsets(broker: BrokerProcess, topic: str) -> None:
    group = f"{topic}-empty"
    commit(broker, group, topic, 5)
    client = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await client.start()
    try:
        with member(broker, f"{topic}-live", topic):
            listed = {found[0] for found in await client.list_consumer_groups()}
            assert {f"{topic}-live", group} <= listed
            (described,) = await client.describe_consumer_groups([f"{topic}-live"])
            assert f"{topic}-live" in str(described)
        offsets = await client.list_consumer_group_offsets(group)
        assert {place.partition: found.offset for place, found in offsets.items()} == {0: 5, 1: 5}
    finally:
        await client.close()
