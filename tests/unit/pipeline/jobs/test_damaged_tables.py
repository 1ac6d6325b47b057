"""Exports and audits of tables whose files are damaged or missing, or that another program has changed: one clear line,
no traceback, and no row that a reader of the table would not see.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from tests.support import iceberg
from tests.support.pipelines import DataDirectory, fill
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.export.manifest import Manifest
from tidelog.pipeline.job_errors import JobError
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.pipeline.jobs.export import ExportRequest, export
from tidelog.pipeline.jobs.exporting.delta import export_to_delta
from tidelog.pipeline.jobs.iceberg import IcebergTarget, export_to_iceberg
from tidelog.pipeline.jobs.reports.audit_report import summary
from tidelog.protocol.errors import KafkaError

pytestmark = pytest.mark.usefixtures("catalogs")

KINDS = ("parquet", "iceberg", "delta")


class Table:
    """A table of one kind, exports into it, and audits of it."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.data = DataDirectory(directory / "data")
        self.path = directory / "table"
        if kind == "iceberg":
            self.target = iceberg.target_below(directory)

    @property
    def place(self) -> Path:
        """The table's own directory."""
        return self.target_location if self.kind == "iceberg" else self.path

    @property
    def target_location(self) -> Path:
        return Path(str(self.target.warehouse), "lake", "events")

    def export(self, **fields: Any) -> Any:
        request = ExportRequest(self.data.source(), str(self.path), **fields)
        if self.kind == "iceberg":
            return export_to_iceberg(None, request, self.target)
        return export_to_delta(None, request) if self.kind == "delta" else export(None, request)

    def audit(self) -> str:
        """Audit the table; return what is printed."""
        target: IcebergTarget | None = self.target if self.kind == "iceberg" else None
        name = iceberg.NAME if self.kind == "iceberg" else str(self.path)
        return "\n".join(summary(audit(None, AuditRequest(self.data.source(), name, iceberg=target))))

    def file(self, pattern: str) -> Path:
        """Return the first file below the table that matches."""
        return min(self.place.rglob(pattern))


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table(request.param, tmp_path)


def error_of(work: Callable[[], Any]) -> str:
    """Return the message of the error that ``work`` raises: one line for users. Of the errors of the system only those
    that name a path are expected."""
    with pytest.raises((PipelineError, KafkaError, FileNotFoundError, NotADirectoryError)) as found:
        work()
    message = str(found.value)
    assert "\n" not in message
    return message


CONTENTS = (None, b"", b"junk" * 10, b"\xff\xfe\x00\x00", b"{}", b"[]", b'{"format":')


def spoil(path: Path, content: bytes | None) -> None:
    """Write ``content`` into a file; None removes the file."""
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


def cause_of(table: Table, path: Path, content: bytes | None) -> str:
    """Return what the error of a table says whose file of metadata at ``path`` has ``content``; None: it is missing."""
    is_manifest = path.name.startswith(("manifest", "delta"))
    if content is None:
        offsets = f"{table.path}/_tidelog/delta-00000001.json is missing, which has the table's offsets"
        return {
            "parquet": f"{table.path} has no version yet",
            "delta": offsets if is_manifest else "No files in log segment",
            "iceberg": f"Failed to open local file '{path}'",
        }[table.kind]
    if is_manifest:
        reason = {b"{}": "'format' is missing", b"[]": "the file is []"}.get(content, "Expecting value: ")
        return f"{path} is not a manifest of a Tidelog export: {reason}"
    if table.kind == "delta":
        return f"Delta table {table.path}: Kernel error: "
    return f"Iceberg table {iceberg.NAME}: its metadata cannot be read: "


