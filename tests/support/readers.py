"""Unmodified clients that read all records of partitions, without a group, and report them in the same form."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import confluent_kafka

from tests.support.aiokafka_client import aiokafka
from tests.support.kafka_python import kafka
from tests.support.requirements import require_tool
from tests.support.seen import Seen

READ_TIMEOUT_S = 120.0
KCAT_INSTALL = "apt-get install kcat"
FETCH_BYTES = 4 << 20
Position = tuple[int, int]
"""Partition and offset."""
Reader = Callable[[str, str, Mapping[int, int]], dict[Position, Seen]]
"""A function of bootstrap address, topic, and each partition's end offset, which reads all records below the ends."""


class OffsetTwiceError(AssertionError):
    """A client got a record with the same offset twice."""


def _put(found: dict[Position, Seen], place: Position, seen: Seen) -> None:
    if place in found:
        raise OffsetTwiceError(place)
    found[place] = seen


def _is_complete(found: Mapping[Position, Seen], ends: Mapping[int, int]) -> bool:
    """Return whether every partition's last record was read. The topics are not compacted and have no markers."""
    return all(end == 0 or (partition, end - 1) in found for partition, end in ends.items())


def read_with_confluent(bootstrap: str, topic: str, ends: Mapping[int, int]) -> dict[Position, Seen]:
    """Read with confluent-kafka (librdkafka)."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-without-a-group",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
        }
    )
    found: dict[Position, Seen] = {}
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in ends])
        deadline = time.monotonic() + READ_TIMEOUT_S
        while not _is_complete(found, ends):
            # consume() waits until it has all 10,000 records or its timeout: a long one would delay the last records.
            messages = consumer.consume(10_000, timeout=0.2)
            assert messages or time.monotonic() < deadline, f"confluent-kafka is stuck after {len(found)} records"
            for message in cast(list[Any], messages):  # its type hints call everything optional
                assert message.error() is None, message.error()
                _put(found, (message.partition(), message.offset()), _seen(message))
    finally:
        consumer.close()
    return found


def _seen(message: Any) -> Seen:
    return Seen(message.key(), message.value(), tuple(message.headers() or ()))


def read_with_kafka_python(bootstrap: str, topic: str, ends: Mapping[int, int]) -> dict[Position, Seen]:
    """Read with kafka-python."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        check_crcs=True,
        max_partition_fetch_bytes=FETCH_BYTES,
        max_poll_records=10_000,
    )
    found: dict[Position, Seen] = {}
    try:
        partitions = [kafka.TopicPartition(topic, partition) for partition in ends]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        while not _is_complete(found, ends):
            batches = consumer.poll(timeout_ms=int(READ_TIMEOUT_S * 1000))
            assert batches, f"kafka-python got nothing more after {len(found)} records"
            for record in (record for records in batches.values() for record in records):
                seen = Seen(record.key, record.value, tuple(record.headers))
                _put(found, (record.partition, record.offset), seen)
    finally:
        consumer.close()
    return found


def read_with_aiokafka(bootstrap: str, topic: str, ends: Mapping[int, int]) -> dict[Position, Seen]:
    """Read with aiokafka, on an event loop of its own."""
    return asyncio.run(_read_with_aiokafka(bootstrap, topic, ends))


async def _read_with_aiokafka(bootstrap: str, topic: str, ends: Mapping[int, int]) -> dict[Position, Seen]:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="none",
        check_crcs=True,
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    found: dict[Position, Seen] = {}
    await consumer.start()
    try:
        partitions = [aiokafka.TopicPartition(topic, partition) for partition in ends]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        while not _is_complete(found, ends):
            batches = await consumer.getmany(timeout_ms=int(READ_TIMEOUT_S * 1000), max_records=10_000)
            assert batches, f"aiokafka got nothing more after {len(found)} records"
            for record in (record for records in batches.values() for record in records):
                seen = Seen(record.key, record.value, tuple(record.headers))
                _put(found, (record.partition, record.offset), seen)
    finally:
        await consumer.stop()
    return found


def read_with_kcat(bootstrap: str, topic: str, ends: Mapping[int, int]) -> dict[Position, Seen]:
    """Read with kcat, which prints the lengths of key and value, so both may contain any bytes.

    Headers must contain neither ``,`` nor ``=``.
    """
    kcat = require_tool("kcat", KCAT_INSTALL)
    command = [kcat, "-C", "-q", "-e", "-b", bootstrap, "-t", topic, "-o", "beginning", "-X", "check.crcs=true"]
    command += ["-f", "%p %o %K %S %h\n%k%s\n"]
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, timeout=READ_TIMEOUT_S, env=environment, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    found: dict[Position, Seen] = {}
    for place, seen in _parse_kcat(done.stdout):
        _put(found, place, seen)
    assert _is_complete(found, ends), f"kcat ended after {len(found)} records"
    return found


def _parse_kcat(output: bytes) -> Iterator[tuple[Position, Seen]]:
    at = 0
    while at < len(output):
        line_end = output.index(b"\n", at)
        partition, offset, key_bytes, value_bytes, headers = output[at:line_end].split(b" ", 4)
        key_from = line_end + 1
        value_from = key_from + max(0, int(key_bytes))
        value_to = value_from + max(0, int(value_bytes))
        key = None if int(key_bytes) < 0 else output[key_from:value_from]
        value = None if int(value_bytes) < 0 else output[value_from:value_to]
        yield (int(partition), int(offset)), Seen(key, value, _parse_headers(headers))
        at = value_to + 1


def _parse_headers(text: bytes) -> tuple[tuple[str, bytes], ...]:
    pairs = (pair.partition(b"=") for pair in text.split(b",") if pair)
    return tuple((name.decode(), value) for name, _, value in pairs)


READERS: dict[str, Reader] = {
    "confluent-kafka": read_with_confluent,
    "kafka-python": read_with_kafka_python,
    "aiokafka": read_with_aiokafka,
    "kcat": read_with_kcat,
}
