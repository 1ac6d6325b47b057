"""Topics that the Spark tests read: the same records in the same order on any broker, so that offsets are equal, too.

Every record is sent with its partition and timestamp; a flush after each batch keeps the order. The name of a topic
says what it tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import confluent_kafka

from tests.support.admin import Admin

FLUSH_S = 60.0
TRANSACTION_TIMEOUT_MS = 7_200_000
"""A transaction that is left open outlives every test, of the whole suite too."""
BROKER_SETTINGS = {"transaction.max.timeout.ms": str(TRANSACTION_TIMEOUT_MS)}
"""Configuration of a broker that allows this timeout."""
START_MS = 1_700_000_000_000
"""The timestamp of event 0, in 2023."""
STEP_MS = 1000
"""Milliseconds from an event to the next one."""
PARTITIONS = 3
PLAIN = 600
"""Records in the topic ``plain``."""
TRANSACTIONAL = 40
"""Records of one transaction."""
KEEP = {"retention.ms": "-1"}
"""The events are years old: retention would delete them during the tests."""
CODECS = ("gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Event:
    """One record to write."""

    partition: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def event(number: int, partitions: int = 1) -> Event:
    """Make the event of a number: every 7th has no key, every 11th no value, every 3rd up to three headers."""
    return Event(
        number % partitions,
        START_MS + number * STEP_MS,
        None if number % 7 == 0 else b"key-%d" % (number % 20),
        None if number % 11 == 0 else b"value %d " % number * (1 + number % 5),
        (("n", b"%d" % number), ("n", b""), ("empty", None))[: number % 4] if number % 3 == 0 else (),
    )


def events(count: int, partitions: int = 1, start: int = 0) -> list[Event]:
    """Make ``count`` events from ``start`` on, spread over the partitions in turn."""
    return [event(number, partitions) for number in range(start, start + count)]


def producer(bootstrap: str, **settings: str | int) -> confluent_kafka.Producer:
    """Make an idempotent producer. ``settings`` are librdkafka's, with ``_`` in place of ``.``."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 50, "log_level": 0, **named}
    )


def write(
    sender: confluent_kafka.Producer, topic: str, records: Iterable[Event], *, flush_every: int | None = None
) -> None:
    """Send records and wait until all are acknowledged; ``flush_every`` sets the records of a batch."""
    failures: list[str] = []

    def report(error: confluent_kafka.KafkaError | None, _message: confluent_kafka.Message) -> None:
        if error is not None:
            failures.append(str(error))

    for number, record in enumerate(records, 1):
        sender.produce(
            topic,
            record.value,
            record.key,
            record.partition,
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
            on_delivery=report,
        )
        if flush_every is not None and number % flush_every == 0:
            sender.flush(FLUSH_S)
    left = sender.flush(FLUSH_S)
    assert not left, f"{left} records were not acknowledged"
    assert not failures, failures[:3]


def write_transactions(bootstrap: str, topic: str, outcomes: Sequence[str]) -> list[confluent_kafka.Producer]:
    """Write a transaction of `TRANSACTIONAL` records for each outcome: ``commit``, ``abort`` or ``open``.

    Return the producers whose transactions are open, for the caller to keep.
    """
    still_open = []
    for number, outcome in enumerate(outcomes):
        sender = producer(
            bootstrap, transactional_id=f"{topic}-{number}", transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
        )
        sender.init_transactions(FLUSH_S)
        sender.begin_transaction()
        write(sender, topic, events(TRANSACTIONAL, start=number * TRANSACTIONAL))
        if outcome == "commit":
            sender.commit_transaction(FLUSH_S)
        elif outcome == "abort":
            sender.abort_transaction(FLUSH_S)
        else:
            still_open.append(sender)
    return still_open


class SparkTopics:
    """Writes all topics to a broker when it is made. The producer of an open transaction lives as long as it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = Admin(bootstrap)
        self._open: list[confluent_kafka.Producer] = []
        self._write_plain()
        self._write_codecs()
        self._write_transactional()
        self._write_cut()

    def _create(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        self.admin.create(topic, partitions, {**KEEP, **(configs or {})})

    def _write_plain(self) -> None:
        sender = producer(self.bootstrap)
        for topic in ("plain", "pattern-a", "pattern-b", "other"):
            count = PLAIN if topic == "plain" else 30
            self._create(topic, PARTITIONS)
            write(sender, topic, events(count, PARTITIONS), flush_every=60)
        self._create("empty", 2)
        self._create("append-time", 1, {"message.timestamp.type": "LogAppendTime"})
        write(sender, "append-time", events(30))

    def _write_codecs(self) -> None:
        for codec in CODECS:
            self._create(f"codec-{codec}", 1)
            write(producer(self.bootstrap, compression_type=codec), f"codec-{codec}", events(200), flush_every=50)

    def _write_transactional(self) -> None:
        self._create("transactions", 1)
        write_transactions(self.bootstrap, "transactions", ["commit", "abort", "commit", "abort", "abort"])
        write(producer(self.bootstrap), "transactions", events(TRANSACTIONAL, start=1000))
        self._create("unfinished", 1)
        self._open = write_transactions(self.bootstrap, "unfinished", ["commit", "open"])
        write(producer(self.bootstrap), "unfinished", events(TRANSACTIONAL, start=1000))

    def _write_cut(self) -> None:
        self._create("cut", 1)
        write(producer(self.bootstrap), "cut", events(200), flush_every=50)
        self.admin.delete_records("cut", 0, 120)