STATES = {
    "parquet": ("manifest-00000001.json",),
    "delta": ("delta-00000001-*.json", "00000000000000000000.json"),
    "iceberg": ("00001-*.metadata.json", "snap-*.avro", "*-m0.avro"),
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in STATES.items() for name in names])
def test_damaged_metadata_is_reported_in_one_line(tmp_path: Path, kind: str, name: str, content: bytes | None) -> None:
    table = Table(kind, tmp_path)
    fill(table.data.log("orders"), 4)
    table.export()
    path = table.file(name)
    spoil(path, content)
    cause = cause_of(table, path, content)
    assert cause in error_of(table.audit)
    fill(table.data.log("orders"), 1)
    is_read = name != "*-m0.avro"  # an export that only adds files reads no manifest
    # without its first manifest or commit a place has no table: the export begins a new one
    if (content is None and name.startswith(("manifest", "0000000"))) or not is_read:
        table.export()
    else:
        assert cause in error_of(table.export)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": 7}, "files"),
        ({"topics": {"orders": 5}}, "orders"),
        (
            {"topics": {"t": {"topic_id": "-", "partitions": {"0": {"start": "a", "end": 1, "lost": []}}}}},
            "start is 'a'",
        ),
        ({"version": "x"}, "version is 'x'"),
        ({"mode": 1}, "mode is 1"),
        ({"earlier": [["t", "-", 0, 1, None]]}, "end is None"),
        ({"dead_letters": [{"name": "x"}]}, "topic"),
    ],
)
def test_a_value_of_another_type_is_named(change: dict[str, Any], message: str) -> None:
    """Before this was checked, such a value ended a later step in a traceback, or went into the next version."""
    raw = json.loads(Manifest().to_json()) | change
    with pytest.raises(JobError, match=f"PATH is not a manifest of a Tidelog export: .*{message}"):
        Manifest.from_json(json.dumps(raw), "PATH")


@pytest.mark.parametrize("content", ["[" * 60_000, '{"format":' * 10_000], ids=["lists", "objects"])
def test_a_manifest_that_is_nested_too_deeply_is_reported(content: str) -> None:
    with pytest.raises(JobError, match="PATH is not a manifest of a Tidelog export: it is nested too deeply"):
        Manifest.from_json(content, "PATH")


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_damaged_data_file_is_reported_by_the_audit(table: Table, mode: str, content: bytes | None) -> None:
    if (table.kind, mode) == ("parquet", "upsert"):
        pytest.skip("a folder of Parquet files has no latest values")
    fill(table.data.log("orders"), 4)
    table.export(mode=mode)
    path = table.file("data/*.parquet")
    spoil(path, content)
    found = table.audit()
    assert "something is wrong" in found
    assert "rows cannot be read" in found
    # pyiceberg's error of damaged bytes names no file, nor does deltalake's of an empty one
    is_named = content is None or table.kind == "parquet" or (table.kind == "delta" and content != b"")
    assert path.name in found or not is_named


def test_other_ranges_are_compared_beside_a_file_that_is_missing(table: Table) -> None:
    """Before this was checked, no range of a Delta table was compared: each one opened all files."""
    fill(table.data.log("orders"), 20)
    fill(table.data.log("orders", 1), 20)
    table.export(file_bytes=1000)
    table.file("data/orders-*-0-*.parquet").unlink()
    assert "13 of 14 ranges of offsets are equal to the log, 185 rows" in table.audit()


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_an_upsert_names_the_file_that_it_cannot_read(tmp_path: Path, kind: str, content: bytes | None) -> None:
    table = Table(kind, tmp_path)
    fill(table.data.log("orders"), 4)
    table.export(mode="upsert")
    path = table.file("data/*.parquet")
    spoil(path, content)
    fill(table.data.log("orders"), 1)
    assert f"{path} cannot be read: " in error_of(lambda: table.export(mode="upsert"))


@pytest.mark.parametrize("content", CONTENTS)
def test_a_small_last_file_that_cannot_grow_because_it_is_damaged_is_named(
    tmp_path: Path, content: bytes | None
) -> None:
    table = Table("parquet", tmp_path)
    fill(table.data.log("orders"), 4)
    table.export()
    path = table.file("data/*.parquet")
    spoil(path, content)
    fill(table.data.log("orders"), 1)
    assert f"{path} cannot be read: " in error_of(table.export)


def test_a_file_of_other_columns_is_reported(tmp_path: Path) -> None:
    table = Table("parquet", tmp_path)
    fill(table.data.log("orders"), 4)
    table.export()
    path = table.file("data/*.parquet")
    rows = pq.read_table(path, partitioning=None)
    pq.write_table(rows.drop_columns(["value"]), path)
    assert f"cannot be read from {path}: it has no column value" in table.audit()
    pq.write_table(rows.drop_columns(["topic"]), path)
    assert f"not searched for foreign rows: {path} cannot be read: it has no column topic" in table.audit()


# ---- columns that another program has changed


def drop(table: Table, column: str) -> None:
    if table.kind == "iceberg":
        with iceberg.table_of(table.target).update_schema(allow_incompatible_changes=True) as update:
            update.delete_column(column)
    else:
        rows = DeltaTable(str(table.path)).to_pyarrow_table().drop_columns([column])
        write_deltalake(str(table.path), rows, mode="overwrite", schema_mode="overwrite")


