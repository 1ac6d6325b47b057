"""A program for old releases of kafka-python: passes values on. Run by `tests.support.old_clients`, never imported."""

from __future__ import annotations

import json
import sys
from base64 import b64decode, b64encode
from typing import Any

import kafka

TIMEOUT_S = 30


def produce(options: dict[str, Any]) -> None:
    """Send each value of standard input, in order."""
    producer = kafka.KafkaProducer(
        bootstrap_servers=options["bootstrap"],
        api_version=tuple(int(part) for part in options["api_version"].split(".")),
        compression_type=options["codec"] or None,
        linger_ms=20,
        retries=3,
    )
    sent = [producer.send(options["topic"], b64decode(line), partition=0) for line in sys.stdin.buffer]
    producer.flush(TIMEOUT_S)
    for future in sent:
        future.get(TIMEOUT_S)
    producer.close()


def consume(options: dict[str, Any]) -> None:
    """Print ``count`` values from the start of partition 0."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=options["bootstrap"],
        api_version=tuple(int(part) for part in options["api_version"].split(".")),
        group_id=None,
        auto_offset_reset="earliest",
        consumer_timeout_ms=TIMEOUT_S * 1000,
    )
    partition = kafka.TopicPartition(options["topic"], 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    for _ in range(options["count"]):
        record = next(consumer)
        sys.stdout.buffer.write(b64encode(record.value) + b"\n")
    consumer.close()


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    {"produce": produce, "consume": consume}[asked["mode"]](asked)
