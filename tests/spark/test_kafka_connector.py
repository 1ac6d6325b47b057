"""Spark's own Kafka source, unmodified, in batch: the same reads from Tidelog and Apache Kafka give equal rows, and so
does ``format("tidelog")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.support.broker import TidelogProcess
from tests.support.spark_kafka import JavaError, Option, Row, causes, options, read, rows
from tests.support.spark_topics import CODECS, PLAIN, START_MS, STEP_MS, TRANSACTIONAL, SparkTopics, events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Both = tuple[SparkTopics, SparkTopics]
Question = dict[str, Option]
NEVER_MS = START_MS + 10_000_000
EACH_THIRD = PLAIN // 3

QUESTIONS: dict[str, tuple[Question, int]] = {
    "subscribe": ({"subscribe": "plain"}, PLAIN),
    "headers": ({"subscribe": "plain", "includeHeaders": "true"}, PLAIN),
    "several topics, one empty": ({"subscribe": "plain,other,empty"}, PLAIN + 30),
    "assign": ({"assign": {"plain": [0, 2]}}, 2 * EACH_THIRD),
    "subscribePattern": ({"subscribePattern": "pattern-.*"}, 60),
    "offsets": (
        {
            "subscribe": "plain",
            "startingOffsets": {"plain": {"0": -2, "1": 50, "2": 199}},
            "endingOffsets": {"plain": {"0": 10, "1": -1, "2": 200}},
        },
        10 + 150 + 1,
    ),
    "startingTimestamp, endingTimestamp": (
        {
            "subscribe": "plain",
            "startingTimestamp": str(START_MS + 300 * STEP_MS),
            "endingTimestamp": str(START_MS + 400 * STEP_MS),
        },
        100,
    ),
    "by timestamp, one past the end": (
        {
            "subscribe": "plain",
            "startingOffsetsByTimestamp": {"plain": {"0": START_MS + 1, "1": START_MS + 20_000, "2": START_MS}},
            "endingOffsetsByTimestamp": {"plain": {"0": START_MS + 300_000, "1": NEVER_MS, "2": START_MS + 100_000}},
        },
        99 + 193 + 33,
    ),
    "strategy latest": (
        {
            "subscribe": "plain",
            "startingTimestamp": str(NEVER_MS),
            "startingOffsetsByTimestampStrategy": "latest",
        },
        0,
    ),
    "minPartitions": ({"subscribe": "plain", "minPartitions": "8"}, PLAIN),
    "maxRecordsPerPartition": ({"subscribe": "plain", "maxRecordsPerPartition": "70"}, PLAIN),
    "max.poll.records": ({"subscribe": "plain", "kafka__max__poll__records": "20000"}, PLAIN),
    "committed": ({"subscribe": "transactions", "kafka__isolation__level": "read_committed"}, 3 * TRANSACTIONAL),
    "uncommitted": ({"subscribe": "transactions"}, 6 * TRANSACTIONAL),
    "committed, a transaction open": (
        {"subscribe": "unfinished", "kafka__isolation__level": "read_committed"},
        TRANSACTIONAL,
    ),
    "uncommitted, a transaction open": ({"subscribe": "unfinished"}, 3 * TRANSACTIONAL),
    **{codec: ({"subscribe": f"codec-{codec}", "includeHeaders": "true"}, 200) for codec in CODECS},
    "records deleted": ({"subscribe": "cut"}, 80),
    "data loss allowed": (
        {"subscribe": "cut", "startingOffsets": {"cut": {"0": 5}}, "failOnDataLoss": "false"},
        80,
    ),
}
REFUSED: dict[str, tuple[Question, str, str]] = {
    "data loss": (
        {"subscribe": "cut", "startingOffsets": {"cut": {"0": 5}}},
        "OffsetOutOfRangeException",
        "cut-0 begins at 120",
    ),
    "beyond the end": (
        {
            "assign": {"plain": [2]},
            "startingOffsets": {"plain": {"2": 0}},
            "endingOffsets": {"plain": {"2": 5000}},
            "kafkaConsumer__pollTimeoutMs": "1000",
        },
        "OffsetOutOfRangeException",
        "offset 5000 of plain-2 is beyond the end of the log, 200",
    ),
    "no such topic": (
        {"subscribe": "no-such-topic"},
        "UnknownTopicOrPartitionException",
        "topic no-such-topic has no partition below",
    ),
    "no such time": (
        {"subscribe": "plain", "startingTimestamp": str(NEVER_MS)},
        "IllegalArgumentException",
        "plain-0 has no record at or after",
    ),
}
FEW_RETRIES = {"fetchOffset__numRetries": "1"}


def without_times(found: list[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if name != "timestamp"} for row in found]


@pytest.mark.parametrize("name", QUESTIONS)
def test_both_brokers_give_equal_rows(
    spark: SparkSession, same_topics: Both, tidelog_broker: TidelogProcess, name: str
) -> None:
    question, count = QUESTIONS[name]
    tidelog, kafka = (rows(read(spark, topics.bootstrap, **question)) for topics in same_topics)
    assert len(tidelog) == count
    assert tidelog == kafka
    reader = spark.read.format("tidelog").options(**options(tidelog_broker.bootstrap, **question))
    assert rows(reader.load(str(tidelog_broker.data_directory))) == kafka


@pytest.mark.parametrize("name", REFUSED)
def test_both_brokers_make_the_same_questions_fail(
    spark: SparkSession, same_topics: Both, tidelog_broker: TidelogProcess, name: str
) -> None:
    question, cause, line = REFUSED[name]
    found = []
    for topics in same_topics:
        with pytest.raises((JavaError, PySparkException)) as caught:
            rows(read(spark, topics.bootstrap, **FEW_RETRIES, **question))
        found.append(causes(caught.value))
    assert found[0][-1] == cause
    assert found[0] == found[1]
    reader = spark.read.format("tidelog").options(**options(tidelog_broker.bootstrap, **question))
    with pytest.raises(PySparkException, match=line):
        rows(reader.load(str(tidelog_broker.data_directory)))


def test_the_rows_equal_the_written_records(spark: SparkSession, same_topics: Both) -> None:
    found = rows(read(spark, same_topics[0].bootstrap, subscribe="plain", includeHeaders="true"))
    written = sorted(events(PLAIN, 3), key=lambda event: event.partition)
    for row, event in zip(found, written, strict=True):
        assert (row["key"], row["value"]) == (event.key, event.value)
        assert row["timestamp"].timestamp() * 1000 == event.timestamp_ms
        headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
        assert headers == list(event.headers)
        assert row["headers"] is not None or not event.headers


def test_append_time_is_the_brokers(spark: SparkSession, same_topics: Both) -> None:
    tidelog, kafka = (rows(read(spark, topics.bootstrap, subscribe="append-time")) for topics in same_topics)
    assert {row["timestampType"] for row in tidelog} == {1}
    assert min(row["timestamp"].timestamp() for row in tidelog) * 1000 > START_MS
    assert without_times(tidelog) == without_times(kafka)


def tasks(frame: DataFrame) -> int:
    return frame.rdd.getNumPartitions()


def test_a_partition_is_split_over_tasks(spark: SparkSession, same_topics: Both) -> None:
    found = [tasks(read(spark, topics.bootstrap, subscribe="plain", minPartitions="8")) for topics in same_topics]
    assert found[0] == found[1] >= 8
