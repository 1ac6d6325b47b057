"""``format("tidelog")`` as a batch source in Spark: options, rows, and error messages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.admin import Admin
from tests.support.broker import TidelogProcess
from tests.support.pipelines import NOW_MS, TOPIC_ID, DataDirectory, fill, write
from tests.support.spark_topics import producer
from tidelog.log.files.checkpoints import write_partition_metadata
from tidelog.log.system.file_system import OsFileSystem
from tidelog.pipeline.files.segment_files import list_segments
from tidelog.protocol.record.record_batch import Record

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.java
BATCHES = 40


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataDirectory]:
    directory = DataDirectory(tmp_path / "data")
    yield directory
    directory.close()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DataDirectory, list[Record]]]:
    """Topic t, two partitions of which the first has 200 records; for tests that only read."""
    directory = DataDirectory(tmp_path_factory.mktemp("kept") / "data")
    written = fill(directory.log("t"), BATCHES, compression=4)
    write(directory.log("t", 1), [Record(0, NOW_MS, None, None, (("h", b"1"), ("h", None)))])
    yield directory, written
    directory.close()


def load(spark: SparkSession, data: DataDirectory, **given: Any) -> DataFrame:
    options = {name.replace("__", "."): str(value) for name, value in given.items()}
    if not {"subscribe", "assign", "subscribePattern"} & options.keys():
        options["subscribe"] = "t"
    return spark.read.format("tidelog").options(**options).load(str(data.path))


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row["offset"] for row in frame.select("offset").collect())


def test_rows_have_the_schema_and_the_records(spark: SparkSession, kept: tuple[DataDirectory, list[Record]]) -> None:
    data, written = kept
    frame = load(spark, data, includeHeaders="true")
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("key", "binary"), ("value", "binary"), ("topic", "string"), ("partition", "int"), ("offset", "bigint"),
        ("timestamp", "timestamp"), ("timestampType", "int"), ("headers", "array<struct<key:string,value:binary>>"),
    ]  # fmt: skip
    rows = sorted(frame.collect(), key=lambda row: (row["partition"], row["offset"]))
    for row, record in zip(rows, written, strict=False):
        when = datetime.fromtimestamp(record.timestamp / 1000, UTC).replace(tzinfo=None)
        expected = (record.key, record.value, "t", 0, record.offset, when, 0, None)
        assert (*row[:5], row["timestamp"], *row[6:]) == expected
    last = rows[-1]
    assert len(rows) == len(written) + 1
    assert (last["key"], last["value"], last["partition"]) == (None, None, 1)
    assert [(header["key"], header["value"]) for header in last["headers"]] == [("h", b"1"), ("h", None)]


def test_columns_are_chosen_by_option_or_schema(spark: SparkSession, kept: tuple[DataDirectory, list[Record]]) -> None:
    data, written = kept
    assert load(spark, data, columns="offset, key").columns == ["offset", "key"]
    reader = spark.read.format("tidelog").schema("value binary, offset bigint")
    frame = reader.option("assign", '{"t":[0]}').load(str(data.path))
    assert sorted((row["offset"], row["value"]) for row in frame.collect()) == [(r.offset, r.value) for r in written]
    with pytest.raises(Exception, match="column offset has type int in the schema: expected bigint"):
        spark.read.format("tidelog").schema("offset int").option("subscribe", "t").load(str(data.path)).collect()


def test_ranges_of_offsets_and_times_are_read(spark: SparkSession, kept: tuple[DataDirectory, list[Record]]) -> None:
    data, written = kept
    place: Mapping[str, Any] = {"assign": '{"t":[0]}'}
    given = {"startingOffsets": '{"t":{"0":50}}', "endingOffsets": '{"t":{"0":60}}'}
    assert offsets(load(spark, data, **place, **given)) == list(range(50, 60))
    times = {"startingTimestamp": written[33].timestamp, "endingTimestamp": written[77].timestamp}
    assert offsets(load(spark, data, **place, **times)) == list(range(33, 77))


def test_one_partition_feeds_many_tasks(spark: SparkSession, kept: tuple[DataDirectory, list[Record]]) -> None:
    data, written = kept
    for given in ({"minPartitions": 6}, {"bytesPerTask": 1000}, {"maxRecordsPerPartition": 20}):
        frame = load(spark, data, assign='{"t":[0]}', **given)
        assert frame.rdd.getNumPartitions() >= 6
        assert offsets(frame) == [record.offset for record in written]


def test_only_the_records_of_a_key_are_read(spark: SparkSession, kept: tuple[DataDirectory, list[Record]]) -> None:
    data, written = kept
    assert offsets(load(spark, data, key="key-3")) == [record.offset for record in written if record.key == b"key-3"]


def test_times_are_exact_and_spare_tasks(spark: SparkSession, kept: tuple[DataDirectory, list[Record]]) -> None:
    data, written = kept
    low, high = written[120].timestamp, written[150].timestamp
    bounds = {"minTimestamp": low, "maxTimestamp": high}
    frame = load(spark, data, assign='{"t":[0]}', bytesPerTask=1000, **bounds)
    assert offsets(frame) == [record.offset for record in written if low <= record.timestamp <= high]
    everything = load(spark, data, assign='{"t":[0]}', bytesPerTask=1000)
    assert frame.rdd.getNumPartitions() < everything.rdd.getNumPartitions() * 2 // 3


def test_pushed_filters_are_withdrawn(spark: SparkSession, kept: tuple[DataDirectory, list[Record]]) -> None:
    with pytest.raises(Exception, match="option pushFilters is withdrawn"):
        load(spark, kept[0], pushFilters="true").count()


def test_a_view_is_queried_in_sql(spark: SparkSession, kept: tuple[DataDirectory, list[Record]]) -> None:
    data, written = kept
    spark.sql(f"create or replace temporary view events using tidelog options (path '{data.path}', subscribe 't')")
    found = spark.sql("select count(*), max(offset) from events where partition = 0").collect()[0]
    assert tuple(found) == (len(written), written[-1].offset)


def test_an_empty_log_has_no_rows(spark: SparkSession, data: DataDirectory) -> None:
    data.log("t")
    assert load(spark, data).collect() == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOfsets": "earliest"}, "option startingofsets is unknown: the nearest is startingOffsets"),
        ({"subscribe": "nobody"}, "topic nobody has no partition below"),
        ({"startingOffsets": '{"t":{"0":9999,"1":0}}'}, "offset 9999 of t-0 is beyond the end of the log, 200"),
        ({"columns": "size"}, "column 'size' is unknown"),
    ],
)
def test_wrong_options_are_errors(
    spark: SparkSession, kept: tuple[DataDirectory, list[Record]], given: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        load(spark, kept[0], **given).collect()


def test_paths_without_a_data_directory_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    reader = spark.read.format("tidelog").option("subscribe", "t")
    with pytest.raises(Exception, match="is not a Kafka data directory"):
        reader.load(str(tmp_path)).collect()
    with pytest.raises(Exception, match="missing does not exist: expected a data directory"):
        reader.load(str(tmp_path / "missing")).collect()


def test_the_end_offsets_come_from_a_broker(
    spark: SparkSession, tidelog_broker: TidelogProcess, data: DataDirectory
) -> None:
    topic, bootstrap = "source.end", tidelog_broker.bootstrap
    Admin(bootstrap).create(topic)
    sender = producer(bootstrap, transactional_id="source.end")
    sender.init_transactions(30)
    for number, is_committed in enumerate((True, False, True)):
        sender.begin_transaction()
        sender.produce(topic, b"%d" % number, partition=0)
        sender.flush(30)
        (sender.commit_transaction if is_committed else sender.abort_transaction)(30)
    sender.begin_transaction()
    sender.produce(topic, b"open", partition=0)
    sender.flush(30)

    def values(**given: str) -> list[bytes]:
        reader = spark.read.format("tidelog").options(subscribe=topic, **given)
        return sorted(row["value"] for row in reader.load(str(tidelog_broker.directory / "data")).collect())

    committed = {"kafka.isolation.level": "read_committed"}
    for broker in ({"kafka.bootstrap.servers": bootstrap}, {}):
        assert values(**broker) == [b"0", b"1", b"2", b"open"]
        assert values(**broker, **committed) == [b"0", b"2"]
    sender.abort_transaction(30)
    data.log("t")
    with pytest.raises(Exception, match="cannot connect"):
        load(spark, data, subscribe="t", kafka__bootstrap__servers="127.0.0.1:1").collect()


class TestUnderARunningQuery:
    """Files change after the query was planned and before its tasks read."""

    def planned(self, spark: SparkSession, data: DataDirectory, **given: Any) -> RDD[Row]:
        rows = load(spark, data, **given).rdd
        rows.getNumPartitions()  # plans, and keeps the plan
        return rows

    def test_a_deleted_first_segment_is_data_loss(self, spark: SparkSession, data: DataDirectory) -> None:
        fill(data.log("t"), BATCHES)
        lossless, lossy = self.planned(spark, data), self.planned(spark, data, failOnDataLoss="false")
        segments = list_segments(str(data.path / "t-0"))
        data.close()
        os.remove(segments[0].path)
        with pytest.raises(Exception, match="were deleted while the query ran"):
            lossless.collect()
        assert [row["offset"] for row in lossy.collect()] == list(range(segments[1].base_offset, 200))

    def test_a_deleted_segment_in_the_middle_is_data_loss(self, spark: SparkSession, data: DataDirectory) -> None:
        fill(data.log("t"), BATCHES)
        lossless, lossy = self.planned(spark, data), self.planned(spark, data, failOnDataLoss="false")
        gone, behind = list_segments(str(data.path / "t-0"))[1:3]
        data.close()
        os.remove(gone.path)
        missing = f"offsets {gone.base_offset} to {behind.base_offset - 1} are missing between"
        with pytest.raises(Exception, match=missing):
            lossless.collect()
        with pytest.raises(Exception, match=missing):
            load(spark, data).count()
        kept = [*range(gone.base_offset), *range(behind.base_offset, 200)]
        assert [row["offset"] for row in lossy.collect()] == kept

    def test_a_topic_that_was_created_again_ends_the_query(self, spark: SparkSession, data: DataDirectory) -> None:
        fill(data.log("t"), 3)
        write_partition_metadata(OsFileSystem(), str(data.path / "t-0"), TOPIC_ID)
        frame = self.planned(spark, data)
        data.close()
        os.rename(data.path / "t-0", data.path / "t-0.0-delete")
        fill(data.log("t"), 3)
        write_partition_metadata(OsFileSystem(), str(data.path / "t-0"), bytes(range(1, 17)))
        with pytest.raises(Exception, match="topic t was deleted and created again"):
            frame.collect()
        shutil.rmtree(data.path / "t-0.0-delete")

    def test_a_damaged_batch_is_reported_with_its_place(self, spark: SparkSession, data: DataDirectory) -> None:
        fill(data.log("t"), 3)
        path = list_segments(str(data.path / "t-0"))[0].path
        frame = self.planned(spark, data)
        with open(path, "r+b") as file:
            file.seek(100)
            file.write(b"\xff\xfe")
        with pytest.raises(Exception, match=rf"{path}: corrupt batch at byte 0 \(offset 0\): its checksum"):
            frame.collect()

    def test_appends_after_planning_are_not_part_of_it(self, spark: SparkSession, data: DataDirectory) -> None:
        fill(data.log("t"), 5)
        frame = self.planned(spark, data)
        fill(data.log("t"), 5)
        assert [row["offset"] for row in frame.collect()] == list(range(25))
        assert offsets(load(spark, data)) == list(range(50))


def test_which_queries_see_new_records(spark: SparkSession, data: DataDirectory) -> None:
    """Spark plans a Python source once for each load: docs/spark.md says what that means."""
    fill(data.log("t"), 5)
    view, table = "moment_view", "moment_table"
    options = f"using tidelog options (path '{data.path}', subscribe 't')"
    spark.sql(f"create temporary view {view} {options}")
    spark.sql(f"create table {table} {options}")
    frame, of_table = load(spark, data), spark.table(table)
    before = [frame.count(), of_table.count(), spark.table(view).count()]
    fill(data.log("t"), 5)
    old = [frame.count(), frame.where("offset >= 0").count(), of_table.count(), spark.table(view).count()]
    new = [load(spark, data).count(), spark.table(table).count(), spark.sql(f"select * from {table}").count()]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    pushed = [frame.where("offset >= 0").count(), frame.count()]
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    spark.sql(f"drop view {view}")
    spark.sql(f"drop table {table}")
    assert (before, old, new, pushed) == ([25] * 3, [25] * 4, [50] * 3, [50] * 2)
