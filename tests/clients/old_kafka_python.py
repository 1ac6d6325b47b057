"""A program for old releases of kafka-python: answers each line of standard input, JSON, by a line of JSON.

An answer to a request that failed has the key ``error``. Run by `tests.support.old_clients`, never imported.
"""

from __future__ import annotations

import json
import sys
import traceback
from base64 import b64decode, b64encode
from typing import Any

import kafka

TIMEOUT_S = 60


def to_text(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def to_bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def settings(asked: dict[str, Any]) -> dict[str, Any]:
    version = tuple(int(part) for part in asked["api_version"].split("."))
    return {"bootstrap_servers": asked["bootstrap"], "api_version": version}


def send(producer: Any, topic: str, record: dict[str, Any], with_headers: bool) -> Any:
    headers = [(each["key"], b64decode(each["value"])) for each in record["headers"]]
    more = {"headers": headers} if with_headers else {}
    key, value = to_bytes(record["key"]), to_bytes(record["value"])
    return producer.send(topic, key=key, value=value, partition=record["partition"], **more)


def produce(asked: dict[str, Any]) -> dict[str, Any]:
    """Send all records once for each codec, in order."""
    with_headers = settings(asked)["api_version"] >= (0, 11)
    for codec in asked["codecs"]:
        compression = None if codec == "none" else codec
        producer = kafka.KafkaProducer(compression_type=compression, linger_ms=20, retries=3, **settings(asked))
        sent = [send(producer, asked["topic"], record, with_headers) for record in asked["records"]]
        producer.flush(TIMEOUT_S)
        for future in sent:
            future.get(TIMEOUT_S)
        producer.close()
    return {}


def received(record: Any) -> dict[str, Any]:
    headers = [{"key": name, "value": to_text(value)} for name, value in getattr(record, "headers", [])]
    timestamp = -1 if record.timestamp is None else record.timestamp
    place = {"partition": record.partition, "offset": record.offset, "timestamp": timestamp}
    return {**place, "key": to_text(record.key), "value": to_text(record.value), "headers": headers}


def reader(asked: dict[str, Any], group: str | None) -> Any:
    return kafka.KafkaConsumer(
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=TIMEOUT_S * 1000,
        **settings(asked),
    )


def consume(asked: dict[str, Any]) -> dict[str, Any]:
    """Read ``count`` records from the start of all partitions."""
    consumer = reader(asked, None)
    partitions = [kafka.TopicPartition(asked["topic"], partition) for partition in range(asked["partitions"])]
    consumer.assign(partitions)
    for partition in partitions:
        consumer.seek(partition, 0)
    records = [received(next(consumer)) for _ in range(asked["count"])]
    consumer.close()
    return {"records": records}


def group(asked: dict[str, Any]) -> dict[str, Any]:
    """Read ``count`` records as a member of a group, commit, leave."""
    consumer = reader(asked, asked["group"])
    consumer.subscribe([asked["topic"]])
    records = [received(next(consumer)) for _ in range(asked["count"])]
    consumer.commit()
    consumer.close()
    return {"records": records}


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Do what a request asks for; a failure is an answer as well."""
    try:
        return {"produce": produce, "consume": consume, "group": group}[asked["mode"]](asked)
    except Exception:  # noqa: BLE001 - reported by the test that asked
        return {"error": traceback.format_exc()}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
