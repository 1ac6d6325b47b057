"""kafka-python, imported with its own warnings kept to itself: it reads its schemas by a deprecated call."""

from __future__ import annotations

import time
import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    import kafka.errors

__all__ = ["kafka", "read_to_end"]

READ_LIMIT_S = 60.0
POLL_MS = 200


def read_to_end(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Any]:
    """Return all records up to the end offsets, which are the last stable ones under read_committed."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level=isolation, auto_offset_reset="earliest", group_id=None
    )
    try:
        assigned = [kafka.TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        found: list[Any] = []
        deadline = time.monotonic() + READ_LIMIT_S
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            assert time.monotonic() < deadline, ends
            for records in consumer.poll(POLL_MS).values():
                found.extend(records)
        return found
    finally:
        consumer.close()
