"""Spark's own Kafka sink, unmodified: it writes the same records to Tidelog and to Apache Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.broker import TidelogProcess
from tests.support.spark_kafka import AWAIT_S, Row, options, read, read_stream, rows
from tests.support.spark_topics import SparkTopics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Both = tuple[SparkTopics, SparkTopics]
COLUMNS = "topic string, partition int, key binary, value binary, headers array<struct<key: string, value: binary>>"


def rows_to_write(spark: SparkSession, topic: str) -> DataFrame:
    """Return keys, values and headers, absent and present, each in the partition it names; one task keeps the order."""
    table = [
        (topic, 0, b"key", b"value", None),
        (topic, 1, None, b"no key", [("h", b"1"), ("h", None)]),
        (topic, 0, b"key", None, []),
        (topic, 2, b"", b"", [("empty", b"")]),
        (topic, 1, b"caf\xc3\xa9", bytes(range(256)) * 40, [("caf\u00e9", b"\xff")]),
    ]
    return spark.createDataFrame(table, COLUMNS).coalesce(1)


def written(spark: SparkSession, bootstrap: str, topic: str) -> list[Row]:
    """Return a topic's records, without the time of writing."""
    return rows(read(spark, bootstrap, subscribe=topic, includeHeaders="true").drop("timestamp"))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_is_written_equally(spark: SparkSession, same_topics: Both, codec: str) -> None:
    found = []
    for topics in same_topics:
        topics.admin.create(f"written-{codec}", 3)
        writer = rows_to_write(spark, f"written-{codec}").write.format("kafka")
        writer.options(**options(topics.bootstrap, kafka__compression__type=codec, includeHeaders="true")).save()
        found.append(written(spark, topics.bootstrap, f"written-{codec}"))
    assert len(found[0]) == 5
    assert found[0] == found[1]


def test_a_topic_that_is_missing_is_made(spark: SparkSession, tidelog_broker: TidelogProcess) -> None:
    bootstrap = tidelog_broker.bootstrap
    frame = spark.createDataFrame([(b"a",), (b"b",)], "value binary")
    frame.write.format("kafka").options(**options(bootstrap, topic="made-by-spark")).save()
    assert {row["value"] for row in written(spark, bootstrap, "made-by-spark")} == {b"a", b"b"}


def test_a_stream_is_written_once_over_a_restart(spark: SparkSession, same_topics: Both, tmp_path: Path) -> None:
    topics = same_topics[0]
    topics.admin.create("stream-out", 3)
    frame = read_stream(spark, topics.bootstrap, subscribe="other", includeHeaders="true", startingOffsets="earliest")
    for _ in range(2):
        writer = frame.select("partition", "key", "value", "headers").writeStream.format("kafka")
        writer = writer.options(**options(topics.bootstrap, topic="stream-out", includeHeaders="true"))
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(AWAIT_S)
    read_back = written(spark, topics.bootstrap, "stream-out")
    source = written(spark, topics.bootstrap, "other")
    assert [{**row, "topic": "other"} for row in read_back] == source
