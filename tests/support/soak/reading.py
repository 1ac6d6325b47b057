"""Reading all of a topic at the end of a soak, and waiting until it can be read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from tests.support.admin import Admin
from tests.support.readers import Place
from tests.support.soak.patience import Patience


class Found(NamedTuple):
    """Key and value of a record."""

    key: bytes | None
    value: bytes | None


class NotReadError(AssertionError):
    """The end of a topic is not reached: a transaction is open, or records are not served."""


def read_all(bootstrap: str, topic: str, *, committed: bool = True) -> dict[Place, Found]:
    """Read every record up to the end of all partitions (with ``committed`` up to the high watermark: no transaction
    may be open). Raises NotReadError, KafkaException.
    """
    partitions = Admin(bootstrap).topics()[topic]
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-without-a-group",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "check.crcs": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    try:
        ends = {number: Admin(bootstrap).offset(topic, number, "latest") for number in range(partitions)}
        first = [TopicPartition(topic, number, Admin(bootstrap).offset(topic, number, "earliest")) for number in ends]
        consumer.assign(first)
        return read_to(consumer, topic, ends, Patience())
    finally:
        consumer.close()


def read_to(consumer: Any, topic: str, ends: dict[int, int], patience: Patience) -> dict[Place, Found]:
    """Read what is assigned up to these ends, as long as records come. Raises NotReadError, KafkaException."""
    found: dict[Place, Found] = {}
    waiting = {number for number, end in ends.items() if end}
    while waiting:
        if patience.is_over((len(found), len(waiting))):
            raise NotReadError(f"{topic}: partitions {sorted(waiting)} do not come to their ends {ends}")
        for message in consumer.consume(5_000, timeout=0.2):
            error, place = message.error(), (message.partition(), message.offset())
            if error is None:
                if place in found:
                    raise NotReadError(f"{topic}-{place[0]}@{place[1]} was read twice")
                found[place] = Found(message.key(), message.value())
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            elif place[1] >= ends[place[0]]:
                waiting.discard(place[0])
    return found


def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """Return the group's committed offset of each partition, 0 for one without. Raises KafkaException."""
    admin = Admin(bootstrap)
    parts = [TopicPartition(topic, number) for number in range(admin.topics()[topic])]
    asked = ConsumerGroupTopicPartitions(group, parts)
    found = admin.client.list_consumer_group_offsets([asked], require_stable=True)[group].result()
    return {part.partition: max(0, part.offset) for part in found.topic_partitions}


def numbers_of(values: Iterable[bytes | None]) -> list[int]:
    """Return the number each value begins with."""
    return [int(value.partition(b"/")[0]) for value in values if value is not None]


def value_of(number: int) -> bytes:
    """Make the value of a number: the number, and up to 400 bytes more that follow from it."""
    return b"%d/" % number + b"x" * (number * 7919 % 400)
