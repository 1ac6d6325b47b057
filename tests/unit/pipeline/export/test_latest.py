"""The latest row of each key: found in memory, and when files are merged."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidelog.pipeline.export import latest
from tidelog.pipeline.export.latest import MergePlan, MergeResult, latest_rows, merge_files
from tidelog.pipeline.options.columns import Columns

SCHEMA = Columns.default().arrow_schema()
Rows = list[tuple[bytes | None, bytes | None]]


def batch(rows: Rows, first: int = 0, partition: int = 0) -> pa.RecordBatch:
    content = [
        {"key": key, "value": value, "topic": "t", "partition": partition, "offset": first + n, "timestamp": first + n,
         "timestampType": 0} for n, (key, value) in enumerate(rows)
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(content, SCHEMA)


def write(path: Path, *batches: pa.RecordBatch) -> str:
    pq.write_table(pa.Table.from_batches(batches), path)
    return str(path)


def rows_of(path: str) -> list[tuple[Any, ...]]:
    return [(row["partition"], row["key"], row["value"]) for row in pq.read_table(path).to_pylist()]


@pytest.mark.parametrize("pass_bytes", [1, 1000, 1 << 20])
def test_the_last_row_of_each_key_stays_whatever_the_passes_are(
    pass_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest, "PASS_BYTES", pass_bytes)
    chance, expected = random.Random(pass_bytes), dict[bytes, int]()
    keyless, batches, first = list[pa.RecordBatch](), list[pa.RecordBatch](), 0
    for _ in range(50):
        rows: Rows = [
            (None if chance.random() < 0.05 else b"%d" % chance.randrange(90), b"v")
            for _ in range(chance.randrange(30))
        ]
        batches.append(batch(rows, first))
        expected |= {key: first + n for n, (key, _) in enumerate(rows) if key is not None}
        first += len(rows)
    found = latest_rows(batches, keyless.append)
    offsets = [offset for one in found.batches() for offset in one.column("offset").to_pylist()]
    assert offsets == sorted(expected.values())
    assert sum(one.num_rows for one in keyless) == sum(one.column("key").null_count for one in batches)
    assert found.largest_timestamp == (first - 1) // 1000


def test_rows_whose_key_comes_again_go_and_those_of_other_partitions_stay(tmp_path: Path) -> None:
    old = write(tmp_path / "old", batch([(b"a", b"1"), (b"b", b"2")]), batch([(b"a", b"3")], partition=1))
    new = write(tmp_path / "new", batch([(b"a", None), (b"c", b"4")], 9))
    target = str(tmp_path / "target")
    assert merge_files(MergePlan((old,), (new,), target, is_new=False)) == MergeResult((), (("target", 2),))
    assert rows_of(target) == [(0, b"b", b"2"), (1, b"a", b"3")]
    assert merge_files(MergePlan((new,), (), target, is_new=True)) == MergeResult((), (("target", 1),))
    assert rows_of(target) == [(0, b"c", b"4")]


def test_rows_without_topic_and_time_stay(tmp_path: Path) -> None:
    """Another writer may add them; they ended the export in a traceback."""
    strange = pa.RecordBatch.from_pylist([{"key": b"a"}, {"key": None, "topic": "t"}], SCHEMA)
    old = write(tmp_path / "old", batch([(b"a", b"1")]), strange)
    new = write(tmp_path / "new", batch([(b"a", b"2")], 9))
    target = str(tmp_path / "target")
    assert merge_files(MergePlan((old,), (new,), target, is_new=False)) == MergeResult((), (("target", 2),))
    assert rows_of(target) == [(None, b"a", None), (None, None, None)]


def test_a_file_that_keeps_its_rows_is_not_written_again(tmp_path: Path) -> None:
    old = write(tmp_path / "old", batch([(b"a", b"1")]))
    new = write(tmp_path / "new", batch([(b"b", b"2")], 9))
    target = tmp_path / "target"
    assert merge_files(MergePlan((old,), (new,), str(target), is_new=False)) == MergeResult(((old, 1),), ())
    assert merge_files(MergePlan((old,), (old,), str(target), is_new=False)) == MergeResult((), ())
    assert not target.exists()
    merged = MergeResult((), (("target", 2),))
    assert merge_files(MergePlan((old, new), (), str(target), is_new=False)) == merged
    assert rows_of(str(target)) == [(0, b"a", b"1"), (0, b"b", b"2")]


def test_files_of_other_columns_stay_files_of_their_own(tmp_path: Path) -> None:
    plain = [write(tmp_path / f"plain {n}", batch([(b"%d" % n, b"v")], n)) for n in range(2)]
    wide = batch([(b"2", b"v"), (b"3", b"v")], 2).append_column("note", pa.array(["2", "3"]))
    other, later = write(tmp_path / "wide", wide), write(tmp_path / "later", batch([(b"2", b"w")], 9))
    target = str(tmp_path / "target.parquet")
    paths = (plain[0], other, plain[1])
    merged = MergeResult(((other, 2),), (("target.parquet", 2),))
    assert merge_files(MergePlan(paths, (), target, is_new=False)) == merged
    merged = MergeResult((), (("target.parquet", 2), ("target-1.parquet", 1)))
    assert merge_files(MergePlan(paths, (later,), target, is_new=False)) == merged
    assert pq.read_table(tmp_path / "target-1.parquet").column("note").to_pylist() == ["3"]
