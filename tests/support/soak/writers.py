"""Parties of the soak that write with librdkafka, aiokafka and kafka-python, and one that changes topics' settings."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException, Producer

from tests.support.admin import Admin
from tests.support.aiokafka_client import aiokafka
from tests.support.kafka_python import kafka
from tests.support.soak.ledger import Ledger
from tests.support.soak.party import Party, World
from tests.support.soak.patience import PATIENCE_S
from tests.support.soak.reading import read_all, value_of

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FAST_RECONNECT: Mapping[str, str | int] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 50,
    "log_level": 0,
}
"""Settings with which librdkafka connects again soon after a restart of the broker, and prints nothing."""


class PlainWriter(Party):
    """An idempotent producer: each number is in the topic once, at the offset it was acknowledged at.

    Now and then the producer is replaced by a new one, whose codec is drawn again.
    """

    keys = 50
    partitions = 3
    batch_bytes = 50_000
    """``batch.size``: half of the smallest ``segment.bytes`` that a party sets, as a batch must fit into a segment."""
    max_records = 12
    """Records of one turn, at most."""

    def __init__(self, world: World, topic: str, configs: Mapping[str, str]) -> None:
        super().__init__(world, f"writer of {topic}")
        self.ledger = Ledger(topic)
        Admin(world.bootstrap).create(topic, self.partitions, configs)
        self.producer = self._new_producer()

    def _new_producer(self) -> Any:
        return Producer(
            {
                **FAST_RECONNECT,
                "bootstrap.servers": self.world.bootstrap,
                "enable.idempotence": True,
                "linger.ms": self.chance.choice([0, 5, 20]),
                "compression.type": self.chance.choice(CODECS),
                "batch.size": self.batch_bytes,
                "message.timeout.ms": int(PATIENCE_S * 1000),
                "topic.metadata.refresh.interval.ms": 2_000,
            }
        )

    def turn(self) -> None:
        for _ in range(self.chance.randint(1, self.max_records)):
            self.send(self.ledger.sent)
            self.ledger.sent += 1
        self.producer.poll(0)
        if self.chance.random() < 0.01:
            self.renew()

    def send(self, number: int) -> None:
        """Send a number."""
        self.put(number, self.key_of(number), value_of(number))

    def key_of(self, number: int) -> bytes:
        """Return a number's key."""
        return b"k%d" % (number * 7919 % self.keys)

    def put(self, number: int, key: bytes, value: bytes | None, headers: list[Any] | None = None) -> None:
        """Queue a record; the ledger notes its position when it is acknowledged."""

        def report(error: Any, message: Any) -> None:
            if error is not None:
                self.faults.append(f"{self.ledger.topic}: {number} was not written: {error}")
            elif fault := self.ledger.acknowledge((message.partition(), message.offset()), number):
                self.faults.append(fault)

        self.producer.produce(self.ledger.topic, value, key, on_delivery=report, headers=headers or [])

    def renew(self) -> None:
        """Flush, and replace the producer by a new one."""
        self.flush()
        self.producer = self._new_producer()
        self.counts["producers"] += 1

    def flush(self) -> None:
        """Wait for all acknowledgements."""
        if left := self.producer.flush(PATIENCE_S):
            self.faults.append(f"{self.ledger.topic}: {left} records were neither acknowledged nor refused")

    def finish(self) -> None:
        self.flush()

    def check(self) -> None:
        found = read_all(self.world.bootstrap, self.ledger.topic)
        self.counts.update(sent=self.ledger.sent, acknowledged=len(self.ledger.acknowledged), read=len(found))
        for compare in (self.ledger.missing, self.ledger.gaps, self.ledger.repetitions):
            self.faults += compare(found)


class CompactedWriter(PlainWriter):
    """An idempotent producer to a compacted topic: the latest record of each key stays, unless its value is null."""

    keys = 300
    partitions = 2
    batch_bytes = 10_000
    """``batch.size``: less than the smallest ``segment.bytes`` of the topic, as a batch must fit into a segment."""

    def __init__(self, world: World, topic: str, configs: Mapping[str, str]) -> None:
        super().__init__(world, topic, configs)
        self.deleted: set[int] = set()

    def send(self, number: int) -> None:
        if self.chance.random() < 0.1:
            self.deleted.add(number)
        self.put(number, self.key_of(number), None if number in self.deleted else value_of(number))

    def check(self) -> None:
        found = read_all(self.world.bootstrap, self.ledger.topic)
        self.counts.update(sent=self.ledger.sent, acknowledged=len(self.ledger.acknowledged), read=len(found))
        latest: dict[bytes, tuple[int, int]] = {}
        for (partition, offset), number in self.ledger.acknowledged.items():
            key = self.key_of(number)
            latest[key] = max(latest.get(key, (-1, -1)), (offset, partition))
        for position, read in found.items():
            number = self.ledger.acknowledged.get(position, -1)
            if number < 0 or read.value != self._value(number):
                self.faults.append(
                    f"{self.ledger.position_text(position)}: {read.value!r:.40} is read, acknowledged was {number}"
                )
        for key, (offset, partition) in latest.items():
            number = self.ledger.acknowledged[partition, offset]
            if number not in self.deleted and (partition, offset) not in found:
                self.faults.append(
                    f"{self.ledger.position_text((partition, offset))}: the latest record of {key!r} is gone"
                )

    def _value(self, number: int) -> bytes | None:
        return None if number in self.deleted else value_of(number)


