"""Work of replay and backfill before they connect to a broker: marks of progress, files, columns, ranges."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.pipelines import DataDirectory, fill
from tidelog.pipeline.errors import OptionError
from tidelog.pipeline.job_errors import BadRequestError
from tidelog.pipeline.jobs import backfill, replay, writing
from tidelog.pipeline.jobs.backfill import BackfillRequest, BackfillResult, find_files, sink_schema
from tidelog.pipeline.jobs.export import ExportRequest, export
from tidelog.pipeline.jobs.replay import ReplayRequest, ReplayResult, mark, moment, replay_source
from tidelog.pipeline.jobs.writing import Target, TopicWriter, Written, written_of
from tidelog.pipeline.sink.commit import Publication
from tidelog.pipeline.sink.task import PartitionCounts
from tidelog.protocol.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

TARGET = Target("localhost:1", "to")
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


def batch_of(headers: list[list[dict[str, Any]] | None]) -> pa.RecordBatch:
    rows = len(headers)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"k"] * rows, pa.binary()),
            "value": pa.array([b"v"] * rows, pa.binary()),
            "partition": pa.array([1] * rows, pa.int32()),
            "offset": pa.array(range(5, 5 + rows), pa.int64()),
            "timestamp": pa.array([0] * rows, pa.timestamp("us", tz="UTC")),
            "headers": pa.array(headers, HEADERS),
        }
    )


def test_the_origin_header_is_added_after_existing_headers() -> None:
    old: list[dict[str, Any]] = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    marked = mark(batch_of([old, None, [], old[:1]]), "orders-1", keep_partition=True)
    origins: list[dict[str, Any]] = [
        {"key": "replayed-from", "value": b"orders-1@%d" % offset} for offset in range(5, 9)
    ]
    assert marked.column("headers").to_pylist() == [
        [*old, origins[0]], [origins[1]], [origins[2]], [*old[:1], origins[3]],
    ]  # fmt: skip
    assert marked.schema.names == ["key", "value", "timestamp", "partition", "headers"]


def test_without_their_partition_rows_go_by_key() -> None:
    marked = mark(batch_of([None]).slice(0, 0), "orders-1", keep_partition=False)
    assert (marked.num_rows, marked.schema.names) == (0, ["key", "value", "timestamp", "headers"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
        ("2023-11-14T22:13:20.001", 1_700_000_000_001),
        ("2023-11-14T22:13:20.0001", 1_700_000_000_001),
        ("2026-11-20T00:00:00.009", 1_795_132_800_009),
        ("1969-12-31T23:59:59.999", 0),
        ("1960-01-01", 0),
        ("0001-01-01T00:00+14:00", 0),
    ],
)
def test_times_are_ms_or_iso(text: str, expected: int) -> None:
    assert moment(text, "--from") == expected
    source = replay_source("/data", {"subscribe": "t"}, text, text)
    assert (source.starting.timestamp, source.ending.timestamp) == (expected, expected)


def test_ranges_are_words_or_json_too() -> None:
    source = replay_source("/data", {"subscribe": "t"}, '{"t":{"0":5}}', "latest")
    assert (source.starting.offsets, source.ending.default) == ({"t": {0: 5}}, -1)
    with pytest.raises(
        BadRequestError, match="--from yesterday: expected earliest, ms since 1970, an ISO 8601 time, or offsets"
    ):
        replay_source("/data", {"subscribe": "t"}, "yesterday", None)
    with pytest.raises(OptionError, match="startingOffsets"):
        replay_source("/data", {"subscribe": "t"}, '{"t":5}', None)


def test_a_name_that_no_group_may_have_is_refused(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    fill(data.log("orders"), 1)
    source = replay_source(str(data.path), {"subscribe": "orders"}, None, None)
    with pytest.raises(BadRequestError, match="--name no/name: expected up to 60"):
        replay.replay(None, ReplayRequest(source, TARGET, "no/name"))


def test_an_empty_range_is_nothing_to_do(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    fill(data.log("orders"), 1)
    end = '{"orders":{"0":5}}'
    request = ReplayRequest(replay_source(str(data.path), {"subscribe": "orders"}, end, None), TARGET, "name")
    assert replay.report(replay.replay(None, request), request) == ["nothing in the range"]


def committed(offset: int, metadata: str | None, topic: str = TARGET.topic) -> OffsetFetchResponseTopic:
    partition = OffsetFetchResponsePartition(partition_index=0, committed_offset=offset, metadata=metadata)
    return OffsetFetchResponseTopic(name=topic, partitions=[partition])


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        ([], Written()),
        ([committed(9, "rows from 4 on")], Written(9, 4)),
        ([committed(9, "last batch id of a Spark writer")], Written(9)),
        ([committed(9, None)], Written(9)),
        ([committed(5, "rows from 5 on", "other"), committed(9, "rows from 0 on")], Written(9, 0)),
    ],
)
def test_a_group_says_the_first_and_the_last_row_that_were_written(
    topics: list[OffsetFetchResponseTopic], expected: Written
) -> None:
    assert written_of("group", TARGET.topic, OffsetFetchResponse(topics=topics)) == expected


def test_another_target_under_a_name_in_use_is_refused() -> None:
    answer = OffsetFetchResponse(topics=[committed(9, "rows from 4 on", "other")])
    with pytest.raises(
        BadRequestError, match=r"--to to: under this --name rows were written to other .*another --name"
    ):
        written_of("group", TARGET.topic, answer)


@pytest.mark.parametrize(
    ("written", "first", "begins", "note"),
    [
        (Written(), 0, 0, "rows from 0 on"),
        (Written(), 50, 50, "rows from 50 on"),
        (Written(99, 50), 50, 100, "rows from 50 on"),
        (Written(99, 50), 70, 100, "rows from 50 on"),
        (Written(99, 50), 100, 100, "rows from 50 on"),
        (Written(99, 50), 101, 101, "rows from 101 on"),
        (Written(99), 50, 100, ""),
        (Written(99), 101, 101, "rows from 101 on"),
        (Written(0, 0), 0, 1, "rows from 0 on"),
    ],
)
def test_a_writer_notes_from_which_row_on_all_are_written(
    monkeypatch: pytest.MonkeyPatch, written: Written, first: int, begins: int, note: str
) -> None:
    published: list[Publication] = []
    monkeypatch.setattr(writing, "read_written", lambda *_: written)
    monkeypatch.setattr(writing, "publish", lambda _, publication: published.append(publication))
    with TopicWriter(TARGET, "replay-run") as writer:
        assert writer.begin(first) == begins
        writer.write([], begins)
    assert [publication.note for publication in published] == [note]


def test_rows_without_key_fill_one_partition_after_the_other_over_all_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each transaction began with the same partition, so with a low rate all rows of a file went there."""
    staged: list[int] = []
    monkeypatch.setattr(
        writing, "publish", lambda _, publication: staged.extend(one.partition for one in publication.files[0].batches)
    )
    monkeypatch.setattr(PartitionCounts, "of", lambda *_: 3)
    rows = pa.RecordBatch.from_pydict({"value": pa.array([bytes(400_000)] * 2, pa.binary())})
    with TopicWriter(TARGET, "backfill-run", first_partition=1) as writer:
        for number in range(6):
            writer.write([rows], number)
    assert set(staged) == {0, 1, 2}


