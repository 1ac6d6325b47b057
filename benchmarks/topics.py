"""Topics for the benchmarks, through the admin client of librdkafka."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

TIMEOUT_S = 120.0
POLL_S = 0.05


class Topics:
    """Topics of one broker, to create and delete. The client logs nothing: benchmarks stop brokers on purpose."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = self._new_admin()

    def _new_admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})

    def create(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait until the leader of its last partition answers. Raises KafkaException."""
        topic = NewTopic(name, partitions, 1, config=dict(configs or {}))
        for future in self._admin.create_topics([topic], request_timeout=TIMEOUT_S).values():
            future.result()
        self.wait_for_leader(name, partitions - 1)

    def wait_for_leader(self, name: str, index: int = 0) -> None:
        """Wait until the leader of a partition answers. Raises KafkaException."""
        partition = TopicPartition(name, index)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                for future in self._admin.list_offsets({partition: latest}, request_timeout=10.0).values():
                    future.result()
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)
                self._admin = self._new_admin()  # a client that saw the topic without a leader may keep that metadata
            else:
                return

    def delete(self, name: str) -> None:
        """Delete a topic. Raises KafkaException."""
        for future in self._admin.delete_topics([name], request_timeout=TIMEOUT_S).values():
            future.result()
