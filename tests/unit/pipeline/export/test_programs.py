"""Exported tables read by other programs: pyiceberg, deltalake, DuckDB, pandas and polars. Spark: tests/spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("polars")
pytest.importorskip("duckdb")

import duckdb
import polars
from deltalake import DeltaTable

from tests.support.iceberg import table_of, target_below
from tests.support.pipelines import DataDirectory, fill
from tidelog.pipeline.jobs.export import ExportRequest, export
from tidelog.pipeline.jobs.exporting.delta import export_to_delta
from tidelog.pipeline.jobs.iceberg import export_to_iceberg

if TYPE_CHECKING:
    import pandas

pytestmark = pytest.mark.usefixtures("catalogs")

MODES = ("append", "upsert")
COUNTED = 'select count(*), sum("offset"), min(decode(key)) from log'


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    directory = DataDirectory(tmp_path / "data")
    fill(directory.log("orders"), 6)
    return directory


def expected(data: DataDirectory, mode: str) -> tuple[int, int, str]:
    """Return rows, sum of offsets and first key that plain Python finds."""
    written = {n * 5 + i: b"key-%d" % ((n + i) % 7) for n in range(6) for i in range(5)}
    if mode == "upsert":
        latest = {key: offset for offset, key in written.items()}
        written = {offset: key for key, offset in latest.items()}
    return len(written), sum(written), min(written.values()).decode()


def of_pandas(frame: pandas.DataFrame) -> tuple[int, int, str]:
    return len(frame), int(frame["offset"].sum()), min(frame["key"]).decode()


def of_polars(frame: polars.DataFrame) -> tuple[int, int, str]:
    return len(frame), int(frame.get_column("offset").sum()), min(frame.get_column("key").to_list()).decode()


def of_duckdb(connection: duckdb.DuckDBPyConnection) -> tuple[int, int, str]:
    found = connection.execute(COUNTED).fetchone()
    assert found is not None
    return found[0], int(found[1]), found[2]


def test_other_programs_read_a_folder_of_parquet(data: DataDirectory, tmp_path: Path) -> None:
    import pandas  # only in the worker that runs this test, not in all that collect it

    export(None, ExportRequest(data.source(), str(tmp_path / "table"), file_bytes=1000))
    files = str(tmp_path / "table" / "data" / "*.parquet")
    connection = duckdb.connect()
    connection.execute(f"create view log as select * from read_parquet('{files}')")
    found = [of_duckdb(connection), of_polars(polars.read_parquet(files))]
    assert [*found, of_pandas(pandas.read_parquet(tmp_path / "table" / "data"))] == [expected(data, "append")] * 3


@pytest.mark.parametrize("mode", MODES)
def test_other_programs_read_a_delta_table(data: DataDirectory, tmp_path: Path, mode: str) -> None:
    path = str(tmp_path / "table")
    export_to_delta(None, ExportRequest(data.source(), path, file_bytes=1000, mode=mode))
    connection = duckdb.connect()
    connection.register("log", DeltaTable(path).to_pyarrow_dataset())
    found = [of_duckdb(connection), of_polars(polars.read_delta(path)), of_pandas(DeltaTable(path).to_pandas())]
    assert found == [expected(data, mode)] * 3


@pytest.mark.parametrize("mode", MODES)
def test_other_programs_read_an_iceberg_table(
    data: DataDirectory, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # a warning asks for another package without
    target = target_below(tmp_path)
    export_to_iceberg(None, ExportRequest(data.source(), "", file_bytes=1000, mode=mode), target)
    scan = table_of(target).scan()
    frame = polars.scan_iceberg(table_of(target)).collect()
    found = [of_duckdb(scan.to_duckdb("log")), of_polars(frame), of_pandas(scan.to_pandas())]
    assert found == [expected(data, mode)] * 3