def rename(table: Table, column: str) -> None:
    if table.kind == "iceberg":
        with iceberg.table_of(table.target).update_schema(allow_incompatible_changes=True) as update:
            update.rename_column(column, "other")
    else:
        rows = DeltaTable(str(table.path)).to_pyarrow_table()
        names = ["other" if name == column else name for name in rows.column_names]
        write_deltalake(str(table.path), rows.rename_columns(names), mode="overwrite", schema_mode="overwrite")


@pytest.mark.parametrize("change", [drop, rename])
@pytest.mark.parametrize("column", ["key", "value", "topic", "partition", "offset", "timestamp"])
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_column_that_readers_do_not_see_any_more_is_reported(
    tmp_path: Path, kind: str, column: str, change: Callable[[Table, str], None]
) -> None:
    """Before this was checked, an audit of Iceberg read by the schema of the last commit of rows, and was in order. An
    export into Delta went on, and no reader saw the column of its rows."""
    table = Table(kind, tmp_path)
    fill(table.data.log("orders"), 4)
    table.export()
    change(table, column)
    assert f"has no column {column}: expected the columns of an export" in error_of(table.audit)
    fill(table.data.log("orders"), 1)
    assert column in error_of(table.export)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_delta_table_with_a_column_of_another_type_is_refused(tmp_path: Path, mode: str) -> None:
    table = Table("delta", tmp_path)
    fill(table.data.log("orders"), 4)
    table.export(mode=mode)
    rows = DeltaTable(str(table.path)).to_pyarrow_table()
    texts = rows.set_column(rows.column_names.index("offset"), "offset", rows.column("offset").cast(pa.string()))
    write_deltalake(str(table.path), texts, mode="overwrite", schema_mode="overwrite")
    fill(table.data.log("orders"), 1)
    before = DeltaTable(str(table.path)).version()
    message = error_of(lambda: table.export(mode=mode))
    assert "column offset is string: expected long" in message
    assert DeltaTable(str(table.path)).version() == before


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_delta_table_that_another_program_has_partitioned_is_refused(tmp_path: Path, mode: str) -> None:
    table = Table("delta", tmp_path)
    fill(table.data.log("orders"), 4)
    table.export(mode=mode)
    rows = DeltaTable(str(table.path)).to_pyarrow_table()
    write_deltalake(str(table.path), rows, mode="overwrite", schema_mode="overwrite", partition_by=["topic"])
    fill(table.data.log("orders"), 1)
    assert "is partitioned by topic: expected no partitions" in error_of(lambda: table.export(mode=mode))
    assert "everything is in order" in table.audit()


def test_a_delta_table_that_deltalake_cannot_read_is_reported(tmp_path: Path) -> None:
    table = Table("delta", tmp_path)
    fill(table.data.log("orders"), 4)
    table.export()
    DeltaTable(str(table.path)).alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    assert "{'deletionVectors'} but these are not yet supported" in error_of(table.audit)


def test_headers_are_not_written_where_no_reader_sees_them(tmp_path: Path) -> None:
    table = Table("delta", tmp_path)
    fill(table.data.log("orders"), 4)
    table.export(headers=False)
    fill(table.data.log("orders"), 1)
    assert "has no column headers" in error_of(table.export)
    assert table.export(headers=False).rows == 5


def test_a_table_with_columns_of_others_continues(tmp_path: Path) -> None:
    table = Table("delta", tmp_path)
    fill(table.data.log("orders"), 4)
    table.export()
    rows = DeltaTable(str(table.path)).to_pyarrow_table()
    more = rows.append_column("own", pa.array(range(rows.num_rows), pa.int64()))
    write_deltalake(str(table.path), more, mode="overwrite", schema_mode="overwrite")
    fill(table.data.log("orders"), 1)
    assert table.export().rows == 5
    assert "everything is in order" in table.audit()


def test_a_path_that_is_no_table_is_reported(table: Table) -> None:
    fill(table.data.log("orders"), 4)
    missing = f"{table.path} is not an exported table: _tidelog is missing"
    assert (missing if table.kind != "iceberg" else f"{iceberg.NAME} is not in the catalog") in error_of(table.audit)
    if table.kind != "iceberg":
        table.path.write_text("a file")
        assert f"Not a directory: '{table.path}/data'" in error_of(table.audit)
        table.path.unlink()
    table.export()
    shutil.rmtree(table.place)
    gone = f"Failed to open local file '{table.place}/metadata/"
    assert (missing if table.kind != "iceberg" else gone) in error_of(table.audit)
