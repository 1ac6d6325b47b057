"""Topics for the benchmarks, through the admin client of librdkafka."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from benchmarks.rivals.process import BrokerProcess

TIMEOUT_S = 120.0


def admin(bootstrap: str) -> AdminClient:
    """An admin client that keeps silent about brokers that go away: here they are stopped on purpose."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def create_topic(
    broker: BrokerProcess, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> None:
    """Create a topic and wait until the leader of its last partition answers."""
    client = admin(broker.bootstrap)
    topic = NewTopic(name, partitions, 1, config=dict(configs or {}))
    for future in client.create_topics([topic], request_timeout=TIMEOUT_S).values():
        future.result()
    wait_for_leader(broker, name, partitions - 1)


def wait_for_leader(broker: BrokerProcess, name: str, partition: int) -> None:
    """Wait until the partition's leader answers ListOffsets. Raises the client's error after a time."""
    client = admin(broker.bootstrap)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(name, partition): latest}
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            for future in client.list_offsets(asked, request_timeout=10.0).values():
                future.result()
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def delete_topic(broker: BrokerProcess, name: str) -> None:
    """Delete a topic."""
    client = admin(broker.bootstrap)
    for future in client.delete_topics([name], request_timeout=TIMEOUT_S).values():
        future.result()
