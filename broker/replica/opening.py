"""Logs that a request names and that a thread opens before the request is handled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.loop.deferred import Deferred
from tidelog.protocol.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


def opening_of(broker: Broker, topic: str, index: int, topic_id: bytes = b"") -> Deferred[None] | None:
    """Begin to open a partition's log in a thread. Return a Deferred that settles when that ends; None if the log is
    open, or this broker does not have the partition. Without a name the topic is found by ``topic_id``."""
    manager = broker.replica_manager
    try:
        return (manager.partition(topic, index) if topic else manager.partition_by_id(topic_id, index)).when_open()
    except KafkaError:
        return None  # the request raises it again
