"""``readStream.format("tidelog")``: triggers, restarts and limits; every row once, as Spark's Kafka source gives it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from tests.support.admin import Admin
from tests.support.broker import TidelogProcess
from tests.support.spark_kafka import Stream as TableStream
from tests.support.spark_kafka import options
from tests.support.spark_topics import START_MS, STEP_MS, Event, event, events, producer, write

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = 3
WAIT_S = 60


EVENTS = 300
AVAILABLE_NOW: dict[str, Any] = {"availableNow": True}
OPTIONS: dict[str, tuple[dict[str, str], dict[str, Any], int]] = {
    "latest": ({"startingOffsets": "latest"}, AVAILABLE_NOW, 0),
    "a time": ({"startingTimestamp": str(START_MS + 200 * STEP_MS)}, AVAILABLE_NOW, 100),
    "times by partition, the end where none is so late": (
        {
            "startingOffsetsByTimestamp": f'{{"TOPIC":{{"0":{START_MS},"1":{START_MS * 2},"2":{START_MS + 2000}}}}}',
            "startingOffsetsByTimestampStrategy": "latest",
        },
        AVAILABLE_NOW,
        2 * EVENTS // PARTITIONS,
    ),
    "assign, headers, a minimum that is never reached": (
        {
            "assign": '{"TOPIC":[0,2]}',
            "startingOffsets": '{"TOPIC":{"0":40,"2":-2}}',
            "includeHeaders": "true",
            "minOffsetsPerTrigger": "1000",
            "maxTriggerDelay": "1h",
        },
        AVAILABLE_NOW,
        60 + 100,
    ),
    "once, more tasks than partitions": (
        {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "10", "minPartitions": "7"},
        {"once": True},
        EVENTS,
    ),
}


@dataclass(frozen=True, slots=True)
class Stream:
    """A query that adds to a table what AvailableNow finds, from one checkpoint."""

    spark: SparkSession
    broker: TidelogProcess
    topic: str
    checkpoint: Path

    def run(self, format_name: str = "tidelog", options: Mapping[str, str] | None = None) -> StreamingQuery:
        """Run it to its end. Raises StreamingQueryException."""
        given = {
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "kafka.bootstrap.servers": self.broker.bootstrap,
            **({"path": str(self.broker.data_directory)} if format_name == "tidelog" else {}),
            **(options or {}),
        }
        rows = self.spark.readStream.format(format_name).options(**given).load()
        query = (
            rows.writeStream.format("parquet")
            .option("path", str(self.checkpoint.with_name("table")))
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)
        return query

    def rows(self) -> list[Row]:
        """Return all rows so far, by partition and offset."""
        return self.spark.read.parquet(str(self.checkpoint.with_name("table"))).orderBy("partition", "offset").collect()

    def batch_rows(self) -> list[Row]:
        """Read the same through Spark's Kafka source, in one batch."""
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.broker.bootstrap)
        return reader.option("subscribe", self.topic).load().orderBy("partition", "offset").collect()


@pytest.fixture
def stream(spark: SparkSession, tidelog_broker: TidelogProcess, tmp_path: Path) -> Stream:
    topic = f"stream-{uuid.uuid4().hex[:8]}"
    Admin(tidelog_broker.bootstrap).create(topic, PARTITIONS, {"retention.ms": "-1"})
    return Stream(spark, tidelog_broker, topic, tmp_path / "checkpoint")


def test_restarts_and_limits_give_every_row_once_and_lag_is_seen(stream: Stream) -> None:
    write(producer(stream.broker.bootstrap), stream.topic, events(500, PARTITIONS), flush_every=20)
    group = f"lag-{stream.topic}"
    first = stream.run(options={"maxOffsetsPerTrigger": "210", "commitGroup": group})
    assert [progress.numInputRows for progress in first.recentProgress] == [210, 210, 80]
    assert _committed(stream, group) == [167, 167, 166]

    write(producer(stream.broker.bootstrap), stream.topic, events(400, PARTITIONS, start=500), flush_every=20)
    Admin(stream.broker.bootstrap).grow(stream.topic, PARTITIONS + 1)
    write(producer(stream.broker.bootstrap), stream.topic, _of_partition(PARTITIONS, 60))
    second = stream.run(options={"maxBytesPerTrigger": "10k"})
    assert len(second.recentProgress) > 1
    assert stream.rows() == stream.batch_rows()
    source = json.loads(second.recentProgress[-1].sources[0].endOffset)
    assert source[stream.topic] == {"0": 300, "1": 300, "2": 300, "3": 60}


