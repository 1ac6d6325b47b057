"""Consumer groups of unmodified clients: librdkafka, kafka-python and aiokafka; over restarts and kill -9."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from benchmarks.rivals.process import BrokerProcess
from tests.support.admin import Admin
from tests.support.kafka_python import kafka
from tests.support.seen import Seen
from tests.support.writers import Writer

SECONDS = 30.0
POLL_S = 0.05


CLASSIC = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 200}
CONSUMER = {"group_protocol": "consumer"}


def write(broker: BrokerProcess, topic: str, count: int) -> None:
    writer = Writer(broker.bootstrap, topic)
    for index in range(count):
        writer.send(Seen(str(index).encode(), b"v", ()))
    writer.flush()
    assert not writer.acknowledged.failures


def poll_until(condition: Callable[[], bool], poll: Callable[[], Any]) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        poll()


class Member:
    """One librdkafka consumer that counts what it reads and knows what it owns."""

    def __init__(self, broker: BrokerProcess, topic: str, **settings: Any) -> None:
        self.seen: list[tuple[int, int]] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                **{key.replace("_", "."): value for key, value in (settings or CLASSIC).items()},
            }
        )
        self.consumer.subscribe([topic])

    def poll(self) -> None:
        message = self.consumer.poll(POLL_S)
        if message is not None and message.error() is None:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.seen.append((partition, offset))

    def partitions(self) -> set[int]:
        return {owned.partition for owned in self.consumer.assignment()}


@contextmanager
def members(broker: BrokerProcess, topic: str, count: int, **settings: Any) -> Iterator[list[Member]]:
    """Members of one group, closed at the end."""
    found = [Member(broker, topic, **settings) for _ in range(count)]
    try:
        yield found
    finally:
        for member in found:
            member.consumer.close()


def poll_all(group: list[Member]) -> None:
    for member in group:
        member.poll()


def shared(group: list[Member], partitions: int) -> bool:
    """Return whether every partition has exactly one owner and every member something to do."""
    owned = [member.partitions() for member in group]
    return all(owned) and sorted(index for each in owned for index in each) == list(range(partitions))


def committed(broker: BrokerProcess, topic: str, partitions: int) -> dict[int, int]:
    """Return the committed offsets of the group that is named as its topic."""
    return Admin(broker.bootstrap).committed(topic, topic, partitions)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_partitions_are_shared_and_follow_members(broker: BrokerProcess, strategy: str) -> None:
    topic = f"shared-{strategy}"
    Admin(broker.bootstrap).create(topic, 6)
    write(broker, topic, 600)
    with members(broker, topic, 3, partition_assignment_strategy=strategy) as group:
        poll_until(lambda: shared(group, 6), lambda: poll_all(group))
        leaving = group.pop()
        leaving.consumer.close()
        poll_until(lambda: shared(group, 6), lambda: poll_all(group))


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_consumer_protocol_shares_partitions_and_follows_members(broker: BrokerProcess, assignor: str) -> None:
    topic = f"shared-by-broker-{assignor}"
    Admin(broker.bootstrap).create(topic, 6)
    with members(broker, topic, 3, **CONSUMER, group_remote_assignor=assignor) as group:
        poll_until(lambda: shared(group, 6), lambda: poll_all(group))
        write(broker, topic, 60)
        poll_until(lambda: sum(len(m.seen) for m in group) == 60, lambda: poll_all(group))
        leaving = group.pop()
        leaving.consumer.close()
        poll_until(lambda: shared(group, 6), lambda: poll_all(group))


def test_consumer_protocol_follows_a_pattern(broker: BrokerProcess) -> None:
    admin = Admin(broker.bootstrap)
    admin.create("pattern-1", 1)
    with members(broker, "^pattern-.*", 1, **CONSUMER) as (member,):
        poll_until(lambda: {owned.topic for owned in member.consumer.assignment()} == {"pattern-1"}, member.poll)
        admin.create("pattern-2", 1)
        wanted = {"pattern-1", "pattern-2"}
        poll_until(lambda: {owned.topic for owned in member.consumer.assignment()} == wanted, member.poll)


def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets(broker: BrokerProcess) -> None:
    topic = "migrated"
    Admin(broker.bootstrap).create(topic, 2)
    for protocol in (CLASSIC, CONSUMER, CLASSIC):
        write(broker, topic, 10)
        with members(broker, topic, 1, **protocol) as (member,):
            poll_until(lambda found=member: len(found.seen) == 10, member.poll)  # type: ignore[misc]
            member.consumer.commit(asynchronous=False)


def test_committed_offsets_are_where_the_next_member_begins(broker: BrokerProcess) -> None:
    topic = "resumed"
    Admin(broker.bootstrap).create(topic, 2)
    write(broker, topic, 100)
    with members(broker, topic, 1) as (first,):
        poll_until(lambda: len(first.seen) == 100, first.poll)
        first.consumer.commit(asynchronous=False)
    write(broker, topic, 50)
    with members(broker, topic, 1) as (second,):
        poll_until(lambda: len(second.seen) == 50, second.poll)
    assert not set(first.seen) & set(second.seen)


@pytest.mark.parametrize("kill", [True, False], ids=["kill -9", "restart"])
@pytest.mark.parametrize("protocol", [CLASSIC, CONSUMER], ids=["classic", "consumer"])
def test_groups_and_offsets_survive(fresh_broker: BrokerProcess, kill: bool, protocol: dict[str, Any]) -> None:
    topic = "survivors"
    Admin(fresh_broker.bootstrap).create(topic, 4)
    with members(fresh_broker, topic, 2, **protocol) as group:
        poll_until(lambda: shared(group, 4), lambda: poll_all(group))
        write(fresh_broker, topic, 200)
        poll_until(lambda: sum(len(m.seen) for m in group) >= 200, lambda: poll_all(group))
        for member in group:
            member.consumer.commit(asynchronous=False)
        before = committed(fresh_broker, topic, 4)
        assert sum(before.values()) == 200
        if kill:
            fresh_broker.kill()
        else:
            fresh_broker.terminate()
        fresh_broker.start()
        assert committed(fresh_broker, topic, 4) == before
        write(fresh_broker, topic, 100)
        poll_until(lambda: sum(len(m.seen) for m in group) >= 300 and shared(group, 4), lambda: poll_all(group))
    seen = [place for member in group for place in member.seen]
    assert len(seen) == len(set(seen)), "a record was read twice although its offset was committed"


def test_static_members_come_back_without_a_rebalance(broker: BrokerProcess) -> None:
    topic = "static"
    Admin(broker.bootstrap).create(topic, 2)
    write(broker, topic, 10)
    stays = Member(broker, topic, group_instance_id="a")
    leaves = Member(broker, topic, group_instance_id="b")
    poll_until(lambda: shared([stays, leaves], 2), lambda: poll_all([stays, leaves]))
    owned = leaves.partitions()
    leaves.consumer.close()
    back = Member(broker, topic, group_instance_id="b")
    poll_until(lambda: shared([stays, back], 2), lambda: poll_all([stays, back]))
    assert back.partitions() == owned
    stays.consumer.close()
    back.consumer.close()


def test_admin_sees_and_deletes_groups(broker: BrokerProcess) -> None:
    topic = "administered"
    admin = Admin(broker.bootstrap)
    admin.create(topic, 2)
    write(broker, topic, 10)
    with members(broker, topic, 1) as (member,):
        poll_until(lambda: len(member.seen) == 10, member.poll)
        member.consumer.commit(asynchronous=False)
        described = admin.client.describe_consumer_groups([topic])[topic].result()
        assert described.state.name == "STABLE"
        assert len(described.members[0].assignment.topic_partitions) == 2
        with pytest.raises(KafkaException, match="not empty"):
            admin.client.delete_consumer_groups([topic])[topic].result()
    assert topic in {group.group_id for group in admin.client.list_consumer_groups().result().valid}
    wanted = [TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 4)]
    admin.client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(topic, wanted)])[topic].result()
    assert committed(broker, topic, 2) == {0: 3, 1: 4}
    admin.client.delete_consumer_groups([topic])[topic].result()
    assert topic not in {group.group_id for group in admin.client.list_consumer_groups().result().valid}


def test_a_deleted_topic_takes_its_committed_offsets_along(broker: BrokerProcess) -> None:
    topic = "made-again"
    admin = Admin(broker.bootstrap)
    for _ in range(2):
        admin.create(topic, 1)
        write(broker, topic, 5)
        with members(broker, topic, 1) as (member,):
            poll_until(lambda found=member: len(found.seen) == 5, member.poll)  # type: ignore[misc]
            member.consumer.commit(asynchronous=False)
        admin.delete(topic)


def test_kafka_python_resumes_where_its_group_committed(broker: BrokerProcess) -> None:
    topic = "by-kafka-python-group"
    Admin(broker.bootstrap).create(topic, 2)
    write(broker, topic, 50)
    seen: list[tuple[int, int]] = []
    for expected in (50, 60):
        consumer = kafka.KafkaConsumer(
            topic,
            group_id=topic,
            bootstrap_servers=broker.bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        try:
            deadline = time.monotonic() + SECONDS
            while len(seen) < expected:
                assert time.monotonic() < deadline, f"{len(seen)} of {expected} records"
                # One poll is as long as any rebalance: see `take_up_join`.
                for records in consumer.poll(timeout_ms=int(SECONDS * 1000)).values():
                    seen += [(record.partition, record.offset) for record in records]
            consumer.commit()
        finally:
            consumer.close()
        write(broker, topic, 10)
    assert len(set(seen)) == 60


async def read_some(consumer: aiokafka.AIOKafkaConsumer, count: int) -> list[tuple[int, int]]:
    found = []
    for _ in range(count):
        record = await asyncio.wait_for(consumer.getone(), SECONDS)
        found.append((record.partition, record.offset))
    return found


async def test_aiokafka_resumes_where_its_group_committed(broker: BrokerProcess) -> None:
    topic = "by-aiokafka-group"
    await asyncio.to_thread(Admin(broker.bootstrap).create, topic, 2)
    await asyncio.to_thread(write, broker, topic, 50)
    seen: list[tuple[int, int]] = []
    for count in (50, 10):
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            group_id=topic,
            bootstrap_servers=broker.bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            seen += await read_some(consumer, count)
            await consumer.commit()
        finally:
            await consumer.stop()
        await asyncio.to_thread(write, broker, topic, 10)
    assert len(set(seen)) == 60