def ranged(data: DataDirectory, begin: int) -> ReplayRequest:
    return ReplayRequest(
        replay_source(str(data.path), {"subscribe": "orders"}, f'{{"orders":{{"0":{begin}}}}}', None), TARGET, "run"
    )


def test_an_earlier_range_under_a_name_in_use_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataDirectory(tmp_path / "data")
    fill(data.log("orders"), 20)
    monkeypatch.setattr(replay, "check_broker", lambda _: None)
    monkeypatch.setattr(replay, "partitions_of", lambda _: 1)
    monkeypatch.setattr(replay, "read_written", lambda *_: Written(99, 50))
    expected = (
        "--name run: under this name orders-0 was written from offset 50 to 99, and the range begins before it, at 10"
    )
    with pytest.raises(BadRequestError, match=expected):
        replay.replay(None, ranged(data, 10))
    monkeypatch.setattr(replay, "replay_partition", lambda plan: ReplayResult("orders", 0, plan.start, 100, 100, 0))
    assert [replay.replay(None, ranged(data, begin))[0].start for begin in (50, 60)] == [50, 60]
    monkeypatch.setattr(replay, "read_written", lambda *_: Written(99))
    assert replay.replay(None, ranged(data, 10))[0].start == 10


def test_the_report_names_records_written_by_earlier_runs(tmp_path: Path) -> None:
    request = ReplayRequest(replay_source("/data", {"subscribe": "t"}, None, None), TARGET, "run")
    lines = replay.report([ReplayResult("t", 0, 0, 9, 4, 5), ReplayResult("t", 1, 0, 9, 0, 9)], request)
    assert lines == [
        "t-0: 5 records of offsets 0 to 8; below 4 they were written by earlier runs under the name run",
        "t-1: 9 records of offsets 0 to 8",
    ]
    files = BackfillRequest(("x",), TARGET, "run")
    assert backfill.report([BackfillResult("a", 5, 4), BackfillResult("b", 9, 0)], files) == [
        "a: 5 rows; 4 were written by earlier runs under the name run",
        "b: 9 rows",
    ]


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_files_are_named_or_lie_in_directories(tmp_path: Path) -> None:
    first = parquet(tmp_path / "b.parquet", value=["x"])
    second = parquet(tmp_path / "a.parquet", value=["x"])
    (tmp_path / "notes.txt").write_text("no")
    assert find_files([str(first), str(tmp_path)]) == [str(first), str(second)]
    spellings = [
        str(first),
        os.path.relpath(first),
        f"{tmp_path}/./b.parquet",
        f"{tmp_path}/../{tmp_path.name}/b.parquet",
    ]
    assert find_files(spellings) == [str(first)], "two tasks for a path would share a transactional id"
    with pytest.raises(BadRequestError, match="does not exist: expected a Parquet file"):
        find_files([str(tmp_path / "missing")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadRequestError, match=r"holds no \.parquet file"):
        find_files([str(tmp_path / "empty")])


def test_columns_take_the_types_of_the_sink(tmp_path: Path) -> None:
    path = parquet(
        tmp_path / "f.parquet",
        value=["x"], key=pa.array([b"k"], pa.large_binary()), partition=pa.array([1], pa.int64()), topic=["t"],
    )  # fmt: skip
    assert [(field.name, str(field.type)) for field in sink_schema(str(path))] == [
        ("value", "binary"), ("key", "binary"), ("partition", "int32"),
    ]  # fmt: skip
    (batch,) = backfill._rows(str(path), 0)
    assert batch.to_pylist() == [{"value": b"x", "key": b"k", "partition": 1}]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": ["k"]}, "has no column value"),
        ({"value": ["v"], "price": [1]}, "column price cannot be written; expected some of key, value"),
        ({"value": [1]}, "column value has type int64, expected string or binary"),
        ({"value": ["v"], "partition": ["0"]}, "column partition has type string, expected an integer"),
        ({"value": ["v"], "headers": [[1]]}, "column headers has type list<.*int64>, expected a list of"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_anything_is_written(
    tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    path = parquet(tmp_path / "f.parquet", **columns)
    with pytest.raises(BadRequestError, match=message):
        backfill.backfill(None, BackfillRequest((str(path),), TARGET, "run"))


def test_times_of_other_programs_are_rounded_down(tmp_path: Path) -> None:
    """pandas writes nanoseconds, which ended the job with a traceback."""
    times = {"s": 7, "ms": 7_001, "us": 7_001_002, "ns": 7_001_002_999}
    for unit, time in times.items():
        path = parquet(tmp_path / f"{unit}.parquet", value=["x"], timestamp=pa.array([time], pa.timestamp(unit)))
        (batch,) = backfill._rows(str(path), 0)
        assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [
            {"s": 7_000_000, "ms": 7_001_000}.get(unit, 7_001_002)
        ]


def test_an_hour_that_comes_twice_in_its_zone_is_written(tmp_path: Path) -> None:
    """A DataFrame of pandas has nanoseconds in a zone; in autumn a local time may stand for either of two."""
    first = 1_729_989_000 * 1_000_000
    times = pa.array([first * 1000, (first + 3_600_000_000) * 1000 + 999], pa.timestamp("ns", "Europe/Berlin"))
    path = parquet(tmp_path / "f.parquet", value=["x", "y"], timestamp=times)
    (batch,) = backfill._rows(str(path), 0)
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [first, first + 3_600_000_000]


def test_headers_of_large_types_are_written(tmp_path: Path) -> None:
    header = pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])
    headers = pa.array([[{"key": "h", "value": b"1"}], None], pa.list_(header))
    path = parquet(tmp_path / "f.parquet", value=["x", "y"], headers=headers)
    (batch,) = backfill._rows(str(path), 0)
    assert batch.column("headers").to_pylist() == [[{"key": "h", "value": b"1"}], None]


def test_a_value_that_does_not_fit_names_its_file_and_column(tmp_path: Path) -> None:
    path = parquet(tmp_path / "f.parquet", value=["x"], partition=[1 << 40])
    with pytest.raises(
        BadRequestError, match=r"f\.parquet: column partition has a value that cannot be written: Integer"
    ):
        list(backfill._rows(str(path), 0))


def test_a_file_that_is_no_parquet_is_reported(tmp_path: Path) -> None:
    (tmp_path / "f.parquet").write_text("no")
    with pytest.raises(BadRequestError, match=r"f\.parquet is not a Parquet file"):
        sink_schema(str(tmp_path / "f.parquet"))


def test_a_file_that_has_grown_is_the_same_and_one_that_begins_otherwise_is_another(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    request = ExportRequest(data.source(), str(tmp_path / "table"))
    writers = []
    for _ in range(3):
        fill(data.log("t"), 2)
        export(None, request)
        (path,) = find_files([str(tmp_path / "table" / "data")])
        writers.append((os.path.getsize(path), backfill._writer("run", path)))
    data.close()
    assert len({size for size, _ in writers}) == 3
    assert len({writer for _, writer in writers}) == 1
    other = parquet(tmp_path / "table" / "data" / Path(path).name, value=["otherwise"])
    assert backfill._writer("run", str(other)) != writers[0][1]
    assert backfill._writer("run", str(parquet(tmp_path / "f.parquet", value=["otherwise"]))) != writers[0][1]


def test_large_rows_of_a_file_are_read_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "CHUNK_BYTES", 1_000_000)
    path = tmp_path / "rows.parquet"
    values = [os.urandom(100_000) for _ in range(35)]
    pq.write_table(pa.table({"value": pa.array(values, pa.binary())}), path)
    batches = list(backfill._rows(str(path), 3))
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == values[3:]
    assert all(batch.nbytes < 1_100_000 for batch in batches)


@pytest.mark.parametrize("skipped", [0, 3, 4, 5, 9, 10])
def test_rows_that_were_written_are_passed_over(tmp_path: Path, skipped: int) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"value": [str(n) for n in range(10)]}), path, row_group_size=4)
    rows = [row for batch in backfill._rows(str(path), skipped) for row in batch.column("value").to_pylist()]
    assert rows == [str(n).encode() for n in range(skipped, 10)]
