"""Transactions of unmodified clients: reads by read_committed, fencing, exactly once over kill -9."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from benchmarks.rivals.process import BrokerProcess
from tests.support.admin import Admin

SECONDS = 30.0
QUIET = {"log_level": 0, "reconnect.backoff.max.ms": 200}


def producer_of(broker: BrokerProcess, transactional_id: str, **settings: Any) -> Producer:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id, **QUIET, **settings}
    )
    producer.init_transactions(SECONDS)
    return producer


def read_committed(broker: BrokerProcess, topic: str, partitions: int = 1) -> list[bytes]:
    """Read all values that read_committed sees, up to the last stable offset of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    values: list[bytes] = []
    ended: set[int] = set()
    deadline = time.monotonic() + SECONDS
    try:
        while len(ended) < partitions:
            assert time.monotonic() < deadline
            message = consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                values.append(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition() or 0)
    finally:
        consumer.close()
    return values


def test_committed_is_read_and_aborted_is_not(broker: BrokerProcess) -> None:
    topic = "mixed"
    Admin(broker.bootstrap).create(topic, 2)
    producer = producer_of(broker, topic)
    expected = []
    for number in range(20):
        producer.begin_transaction()
        for partition in range(2):
            producer.produce(topic, f"{number}-{partition}", partition=partition)
        if number % 3:
            producer.commit_transaction(SECONDS)
            expected += [f"{number}-{partition}".encode() for partition in range(2)]
        else:
            producer.flush(SECONDS)
            producer.abort_transaction(SECONDS)
    assert sorted(read_committed(broker, topic, 2)) == sorted(expected)


def test_an_open_transaction_holds_readers_back(broker: BrokerProcess) -> None:
    topic = "open"
    Admin(broker.bootstrap).create(topic)
    first, second = producer_of(broker, "open-1"), producer_of(broker, "open-2")
    first.begin_transaction()
    first.produce(topic, "first", partition=0)
    first.flush(SECONDS)
    second.begin_transaction()
    second.produce(topic, "second", partition=0)
    second.commit_transaction(SECONDS)
    assert read_committed(broker, topic) == []
    first.commit_transaction(SECONDS)
    assert read_committed(broker, topic) == [b"first", b"second"]


def test_a_zombie_is_fenced(broker: BrokerProcess) -> None:
    topic = "zombie"
    Admin(broker.bootstrap).create(topic)
    zombie = producer_of(broker, topic)
    zombie.begin_transaction()
    zombie.produce(topic, "of the zombie", partition=0)
    zombie.flush(SECONDS)
    successor = producer_of(broker, topic)
    successor.begin_transaction()
    successor.produce(topic, "of the successor", partition=0)
    successor.commit_transaction(SECONDS)
    with pytest.raises(KafkaException) as failure:
        zombie.commit_transaction(SECONDS)
    assert failure.value.args[0].code() in (
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    )
    assert read_committed(broker, topic) == [b"of the successor"]


def test_an_abandoned_transaction_times_out(broker: BrokerProcess) -> None:
    topic = "abandoned"
    Admin(broker.bootstrap).create(topic)
    producer = producer_of(broker, topic, **{"transaction.timeout.ms": 1_000})
    producer.begin_transaction()
    producer.produce(topic, "left behind", partition=0)
    producer.flush(SECONDS)
    other = producer_of(broker, "abandoned-other")
    other.begin_transaction()
    other.produce(topic, "behind it", partition=0)
    other.commit_transaction(SECONDS)
    deadline = time.monotonic() + SECONDS
    while read_committed(broker, topic) != [b"behind it"]:
        assert time.monotonic() < deadline


def copy_batch(consumer: Consumer, producer: Producer, target: str) -> int:
    """Consume, transform and produce within one transaction; returns how many records it carried."""
    messages = [m for m in consumer.consume(50, 0.5) if m.error() is None]
    if not messages:
        return 0
    producer.begin_transaction()
    for message in messages:
        producer.produce(target, b"copy of " + (message.value() or b""))
    positions = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), SECONDS)
    producer.commit_transaction(SECONDS)
    return len(messages)


def copier(broker: BrokerProcess, source: str) -> tuple[Consumer, Producer]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "copier",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "session.timeout.ms": 6_000,
            **QUIET,
        }
    )
    consumer.subscribe([source])
    return consumer, producer_of(broker, "copier")


def test_exactly_once_over_kills_of_broker_and_client(fresh_broker: BrokerProcess) -> None:
    count = 600
    admin = Admin(fresh_broker.bootstrap)
    admin.create("source", 2)
    admin.create("target", 2)
    plain = Producer({"bootstrap.servers": fresh_broker.bootstrap, **QUIET})
    for index in range(count):
        plain.produce("source", str(index))
    assert plain.flush(SECONDS) == 0

    copied = 0
    deadline = time.monotonic() + 4 * SECONDS
    for incarnation in range(4):
        consumer, producer = copier(fresh_broker, "source")
        carried = 0
        while copied < count and time.monotonic() < deadline:
            try:
                carried += copy_batch(consumer, producer, "target")
            except KafkaException:
                break  # a fatal or abortable error: start over, the offsets decide where
            if incarnation < 3 and carried >= 100:
                break  # this client is given up in the middle of its work
            copied = len(read_committed(fresh_broker, "target", 2))
        if incarnation < 2:
            fresh_broker.kill()
            fresh_broker.start()
        consumer.close()
    values = read_committed(fresh_broker, "target", 2)
    assert sorted(values) == sorted(f"copy of {index}".encode() for index in range(count))


async def test_aiokafka_commits_and_aborts_transactions(broker: BrokerProcess) -> None:
    topic = "by-aiokafka-transactions"
    await asyncio.to_thread(Admin(broker.bootstrap).create, topic)
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=topic)
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"committed", partition=0)
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"aborted", partition=0)
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait(topic, b"committed too", partition=0)
            await producer.send_offsets_to_transaction({aiokafka.TopicPartition(topic, 0): 2}, "aiokafka-group")
    finally:
        await producer.stop()
    assert await asyncio.to_thread(read_committed, broker, topic) == [b"committed", b"committed too"]
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, group_id="aiokafka-group")
    await consumer.start()
    try:
        assert await consumer.committed(aiokafka.TopicPartition(topic, 0)) == 2
    finally:
        await consumer.stop()
