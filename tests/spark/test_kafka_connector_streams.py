"""Spark's own Kafka source, unmodified, as a stream: triggers, limits, transactions, data loss, as on Apache Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.support.admin import Admin
from tests.support.broker import TidelogProcess
from tests.support.spark_kafka import Option, Row, Stream, available_now, options, read, read_stream, rows
from tests.support.spark_topics import PLAIN, START_MS, STEP_MS, TRANSACTIONAL, SparkTopics, events, producer, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Both = tuple[SparkTopics, SparkTopics]
Question = dict[str, Option]
FROM_START: Question = {"startingOffsets": "earliest"}
DEADLINE_S = 60.0
POLL_S = 0.1
REAL_TIME: dict[str, Any] = {"realTime": "5 seconds"}
"""The type stubs of PySpark 4.2 do not know this trigger."""

FINITE: dict[str, tuple[Question, int]] = {
    "earliest": ({"subscribe": "plain", **FROM_START}, PLAIN),
    "maxOffsetsPerTrigger": ({"subscribe": "plain", "maxOffsetsPerTrigger": "150", **FROM_START}, PLAIN),
    "maxRecordsPerPartition": ({"subscribe": "plain", "maxRecordsPerPartition": "90", **FROM_START}, PLAIN),
    "startingTimestamp": ({"subscribe": "plain", "startingTimestamp": str(START_MS + 300 * STEP_MS)}, 300),
    "committed, in small batches": (
        {
            "subscribe": "transactions",
            "kafka__isolation__level": "read_committed",
            "maxOffsetsPerTrigger": "50",
            **FROM_START,
        },
        3 * TRANSACTIONAL,
    ),
    "data loss allowed": ({"subscribe": "cut", "startingOffsets": {"cut": {"0": 5}}, "failOnDataLoss": "false"}, 80),
}


def run(spark: SparkSession, bootstrap: str, work: Path, question: Question) -> tuple[list[int], list[Row]]:
    """Return the rows of each batch, and all rows so far."""
    return available_now(read_stream(spark, bootstrap, **question), work)


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(POLL_S)


@pytest.mark.parametrize("name", FINITE)
def test_available_now_gives_equal_batches(spark: SparkSession, same_topics: Both, tmp_path: Path, name: str) -> None:
    question, count = FINITE[name]
    tidelog, kafka = (
        run(spark, topics.bootstrap, tmp_path / str(number), question) for number, topics in enumerate(same_topics)
    )
    assert sum(tidelog[0]) == len(tidelog[1]) == count
    assert tidelog == kafka


def test_a_query_continues_where_it_stopped(
    spark: SparkSession, tidelog_broker: TidelogProcess, tmp_path: Path
) -> None:
    bootstrap = tidelog_broker.bootstrap
    Admin(bootstrap).create("goes-on", 2, {"retention.ms": "-1"})
    question: Question = {"subscribe": "goes-on", **FROM_START}
    for start, count in ((0, 40), (40, 10)):
        write(producer(bootstrap), "goes-on", events(count, 2, start))
        batches, found = run(spark, bootstrap, tmp_path, question)
        assert batches == [count]
        assert len(found) == start + count


def test_micro_batches_have_the_newly_written_records(
    spark: SparkSession, tidelog_broker: TidelogProcess, tmp_path: Path
) -> None:
    bootstrap = tidelog_broker.bootstrap
    Admin(bootstrap).create("followed", 1, {"retention.ms": "-1"})
    frame = read_stream(spark, bootstrap, subscribe="followed", **FROM_START)
    with Stream(frame, tmp_path, processingTime="0 seconds") as stream:
        for start in (0, 50, 100):
            write(producer(bootstrap), "followed", events(50, start=start))
            wait_for(lambda until=start + 50: len(stream.rows()) == until)  # type: ignore[misc]
        assert stream.rows() == rows(read(spark, bootstrap, subscribe="followed"))


def test_new_partitions_are_read_from_their_start(
    spark: SparkSession, tidelog_broker: TidelogProcess, tmp_path: Path
) -> None:
    bootstrap = tidelog_broker.bootstrap
    admin = Admin(bootstrap)
    admin.create("growing", 1, {"retention.ms": "-1"})
    question: Question = {"subscribe": "growing", **FROM_START, "kafka__metadata__max__age__ms": "100"}
    write(producer(bootstrap), "growing", events(20))
    assert len(run(spark, bootstrap, tmp_path, question)[1]) == 20
    admin.grow("growing", 2)
    write(producer(bootstrap), "growing", events(20, 2))
    found = run(spark, bootstrap, tmp_path, question)[1]
    assert [(row["partition"], row["offset"]) for row in found if row["partition"] == 1] == [
        (1, at) for at in range(10)
    ]
    assert len(found) == 40


def test_continuous_processing_reads_all(spark: SparkSession, same_topics: Both, tmp_path: Path) -> None:
    bootstrap = same_topics[0].bootstrap
    frame = read_stream(spark, bootstrap, subscribe="codec-zstd", **FROM_START)
    with Stream(frame, tmp_path, continuous="200 milliseconds") as stream:
        wait_for(lambda: len(stream.rows()) == 200)
        assert stream.rows() == rows(read(spark, bootstrap, subscribe="codec-zstd"))


def test_real_time_mode_copies_a_topic(spark: SparkSession, same_topics: Both, tmp_path: Path) -> None:
    bootstrap = same_topics[0].bootstrap
    Admin(bootstrap).create("copied", 1)
    frame = read_stream(spark, bootstrap, subscribe="codec-lz4", **FROM_START).select("key", "value")
    writer = frame.writeStream.format("kafka").options(**options(bootstrap, topic="copied"))
    query = writer.outputMode("update").option("checkpointLocation", str(tmp_path)).trigger(**REAL_TIME).start()
    try:
        wait_for(lambda: Admin(bootstrap).offset("copied", 0, "latest") == 200)
    finally:
        query.stop()
    pairs = [
        [(row["key"], row["value"]) for row in rows(read(spark, bootstrap, subscribe=topic))]
        for topic in ("copied", "codec-lz4")
    ]
    assert pairs[0] == pairs[1]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_records_that_are_deleted_from_a_stream_are_data_loss(
    spark: SparkSession, tidelog_broker: TidelogProcess, tmp_path: Path, fail: str
) -> None:
    bootstrap = tidelog_broker.bootstrap
    admin, topic = Admin(bootstrap), f"deleted-{fail}"
    admin.create(topic, 1, {"retention.ms": "-1"})
    question: Question = {"subscribe": topic, **FROM_START, "failOnDataLoss": fail}
    write(producer(bootstrap), topic, events(20))
    assert run(spark, bootstrap, tmp_path, question)[0] == [20]
    write(producer(bootstrap), topic, events(40, start=20))
    admin.delete_records(topic, 0, 50)
    if fail == "true":
        with pytest.raises(StreamingQueryException, match="failOnDataLoss"):
            run(spark, bootstrap, tmp_path, question)
    else:
        found = run(spark, bootstrap, tmp_path, question)[1]
        assert [row["offset"] for row in found] == [*range(20), *range(50, 60)]


@pytest.fixture(scope="module")
def retaining_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogProcess]:
    """A broker that looks for expired segments all the time."""
    settings = {"log.retention.check.interval.ms": "100", "log.segment.delete.delay.ms": "0"}
    with TidelogProcess(tmp_path_factory.mktemp("retaining"), settings) as process:
        yield process


@pytest.mark.parametrize("fail", ["true", "false"])
def test_records_that_retention_takes_from_a_stream_are_data_loss(
    spark: SparkSession, retaining_broker: TidelogProcess, tmp_path: Path, fail: str
) -> None:
    bootstrap = retaining_broker.bootstrap
    admin, topic = Admin(bootstrap), f"expired-{fail}"
    admin.create(topic, 1, {"retention.ms": "-1"})
    question: Question = {"subscribe": topic, **FROM_START, "failOnDataLoss": fail}
    write(producer(bootstrap), topic, events(20))
    assert run(spark, bootstrap, tmp_path, question)[0] == [20]
    write(producer(bootstrap), topic, events(20, start=20))
    admin.set_config(topic, "retention.ms", "3600000")
    wait_for(lambda: admin.offset(topic, 0, "earliest") == 40)
    now_ms = int(time.time() * 1000)
    write(producer(bootstrap), topic, [replace(event, timestamp_ms=now_ms) for event in events(10)])
    if fail == "true":
        with pytest.raises(StreamingQueryException, match="failOnDataLoss"):
            run(spark, bootstrap, tmp_path, question)
    else:
        assert [row["offset"] for row in run(spark, bootstrap, tmp_path, question)[1]] == [*range(20), *range(40, 50)]