def test_a_query_moves_from_sparks_kafka_source_with_its_checkpoint(stream: Stream) -> None:
    write(producer(stream.broker.bootstrap), stream.topic, events(200, PARTITIONS))
    stream.run("kafka")
    write(producer(stream.broker.bootstrap), stream.topic, events(100, PARTITIONS, start=200))
    moved = stream.run("tidelog")
    assert sum(progress.numInputRows for progress in moved.recentProgress) == 100
    assert stream.rows() == stream.batch_rows()


@pytest.mark.parametrize("name", OPTIONS)
def test_options_have_the_same_effect_as_in_sparks_kafka_source(stream: Stream, tmp_path: Path, name: str) -> None:
    given, trigger, count = OPTIONS[name]
    write(producer(stream.broker.bootstrap), stream.topic, events(EVENTS, PARTITIONS), flush_every=20)
    asked = {option: value.replace("TOPIC", stream.topic) for option, value in given.items()}
    if "assign" not in asked:
        asked["subscribe"] = stream.topic
    with ExitStack() as running:
        queries = {}
        for format_name in ("kafka", "tidelog"):
            reader = stream.spark.readStream.format(format_name).options(**options(stream.broker.bootstrap, **asked))
            frame = reader.load(str(stream.broker.data_directory)) if format_name == "tidelog" else reader.load()
            query = TableStream(frame, tmp_path / f"{format_name}-checkpoint", **trigger)
            queries[format_name] = running.enter_context(query)
        for query in queries.values():
            assert query.query.awaitTermination(WAIT_S)
        assert len(queries["kafka"].rows()) == count
        assert queries["tidelog"].rows() == queries["kafka"].rows()


def test_a_topic_created_again_stops_the_query(stream: Stream) -> None:
    admin = Admin(stream.broker.bootstrap)
    write(producer(stream.broker.bootstrap), stream.topic, events(100, PARTITIONS))
    stream.run()
    admin.delete(stream.topic)
    admin.create(stream.topic, PARTITIONS)
    write(producer(stream.broker.bootstrap), stream.topic, events(300, PARTITIONS))
    with pytest.raises(Exception, match=f"topic {stream.topic} was deleted and created again"):
        stream.run(options={"failOnDataLoss": "false"})


def test_a_table_keeps_its_options(stream: Stream, tmp_path: Path) -> None:
    """Spark gives a table's readers none of them: they travel in its schema."""
    write(producer(stream.broker.bootstrap), stream.topic, events(EVENTS, PARTITIONS))
    spark, table, data = stream.spark, f"table_{uuid.uuid4().hex}", stream.broker.data_directory
    made = f"(path '{data}', subscribe '{stream.topic}', includeHeaders 'true')"
    spark.sql(f"create table {table} using tidelog options {made}")
    assert spark.table(table).columns[-1] == "headers"
    assert spark.sql(f"select count(*) from {table}").collect()[0][0] == EVENTS
    offsets = json.dumps({stream.topic: {"0": 90, "1": -2, "2": -2}})
    for words in (f"{table} with (startingOffsets = '{offsets}')", f"{table} with (endingOffsets = 'latest')"):
        with pytest.raises(PySparkException, match=r"option (starting|ending)offsets is given for a query on a table"):
            spark.sql(f"select count(*) from {words}").collect()
    frame = spark.readStream.option("startingOffsets", offsets).table(table)
    with TableStream(frame, tmp_path / "checkpoint", availableNow=True) as query:
        assert query.query.awaitTermination(WAIT_S)
        assert len(query.rows()) == 210
    with pytest.raises(PySparkException, match=r"option kafka\.bootstrap\.servers is missing"):
        spark.sql(f"insert into {table} select * from {table}")
    spark.sql(f"drop table {table}")
    assert (data / f"{stream.topic}-0").is_dir()


@pytest.mark.parametrize("option", ["startingOfsets", "endingOffsets"])
def test_wrong_options_are_reported(stream: Stream, option: str) -> None:
    with pytest.raises(StreamingQueryException, match=f"OptionError: option (?i:{option})") as caught:
        stream.run(options={option: "latest"})
    assert "UnboundLocalError" not in str(caught.value)


def _committed(stream: Stream, group: str) -> list[int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": stream.broker.bootstrap, "group.id": group})
    asked = [confluent_kafka.TopicPartition(stream.topic, number) for number in range(PARTITIONS)]
    found = [entry.offset for entry in consumer.committed(asked, timeout=60)]
    consumer.close()
    return found


def _of_partition(partition: int, count: int) -> list[Event]:
    return [replace(event(number), partition=partition) for number in range(count)]
