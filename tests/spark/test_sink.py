"""``df.write.format("tidelog")`` compared with Spark's own Kafka sink: the same rows in the same partitions, each
once."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.support.admin import Admin
from tests.support.broker import TidelogProcess
from tests.support.kafka_python import read_to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

PARTITIONS = 3
ROWS = 500


def rows(spark: SparkSession) -> DataFrame:
    """Return keys, null values, headers, times; every fifth row has no key and a partition of its own."""
    return spark.range(ROWS).selectExpr(
        "if(id % 5 = 0, null, cast(id % 40 as string)) as key",
        "if(id % 7 = 0, null, cast(concat('value ', id) as binary)) as value",
        "if(id % 5 = 0, cast(id % 3 as int), null) as partition",
        "if(id % 2 = 0, array(struct('n' as key, cast(cast(id as string) as binary) as value)), null) as headers",
    )


def topics(bootstrap: str, count: int) -> list[str]:
    names = [f"sink-{uuid.uuid4().hex[:8]}" for _ in range(count)]
    for name in names:
        Admin(bootstrap).create(name, PARTITIONS)
    return names


def records(bootstrap: str, topic: str) -> Counter[tuple[object, ...]]:
    """Return the records that a read_committed consumer gets: partition, key, value and headers."""
    found = read_to_end(bootstrap, topic)
    return Counter((r.partition, r.key, r.value, tuple(r.headers)) for r in found)


def writing(frame: DataFrame, format_name: str, broker: TidelogProcess, **options: str) -> DataFrameWriter:
    """Prepare an append of the frame; options have ``_`` for ``.``."""
    named = {name.replace("_", "."): value for name, value in options.items()}
    writer = frame.write.format(format_name).mode("append")
    return writer.option("kafka.bootstrap.servers", broker.bootstrap).options(**named)


def test_rows_are_in_the_partitions_that_sparks_kafka_sink_chooses(
    spark: SparkSession, tidelog_broker: TidelogProcess, tmp_path: Path
) -> None:
    theirs, ours = topics(tidelog_broker.bootstrap, 2)
    writing(rows(spark), "kafka", tidelog_broker, topic=theirs).save()
    writing(rows(spark), "tidelog", tidelog_broker, topic=ours, stagingPath=str(tmp_path), compression="lz4").save()
    found = records(tidelog_broker.bootstrap, ours)
    assert found == records(tidelog_broker.bootstrap, theirs)
    assert found.total() == ROWS
    assert list(tmp_path.iterdir()) == []


def test_the_column_topic_chooses_and_a_version_is_written_once(
    spark: SparkSession, tidelog_broker: TidelogProcess, tmp_path: Path
) -> None:
    first, second = topics(tidelog_broker.bootstrap, 2)
    frame = spark.range(ROWS).selectExpr(f"if(id < 100, '{first}', '{second}') as topic", "cast(id as string) as value")
    staged = {"stagingPath": str(tmp_path), "txnAppId": f"app-{uuid.uuid4().hex}"}
    for version in ("1", "1", "0", "2"):  # what foreachBatch writes when a batch comes again
        writing(frame, "tidelog", tidelog_broker, txnVersion=version, **staged).save()
    counts = [records(tidelog_broker.bootstrap, name).total() for name in (first, second)]
    assert counts == [2 * 100, 2 * (ROWS - 100)]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"topc": "x"}, "option topc is unknown: the nearest is topic"),
        ({"stagingPath": None}, "option stagingPath is missing"),
        ({"topic": None}, "no topic: expected the option topic or a column topic"),
    ],
)
def test_wrong_options_are_reported_before_anything_runs(
    spark: SparkSession,
    tidelog_broker: TidelogProcess,
    tmp_path: Path,
    change: dict[str, str | None],
    line: str,
) -> None:
    given = {"topic": "never", "stagingPath": str(tmp_path), **change}
    options = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(PySparkException, match=line):
        writing(rows(spark), "tidelog", tidelog_broker, **options).save()


def test_a_row_that_cannot_be_written_fails_the_whole_write(
    spark: SparkSession, tidelog_broker: TidelogProcess, tmp_path: Path
) -> None:
    (topic,) = topics(tidelog_broker.bootstrap, 1)
    frame = spark.range(ROWS).selectExpr("cast(id as string) as value", "if(id = 499, 9, 0) as partition")
    with pytest.raises(PySparkException, match=f"partition 9 of topic {topic}: expected 0 to 2"):
        writing(frame, "tidelog", tidelog_broker, topic=topic, stagingPath=str(tmp_path)).save()
    assert records(tidelog_broker.bootstrap, topic).total() == 0
    assert list(tmp_path.iterdir()) == []
