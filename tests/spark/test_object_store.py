"""Copies of logs in an object store, read over S3: the same rows, few requests, and clear errors."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.object_store import BUCKET, ObjectStore, object_store
from tests.support.pipelines import NOW_MS, DataDirectory, end_transaction, fill, write
from tidelog.pipeline.decode.decode import ReadOptions, read_slice
from tidelog.pipeline.errors import DataLossError, PipelineError, RemoteError, SelectionError
from tidelog.pipeline.files.read_count import ReadCount
from tidelog.pipeline.files.segment_files import list_segments
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.pipeline.jobs.export import ExportRequest, export
from tidelog.pipeline.jobs.source import LogSource
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.options.options import parse_options
from tidelog.pipeline.plan.plan import SegmentSlice, plan
from tidelog.pipeline.source.reader import TidelogReader
from tidelog.protocol.record.record_batch import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java
BATCHES = 60
COMMITTED = {"kafka.isolation.level": "read_committed"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, store_credentials: None) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataDirectory:
    directory = DataDirectory(tmp_path_factory.mktemp("log") / "data")
    fill(directory.log("t"), BATCHES)
    fill(directory.log("t", 1), 3)
    log = directory.log("transactions")
    for producer, is_committed in ((1, True), (2, False), (3, True)):
        write(log, [Record(0, NOW_MS, None, b"%d" % producer)], producer_id=producer, producer_epoch=0,
              base_sequence=0, is_transactional=True)  # fmt: skip
        end_transaction(log, producer, commit=is_committed)
    directory.close()
    return directory


@pytest.fixture(scope="module")
def copy(store: ObjectStore, data: DataDirectory) -> str:
    """The address of a copy of all of it."""
    return store.copy(data.path, "copies/all")


def reader(path: str | Path, **given: str) -> TidelogReader:
    options = parse_options({"path": str(path), "subscribe": "t", **given})
    return TidelogReader(options, Columns.default(headers=True))


def rows(path: str | Path, **given: str) -> list[dict[str, Any]]:
    asked = reader(path, **given)
    return [row for part in asked.partitions() for batch in asked.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"bytesPerTask": "3k"},
        {"startingOffsets": '{"t":{"0":77,"1":3}}', "endingOffsets": '{"t":{"0":121,"1":-1}}'},
        {"startingTimestamp": str(NOW_MS + 60_000), "endingTimestamp": str(NOW_MS + 120_000)},
        {"key": "key-3"},
        {"minPartitions": "7"},
        {"subscribe": "transactions"},
        {"subscribe": "transactions", **COMMITTED},
    ],
)
def test_rows_of_a_copy_equal_those_of_the_directory(data: DataDirectory, copy: str, given: dict[str, str]) -> None:
    assert rows(copy, **given) == rows(data.path, **given) != []


def test_topics_of_a_copy_equal_those_of_the_directory(data: DataDirectory, copy: str) -> None:
    there, here = (LogSource((path,)).partitions() for path in (copy, str(data.path)))
    assert [(p.directory.topic, p.directory.topic_id, p.bounds) for p in there] == [
        (p.directory.topic, p.directory.topic_id, p.bounds) for p in here
    ]
    assert [p.directory.topic for p in there] == ["t", "t", "transactions"]


def test_spark_reads_it(spark: SparkSession, data: DataDirectory, copy: str) -> None:
    frames = [spark.read.format("tidelog").options(subscribe="t").load(path) for path in (copy, str(data.path))]
    there, here = (frame.orderBy("partition", "offset").collect() for frame in frames)
    assert there == here
    assert len(here) == 5 * (BATCHES + 3)


def test_a_copy_is_queried_in_sql(spark: SparkSession, copy: str) -> None:
    spark.sql(f"create or replace temporary view copied using tidelog options (path '{copy}', subscribe 't')")
    found = spark.sql("select count(*), max(offset) from copied where partition = 0").collect()[0]
    assert tuple(found) == (5 * BATCHES, 5 * BATCHES - 1)


def test_a_stream_over_copies_continues_with_segments_copied_later(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    growing = DataDirectory(tmp_path / "data")
    fill(growing.log("t"), 10)
    path = store.copy(growing.path, "growing")
    seen: list[int] = []

    def run() -> None:
        frame = spark.readStream.format("tidelog").options(subscribe="t", startingOffsets="earliest").load(path)
        writer = frame.writeStream.foreachBatch(lambda batch, _: seen.extend(r["offset"] for r in batch.collect()))
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        query.awaitTermination()

    run()
    fill(growing.log("t"), 10)
    growing.close()
    store.copy(growing.path, "growing")
    deadline = time.monotonic() + 60
    while len(seen) < 100 and time.monotonic() < deadline:  # a listing is believed for a second
        run()
    assert seen == list(range(100))


def test_export_and_audit_of_a_copy_equal_those_of_the_directory(
    data: DataDirectory, copy: str, tmp_path: Path
) -> None:
    tables = []
    for name, path in (("here", str(data.path)), ("there", copy)):
        result = export(None, ExportRequest(LogSource((path,)), str(tmp_path / name)))
        tables.append((result.rows, result.complete_through()))
    assert tables[0] == tables[1]
    here, there = (audit(None, AuditRequest(LogSource((path,)))) for path in (str(data.path), copy))
    assert not there.is_wrong
    for name in ("bytes_read", "batches", "records", "index_entries", "aborted_records"):
        assert there.total(name) == here.total(name) > 0
    assert [part.buckets for part in there.partitions] == [part.buckets for part in here.partitions]


def test_a_query_of_one_offset_fetches_few_bytes(store: ObjectStore, tmp_path: Path) -> None:
    big = DataDirectory(tmp_path / "data", segment_bytes=4 << 20, index_interval_bytes=4096)
    log = big.log("t")
    for number in range(160):
        write(log, [Record(0, NOW_MS + number * 1000, None, os.urandom(100_000))])
    big.close()
    path = store.copy(big.path, "big")
    asked = reader(path, startingOffsets='{"t":{"0":100}}', endingOffsets='{"t":{"0":101}}')
    request = asked.request()
    slices = plan(request)
    fetched = ReadCount()
    for piece in slices:
        (batch,) = read_slice(piece, asked.wanted, options=ReadOptions(count=fetched))
        assert batch.column("offset").to_pylist() == [100]
    assert fetched.bytes_read <= 3 * 100_000, "the batch, its neighbours at most"
    assert request.count.bytes_read < 1_000_000, "of 16 MB"


def slices_of(path: str, **given: str) -> tuple[TidelogReader, list[SegmentSlice]]:
    asked = reader(path, **given)
    return asked, plan(asked.request())


class TestUnderAQuery:
    """Objects change after the query was planned."""

    @pytest.fixture
    def planned(self, store: ObjectStore, tmp_path: Path) -> tuple[str, Path, list[SegmentSlice]]:
        directory = DataDirectory(tmp_path / "data")
        fill(directory.log("t"), 60)
        directory.close()
        prefix = tmp_path.name
        path = store.copy(directory.path, prefix)
        return prefix, directory.path, slices_of(path)[1]

    def read(self, slices: list[SegmentSlice], *, fail: bool = True) -> list[int]:
        options = ReadOptions(fail_on_data_loss=fail)
        batches = [b for piece in slices for b in read_slice(piece, Columns(("offset",)), options=options)]
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()]

    def test_a_deleted_first_segment(self, store: ObjectStore, planned: tuple[str, Path, list[SegmentSlice]]) -> None:
        prefix, local, slices = planned
        segments = list_segments(str(local / "t-0"))
        store.remove(f"{prefix}/t-0/{os.path.basename(segments[0].path)}")
        with pytest.raises(DataLossError, match="were deleted while the query ran"):
            self.read(slices)
        assert self.read(slices, fail=False) == list(range(segments[1].base_offset, 300))

    def test_an_object_that_was_replaced_is_planned_again(
        self, store: ObjectStore, planned: tuple[str, Path, list[SegmentSlice]]
    ) -> None:
        prefix, local, slices = planned
        last = list_segments(str(local / "t-0"))[-1].path
        store.put(f"{prefix}/t-0/{os.path.basename(last)}", Path(last).read_bytes() + b"\0" * 100)
        assert self.read(slices) == list(range(300))

    def test_a_torn_tail_of_the_last_segment_is_no_part_of_the_log(
        self, store: ObjectStore, planned: tuple[str, Path, list[SegmentSlice]]
    ) -> None:
        prefix, local, _ = planned
        last = list_segments(str(local / "t-0"))[-1].path
        content = Path(last).read_bytes()
        store.put(f"{prefix}/t-0/{os.path.basename(last)}", content[:-7])
        found = [row["offset"] for row in rows(store.address(prefix))]
        assert found == list(range(295))

    def test_damage_is_reported(self, store: ObjectStore, planned: tuple[str, Path, list[SegmentSlice]]) -> None:
        prefix, local, slices = planned
        first = list_segments(str(local / "t-0"))[0].path
        content = bytearray(Path(first).read_bytes())
        content[100] ^= 0xFF
        store.put(f"{prefix}/t-0/{os.path.basename(first)}", bytes(content))
        with pytest.raises(PipelineError, match=r"t-0/0{20}.log: corrupt batch at byte 0 \(offset 0\)"):
            self.read(slices)

    def test_an_object_that_goes_or_is_replaced_while_it_is_read(self, store: ObjectStore, tmp_path: Path) -> None:
        directory = DataDirectory(tmp_path / "data", segment_bytes=64 << 20)
        log = directory.log("t")
        for _ in range(40):
            write(log, [Record(0, NOW_MS, None, os.urandom(1_000_000))])
        directory.close()
        path, key = store.copy(directory.path, "going"), "going/t-0/00000000000000000000.log"
        (piece,) = slices_of(path)[1]

        def begun(*, fail: bool) -> Iterator[Any]:
            batches = read_slice(piece, Columns.default(), options=ReadOptions(fail_on_data_loss=fail))
            assert next(batches).column("offset")[0].as_py() == 0
            return batches

        failing, going_on = begun(fail=True), begun(fail=False)
        store.remove(key)
        with pytest.raises(DataLossError, match="were deleted while the query ran"):
            list(failing)
        assert sum(batch.num_rows for batch in going_on) < 39
        path, key = store.copy(directory.path, "replaced"), key.replace("going", "replaced")  # not listed yet
        (piece,) = slices_of(path)[1]
        replaced = begun(fail=False)
        store.put(key, (directory.path / "t-0" / os.path.basename(key)).read_bytes() + b"\0")
        with pytest.raises(RemoteError, match=r"0\.log was replaced while it was read: read it again"):
            list(replaced)


class TestMistakes:
    def test_a_missing_bucket_directory_or_topic_is_an_error(self, store: ObjectStore, copy: str) -> None:
        with pytest.raises(RemoteError, match=r"nowhere.* cannot be listed: no such bucket \(ListObjectsV2\)"):
            rows(store.address("x", bucket="nowhere"))
        with pytest.raises(SelectionError, match=r"nothing does not exist: expected a data directory"):
            rows(store.address("nothing"))
        with pytest.raises(SelectionError, match="topic missing has no partition below"):
            rows(copy, subscribe="missing")

    def test_a_lack_of_permission_is_reported(
        self, store: ObjectStore, copy: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        elsewhere = copy.replace("us-east-1", "us-east-2")  # a connection of its own
        with pytest.raises(RemoteError, match="expected credentials that may list and read it"):
            rows(elsewhere)

    def test_jobs_that_write_beside_the_log_are_refused(self, copy: str, tmp_path: Path) -> None:
        from tidelog.pipeline.jobs.compact import CompactRequest, compact
        from tidelog.pipeline.jobs.index import IndexRequest, index
        from tidelog.pipeline.jobs.offline_logs import Configuration

        source, nothing = LogSource((copy,)), Configuration({}, {})
        for work in (
            lambda: compact(None, CompactRequest(source, nothing)),
            lambda: index(None, IndexRequest(source, nothing)),
            lambda: export(None, ExportRequest(source, f"s3://{BUCKET}/table")),
        ):
            with pytest.raises(PipelineError, match="expected a directory that is mounted where the driver and the"):
                work()

    def test_a_slice_whose_object_is_missing_is_data_loss(self, copy: str) -> None:
        _, slices = slices_of(copy)
        gone = replace(slices[0], path=slices[0].path.replace("t-0", "gone-0"))
        with pytest.raises(DataLossError, match="gone-0 is gone"):
            list(read_slice(gone, Columns.default()))