class AiokafkaWriter(Party):
    """An idempotent producer of aiokafka: a number whose send failed is in the topic at most once, every other once."""

    def __init__(self, world: World, topic: str, configs: Mapping[str, str]) -> None:
        super().__init__(world, f"writer of {topic}")
        self.ledger = Ledger(topic)
        Admin(world.bootstrap).create(topic, 2, configs)

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        while not self.world.stopped.is_set():
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.world.bootstrap, enable_idempotence=True, request_timeout_ms=60_000
            )
            try:
                await producer.start()
                self.counts["producers"] += 1
                await self._send_some(producer)
            except aiokafka.errors.KafkaError as error:
                self.counts[f"got {type(error).__name__}"] += 1
                await asyncio.sleep(0.2)
            finally:
                await producer.stop()

    async def _send_some(self, producer: Any) -> None:
        for _ in range(200):
            if self.world.stopped.is_set():
                return
            numbers = range(self.ledger.sent, self.ledger.sent + self.chance.randint(1, 10))
            self.ledger.sent = numbers.stop
            acknowledgements = await asyncio.gather(
                *(producer.send_and_wait(self.ledger.topic, value_of(number)) for number in numbers)
            )
            for number, metadata in zip(numbers, acknowledgements, strict=True):
                if fault := self.ledger.acknowledge((metadata.partition, metadata.offset), number):
                    self.faults.append(fault)
            await asyncio.sleep(0.1)

    def check(self) -> None:
        found = read_all(self.world.bootstrap, self.ledger.topic)
        self.counts.update(sent=self.ledger.sent, acknowledged=len(self.ledger.acknowledged), read=len(found))
        for compare in (self.ledger.missing, self.ledger.gaps, self.ledger.repetitions):
            self.faults += compare(found)


class KafkaPythonWriter(Party):
    """A producer of kafka-python, acks=all, not idempotent: acknowledged numbers are there; a retry may repeat them."""

    pause_s = 0.2

    def __init__(self, world: World, topic: str, configs: Mapping[str, str]) -> None:
        super().__init__(world, f"writer of {topic}")
        self.ledger = Ledger(topic)
        Admin(world.bootstrap).create(topic, 2, configs)
        self.producer: Any = None

    def turn(self) -> None:
        try:
            self.producer = self.producer or kafka.KafkaProducer(
                bootstrap_servers=self.world.bootstrap, acks="all", enable_idempotence=False, retries=1_000
            )
            self._send_some()
        except kafka.errors.KafkaError as error:
            self.counts[f"got {type(error).__name__}"] += 1
            self._close()

    def _send_some(self) -> None:
        futures = {}
        for _ in range(self.chance.randint(1, 10)):
            futures[self.ledger.sent] = self.producer.send(self.ledger.topic, value_of(self.ledger.sent))
            self.ledger.sent += 1
        for number, future in futures.items():
            metadata = future.get(PATIENCE_S)
            if fault := self.ledger.acknowledge((metadata.partition, metadata.offset), number):
                self.faults.append(fault)

    def _close(self) -> None:
        if self.producer is not None:
            self.producer.close(timeout=1)
        self.producer = None

    def finish(self) -> None:
        self._close()

    def check(self) -> None:
        found = read_all(self.world.bootstrap, self.ledger.topic)
        self.counts.update(sent=self.ledger.sent, acknowledged=len(self.ledger.acknowledged), read=len(found))
        for compare in (self.ledger.missing, self.ledger.gaps):
            self.faults += compare(found)


class Settings(Party):
    """Adds partitions to topics and changes their settings under load: acknowledged changes are there at the end.

    ``widths`` has the last acknowledged number of partitions of each topic.
    """

    pause_s = 0.7
    max_partitions = 8

    def __init__(self, world: World, choices: Mapping[str, Mapping[str, list[str]]], widened: list[str]) -> None:
        super().__init__(world, "settings")
        self.choices = choices
        self.widened = widened
        self.accepted: dict[str, dict[str, str]] = defaultdict(dict)
        self.widths: dict[str, int] = {}

    def turn(self) -> None:
        try:
            if self.chance.random() < 0.1:
                self._widen()
            else:
                self._change()
        except KafkaException as error:  # the broker is not running: the change may have been made, or not
            self.counts[f"got {error.args[0].name()}"] += 1

    def _widen(self) -> None:
        topic = self.chance.choice(self.widened)
        admin = Admin(self.world.bootstrap)
        width = admin.topics()[topic]
        if width < self.widths.get(topic, 0):
            self.faults.append(f"{topic} has {width} partitions, {self.widths[topic]} were acknowledged")
        if width < self.max_partitions:
            admin.grow(topic, width + 1)
            self.widths[topic] = width + 1
            self.counts["widened"] += 1

    def _change(self) -> None:
        topic = self.chance.choice(sorted(self.choices))
        name = self.chance.choice(sorted(self.choices[topic]))
        value = self.chance.choice(self.choices[topic][name])
        self.accepted[topic].pop(name, None)
        Admin(self.world.bootstrap).set_config(topic, name, value)
        self.accepted[topic][name] = value
        self.counts["changed"] += 1

    def check(self) -> None:
        admin = Admin(self.world.bootstrap)
        for topic, wanted in self.accepted.items():
            found = admin.configs(topic)
            for name, value in wanted.items():
                if found[name] != value:
                    self.faults.append(f"{topic}: {name} is {found[name]}, {value} was acknowledged")
