"""Readers of a whole topic and of a group's committed offsets, for the checks at the end of a soak."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.support.admin import Admin
from tests.support.readers import Position
from tests.support.soak.patience import Patience


class Found(NamedTuple):
    """Key and value of a record."""

    key: bytes | None
    value: bytes | None


class NotReadError(AssertionError):
    """The end of a topic is not reached: a transaction is open, or records are not served."""


def read_all(bootstrap: str, topic: str, *, committed: bool = True) -> dict[Position, Found]:
    """Read every record below the high watermarks; ``committed`` leaves out those of aborted transactions.

    With ``committed`` no transaction may be open. Raises NotReadError, KafkaException.
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


def read_to(consumer: Any, topic: str, ends: dict[int, int], patience: Patience) -> dict[Position, Found]:
    """Read the assigned partitions up to ``ends``, as long as records come. Raises NotReadError, KafkaException."""
    found: dict[Position, Found] = {}
    waiting = {number for number, end in ends.items() if end}
    while waiting:
        if patience.is_over((len(found), len(waiting))):
            raise NotReadError(f"{topic}: partitions {sorted(waiting)} are not read to their ends {ends}")
        for message in consumer.consume(5_000, timeout=0.2):
            error, position = message.error(), (message.partition(), message.offset())
            if error is None:
                if position in found:
                    raise NotReadError(f"{topic}-{position[0]}@{position[1]} was read twice")
                found[position] = Found(message.key(), message.value())
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            elif position[1] >= ends[position[0]]:
                waiting.discard(position[0])
    return found


def committed_offsets(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """Return the group's committed offset of each partition, 0 for one without. Raises KafkaException."""
    admin = Admin(bootstrap)
    found = admin.committed(group, topic, admin.topics()[topic], stable=True)
    return {partition: max(0, offset) for partition, offset in found.items()}


def numbers_of(values: Iterable[bytes | None]) -> list[int]:
    """Return the number that each value begins with; null values are left out."""
    return [int(value.partition(b"/")[0]) for value in values if value is not None]


def value_of(number: int) -> bytes:
    """Make the value of a number: its digits, ``/``, and up to 399 times ``x``, as many as follow from the number."""
    return b"%d/" % number + b"x" * (number * 7919 % 400)
