"""Spark reads the Iceberg and Delta tables of exports with the rows that their files have: ``make spark-tables``.

It takes a Spark that both have packages for, in a virtual environment of its own below ``build``.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
import pytest

pytest.importorskip("deltalake")

from deltalake import DeltaTable

from benchmarks.rivals.kafka_jars import BUILD, Artifact, resolve
from tests.support.iceberg import closed_catalogs, table_of, target_below
from tests.support.pipelines import NOW_MS, DataDirectory, end_transaction, fill, write
from tidelog.pipeline.jobs.export import ExportRequest
from tidelog.pipeline.jobs.exporting.delta import export_to_delta
from tidelog.pipeline.jobs.iceberg import export_to_iceberg
from tidelog.protocol.record.record_batch import Record

if TYPE_CHECKING:
    from pyiceberg.table import Table

pytestmark = pytest.mark.skipif(not os.environ.get("TIDELOG_SPARK_TABLES"), reason="make spark-tables")
PYTHON = BUILD / "spark-4.1.0" / "bin" / "python"
RUNTIMES = (
    Artifact("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.11.0", bare=True),
    Artifact("io.delta", "delta-spark_4.1_2.13", "4.2.0", bare=True),
    Artifact("io.delta", "delta-storage", "4.2.0", bare=True),
)
SCRIPT = Path(__file__).parents[1] / "support" / "scripts" / "spark_tables.py"
Rows = list[dict[str, Any]]


class OtherSpark:
    """A Spark in a process of its own."""

    def __init__(self, work: Path) -> None:
        jars = resolve("tables", RUNTIMES, BUILD / "spark-jars")
        names = ",".join(str(jars / f"{runtime.name}-{runtime.version}.jar") for runtime in RUNTIMES)
        environment = {**os.environ, "PYSPARK_PYTHON": str(PYTHON)}
        self.process = subprocess.Popen(
            [PYTHON, "-W", "ignore", SCRIPT, names, str(work)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def read(self, kind: str, address: str) -> Rows:
        """Read the rows of a table, in order."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"format": kind, "address": address}) + "\n")
        self.process.stdin.flush()
        rows: Rows = json.loads(self.process.stdout.readline())
        return in_order(rows)


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def plain(rows: Rows) -> Rows:
    """Return Arrow's rows as the other Spark tells them."""
    return in_order([
        {
            **{name: row[name] for name in ("topic", "partition", "offset", "timestampType")},
            **{name: None if row[name] is None else row[name].hex().upper() for name in ("key", "value")},
            "timestamp": int(row["timestamp"].timestamp() * 1000) * 1000,
            "headers": None
            if row["headers"] is None
            else [
                {"key": header["key"], "value": None if header["value"] is None else header["value"].hex().upper()}
                for header in row["headers"]
            ],
        }
        for row in rows
    ])  # fmt: skip


def rows_in_files(table: Table) -> Rows:
    """Read the rows of a snapshot's files: pyiceberg reads headers that are null as empty ones."""
    paths = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    return [row for path in paths for row in pyarrow.parquet.read_table(path, partitioning=None).to_pylist()]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherSpark]:
    other = OtherSpark(tmp_path_factory.mktemp("other-spark"))
    try:
        yield other
    finally:
        other.process.communicate()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataDirectory]:
    """Records with headers, without keys, without values, aborted and of two hours."""
    found = DataDirectory(tmp_path / "data")
    log = found.log("orders")
    fill(log, 70)
    header = ("kind", b"\x00\xff")
    write(log, [Record(0, NOW_MS, None, b"no key", (header,)), Record(1, NOW_MS, b"key-1", None)])
    fill(log, 1, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    end_transaction(log, 5, commit=False)
    fill(found.log("orders", 1), 3)
    with closed_catalogs(monkeypatch):
        yield found


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("partition_by", [(), ("topic", "hour(timestamp)")])
def test_spark_reads_an_iceberg_table_as_its_files_have_it(
    data: DataDirectory, tmp_path: Path, spark: OtherSpark, mode: str, partition_by: tuple[str, ...]
) -> None:
    target = target_below(tmp_path, partition_by)
    for _ in range(2):
        export_to_iceberg(None, ExportRequest(data.source(), "", file_bytes=4000, commit_files=4, mode=mode), target)
        fill(data.log("orders"), 2)
    expected = plain(rows_in_files(table_of(target)))
    assert len(expected) > (370 if mode == "append" else 10)
    assert spark.read("iceberg", table_of(target).metadata_location) == expected


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_spark_reads_a_delta_table(
    data: DataDirectory, tmp_path: Path, spark: OtherSpark, mode: str, has_checkpoint: bool
) -> None:
    """Versions of exports, of a deletion between two of them, and before and after a checkpoint."""
    path = str(tmp_path / "table")
    for turn in range(3):
        export_to_delta(None, ExportRequest(data.source(), path, file_bytes=4000, commit_files=4, mode=mode))
        fill(data.log("orders"), 2)
        if turn == 0:
            DeltaTable(path).delete("offset = 360")
        if turn == 1 and has_checkpoint:
            DeltaTable(path).create_checkpoint()
    expected = plain(DeltaTable(path).to_pyarrow_table().to_pylist())
    assert len(expected) > (370 if mode == "append" else 10)
    assert spark.read("delta", path) == expected
