"""librdkafka's admin client with methods that wait and return results instead of futures."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

TIMEOUT_S = 60.0
READY_POLL_S = 0.02
LED_S = 60.0
LOADING = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)
"""Errors of a broker that has just started, and loads its groups."""


class Admin:
    """Topics, configs and offsets of one broker. Every method raises KafkaException if the broker refuses."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def create(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait until its last partition's leader answers."""
        new = NewTopic(topic, partitions, 1, config=dict(configs or {}))
        self.client.create_topics([new], request_timeout=TIMEOUT_S)[topic].result()
        self.until_led(topic, partitions - 1)

    def until_led(self, topic: str, partition: int) -> None:
        """Wait until the partition's leader answers."""
        # A new client each time: a client of librdkafka keeps "no leader" in its cache.
        deadline = time.monotonic() + LED_S
        while True:
            try:
                Admin(self.bootstrap).offset(topic, partition, "latest")
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(READY_POLL_S)
            else:
                return

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self.client.delete_topics([topic], request_timeout=TIMEOUT_S)[topic].result()

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic by CreatePartitions, up to ``partitions`` in all."""
        self.client.create_partitions([NewPartitions(topic, partitions)], request_timeout=TIMEOUT_S)[topic].result()
        self.until_led(topic, partitions - 1)

    def committed(self, group: str, topic: str, partitions: int, *, stable: bool = False) -> dict[int, int]:
        """Return the group's committed offset of each partition, negative for one without.

        A broker that has just started may still load its groups: then it is asked again. With ``stable`` the answer
        waits for open transactions.
        """
        parts = [TopicPartition(topic, number) for number in range(partitions)]
        asked = [ConsumerGroupTopicPartitions(group, parts)]
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                found = self.client.list_consumer_group_offsets(asked, require_stable=stable)[group].result()
            except KafkaException as error:
                if error.args[0].code() not in LOADING or time.monotonic() > deadline:
                    raise
                time.sleep(READY_POLL_S)
            else:
                return {part.partition: part.offset for part in found.topic_partitions}

    def topics(self) -> dict[str, int]:
        """Count partitions by topic name."""
        found = self.client.list_topics(timeout=TIMEOUT_S).topics
        return {name: len(topic.partitions) for name, topic in found.items()}

    def configs(self, topic: str) -> dict[str, str]:
        """Read all configs of a topic that have a value."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        entries = self.client.describe_configs([resource], request_timeout=TIMEOUT_S)[resource].result()
        return {name: entry.value for name, entry in entries.items() if entry.value is not None}

    def set_config(self, topic: str, name: str, value: str) -> None:
        """Set one value by IncrementalAlterConfigs."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        self.client.incremental_alter_configs([resource], request_timeout=TIMEOUT_S)[resource].result()

    def offset(self, topic: str, partition: int, of: str | int) -> int:
        """Ask ListOffsets: ``earliest``, ``latest``, ``max-timestamp``, or the first at or after a time in ms."""
        found: Any = self._list_offset(topic, partition, of)
        return int(found.offset)

    def _list_offset(self, topic: str, partition: int, of: str | int) -> Any:
        named = {
            "earliest": OffsetSpec.earliest,
            "latest": OffsetSpec.latest,
            "max-timestamp": OffsetSpec.max_timestamp,
        }
        spec = OffsetSpec.for_timestamp(of) if isinstance(of, int) else named[of]()  # type: ignore[no-untyped-call]
        place = TopicPartition(topic, partition)
        return self.client.list_offsets({place: spec}, request_timeout=TIMEOUT_S)[place].result()

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Delete records up to an offset (-1: all below the high watermark); return the new log start offset."""
        place = TopicPartition(topic, partition, before)
        deleted: Any = self.client.delete_records([place], request_timeout=TIMEOUT_S)[place].result()
        return int(deleted.low_watermark)
