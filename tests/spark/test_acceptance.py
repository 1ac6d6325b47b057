"""The same query through ``format("kafka")`` and ``format("tidelog")`` gives equal rows.

Message formats 0, 1 and 2, every codec, transactions committed, aborted and open, compacted and trimmed logs, headers,
nulls and append time; on segments that Apache Kafka wrote (3.9, the last that writes the old formats) and on Tidelog's
own. Both brokers run on: ``format("kafka")`` asks them, ``format("tidelog")`` reads their files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from benchmarks.rivals.process import BrokerProcess
from tests.support.broker import TidelogProcess
from tests.support.samples import KEYS, LINES, Samples, wait_until_cleaned
from tests.support.spark_kafka import Option, Row, options, read, rows
from tests.support.spark_topics import (
    BROKER_SETTINGS,
    KEEP,
    PLAIN,
    START_MS,
    STEP_MS,
    TRANSACTIONAL,
    SparkTopics,
    events,
    producer,
    write,
)
from tests.support.zookeeper_kafka import ZooKeeperKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java
SETTINGS = {
    **BROKER_SETTINGS,
    "log.cleaner.backoff.ms": "100",
    "log.initial.task.delay.ms": "100",
    "log.flush.start.offset.checkpoint.interval.ms": "300",
}
NO_TIME, CREATE_TIME, APPEND_TIME = -1, 0, 1
SAMPLE = "sample."
TRANSACTION_LINES = 80
REWRITTEN = ("Tidelog", "format 0, compacted")
"""Tidelog writes what its cleaner keeps of old formats as format 2 (internals/cleaner.md); the active segment stays."""

Writer = TidelogProcess | ZooKeeperKafka


@dataclass(frozen=True, slots=True)
class Case:
    """One query; ``count`` rows are expected (None: fewer than ``below``), all of one timestamp type."""

    query: dict[str, Option]
    count: int | None
    below: int = 0
    time: int = CREATE_TIME


def sample(topic: str, count: int | None, below: int = 0, time: int = CREATE_TIME, **query: Option) -> Case:
    return Case({"subscribe": SAMPLE + topic, "includeHeaders": "true", **query}, count, below, time)


CASES = {
    "format 2, five codecs, headers": sample("codecs", 5 * LINES),
    "format 0, four codecs": sample("format.0", 4 * LINES, time=NO_TIME),
    "format 1, four codecs": sample("format.1", 4 * LINES),
    "format 2, compacted": sample("compacted", None, below=LINES * 2 // 3),
    "format 0, compacted": sample("compacted.0", None, below=LINES * 2 // 3, time=NO_TIME),
    "format 1, compacted": sample("compacted.1", None, below=LINES * 2 // 3),
    "transactions, uncommitted": sample("transactions", 26 * TRANSACTION_LINES),
    "transactions, committed": sample("transactions", 20 * TRANSACTION_LINES, kafka__isolation__level="read_committed"),
    "transactions, committed, none open": Case(
        {"subscribe": "transactions", "kafka__isolation__level": "read_committed"}, 3 * TRANSACTIONAL
    ),
    "trimmed": sample("trimmed", LINES - LINES // 2 - 7),
    "nulls": Case({"subscribe": "plain", "includeHeaders": "true"}, PLAIN),
    "append time": Case({"subscribe": "append-time"}, 30, time=APPEND_TIME),
    "format 1, append time": Case({"subscribe": "old-append-time"}, 200, time=APPEND_TIME),
    "a range of time": Case(
        {
            "subscribe": "plain",
            "startingTimestamp": str(START_MS + 300 * STEP_MS),
            "endingTimestamp": str(START_MS + 400 * STEP_MS),
        },
        100,
    ),
    "a range of offsets, inside compressed sets": sample(
        "format.1",
        4 * 600,
        startingOffsets={SAMPLE + "format.1": {str(partition): 301 for partition in range(4)}},
        endingOffsets={SAMPLE + "format.1": {str(partition): 901 for partition in range(4)}},
    ),
}


def fill(broker: Writer, running: ExitStack) -> None:
    """Write all topics of the cases, and wait until the cleaner has done its work. One transaction stays open."""
    samples = Samples(broker.bootstrap, SAMPLE)
    running.callback(samples.close)
    samples.write(old_formats=True)
    topics = SparkTopics(broker.bootstrap)
    old = {"message.format.version": "0.10.2", "message.timestamp.type": "LogAppendTime", **KEEP}
    topics.admin.create("old-append-time", 1, old)
    plain = producer(broker.bootstrap, compression_type="gzip", enable_idempotence=False)
    write(plain, "old-append-time", [replace(event, headers=()) for event in events(200)], flush_every=50)
    wait_until_cleaned(broker.data_directory, samples)


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Writer]]:
    """Both brokers, filled and running."""
    kafka = ZooKeeperKafka(tmp_path_factory.mktemp("kafka"), SETTINGS)
    tidelog = TidelogProcess(tmp_path_factory.mktemp("tidelog"), SETTINGS)
    brokers: dict[str, Writer] = {"Tidelog": tidelog, "Apache Kafka": kafka}
    with closing(kafka), ExitStack() as running:
        for broker in brokers.values():
            running.enter_context(broker)
            fill(broker, running)
        yield brokers


def through_tidelog(spark: SparkSession, broker: BrokerProcess, data: str, query: dict[str, Option]) -> list[Row]:
    """Return the answer of ``format("tidelog")``, which asks the broker for the end offsets alone."""
    reader = spark.read.format("tidelog").option("path", data)
    return rows(reader.options(**options(broker.bootstrap, **query)).load())


@pytest.mark.parametrize("writer", ["Tidelog", "Apache Kafka"])
@pytest.mark.parametrize("name", CASES)
def test_both_formats_give_equal_rows(spark: SparkSession, writers: dict[str, Writer], writer: str, name: str) -> None:
    case, broker = CASES[name], writers[writer]
    kafka = rows(read(spark, broker.bootstrap, **case.query))
    if case.count is None:
        assert KEYS // 2 <= len(kafka) < case.below
    else:
        assert len(kafka) == case.count
    rewritten = {CREATE_TIME} if (writer, name) == REWRITTEN else set()
    assert {row["timestampType"] for row in kafka} == {case.time} | rewritten
    tidelog = through_tidelog(spark, broker, str(broker.data_directory), case.query)
    assert tidelog == kafka
