"""Rows of a table that no export wrote: after the offsets of the table's state, or of other partitions."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from tests.support.iceberg import NAME, table_of, target_below
from tests.support.pipelines import DataDirectory, fill, say_cleaned
from tidelog.log.files.checkpoints import LOG_START_OFFSET_FILE, write_offset_checkpoint
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import OsFileSystem
from tidelog.pipeline.audit.unrecorded import UnrecordedRows
from tidelog.pipeline.jobs.audit import AuditRequest, AuditResult, audit
from tidelog.pipeline.jobs.export import ExportRequest, export
from tidelog.pipeline.jobs.exporting.delta import export_to_delta
from tidelog.pipeline.jobs.iceberg import IcebergTarget, export_to_iceberg
from tidelog.pipeline.jobs.reports import audit_compare
from tidelog.pipeline.jobs.reports.audit_report import as_html, as_json, as_markdown, summary
from tidelog.pipeline.jobs.source import choose

pytestmark = pytest.mark.usefixtures("catalogs")

OTHER_ID = bytes(range(1, 17))


class Table:
    """A table of one kind, to export into, to change and to audit."""

    def __init__(self, data: DataDirectory, kind: str) -> None:
        self.data, self.kind = data, kind
        self.path = str(data.path.parent / "table")
        self.target: IcebergTarget | None = target_below(data.path.parent) if kind == "iceberg" else None

    def export(self, **fields: Any) -> None:
        """Export what is new."""
        request = ExportRequest(self.data.source(), self.path, **fields)
        if self.target is not None:
            export_to_iceberg(None, request, self.target)
        elif self.kind == "delta":
            export_to_delta(None, request)
        else:
            export(None, request)

    def append(self, offsets: list[int | None], topic: str | None = "orders", partition: int | None = 0) -> None:
        """Add rows as another writer would: as a commit, or to the last file of a folder."""
        rows = self.rows().slice(0, 1).take(pa.array([0] * len(offsets)))
        for name, values in {
            "offset": offsets, "topic": [topic] * len(offsets), "partition": [partition] * len(offsets)
        }.items():  # fmt: skip
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, rows.schema.field(place), pa.array(values, rows.schema.field(place).type))
        if self.target is not None:
            table_of(self.target).append(rows)
        elif self.kind == "delta":
            write_deltalake(self.path, rows, mode="append")
        else:
            path = sorted(Path(self.path, "data").iterdir())[-1]
            pq.write_table(pa.concat_tables([pq.ParquetFile(path).read(), rows]), path)

    def rows(self) -> pa.Table:
        """Read all rows."""
        if self.target is not None:
            return table_of(self.target).scan().to_arrow()
        if self.kind == "delta":
            return DeltaTable(self.path).to_pyarrow_table()
        return pa.concat_tables([pq.ParquetFile(path).read() for path in sorted(Path(self.path, "data").iterdir())])

    def audit(self, topic: str | None = None) -> AuditResult:
        """Compare with the log."""
        name = NAME if self.target is not None else self.path
        chosen = {} if topic is None else {"choice": choose(topic, None, None)}
        return audit(None, AuditRequest(self.data.source(**chosen), name, iceberg=self.target))


def start_at(data: DataDirectory, offset: int) -> None:
    """Make ``offset`` the first one of the topic's log."""
    path = str(data.path / LOG_START_OFFSET_FILE)
    write_offset_checkpoint(OsFileSystem(), path, {TopicPartition("orders", 0): offset})


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def table(data: DataDirectory, request: pytest.FixtureRequest) -> Table:
    return Table(data, request.param)


def test_rows_beyond_the_recorded_end_are_reported(data: DataDirectory, table: Table, tmp_path: Path) -> None:
    fill(data.log("orders"), 4)
    table.export()
    assert table.audit().unrecorded == ()
    table.append([20, 21, 1 << 40])
    result = table.audit()
    assert result.is_wrong
    assert result.unrecorded == (UnrecordedRows("orders", 0, 3, (20, 21, 1 << 40)),)
    expected = "rows of orders-0 that no export recorded: 3 (offsets 20, 21, 1099511627776)"
    assert any(expected in line for line in summary(result))
    assert as_json(result)["unrecorded_rows"] == [
        {"topic": "orders", "partition": 0, "rows": 3, "offsets": [20, 21, 1 << 40]}
    ]
    assert expected in as_markdown(result, [])
    assert expected in as_html(result, str(tmp_path), [])


def test_compaction_excuses_no_row_beyond_the_end(data: DataDirectory) -> None:
    table = Table(data, "delta")
    fill(data.log("orders"), 4)
    table.export()
    say_cleaned(data.path, 20, "orders")
    table.append([20])
    assert table.audit().is_wrong


def test_rows_of_other_partitions_and_topics_are_reported(data: DataDirectory, table: Table) -> None:
    fill(data.log("orders"), 4)
    table.export()
    table.append([3], partition=7)
    table.append([4, 5], topic="payments")
    assert table.audit().unrecorded == (UnrecordedRows("orders", 7, 1, (3,)), UnrecordedRows("payments", 0, 2, (4, 5)))


def test_the_first_ten_offsets_are_shown(data: DataDirectory) -> None:
    table = Table(data, "delta")
    fill(data.log("orders"), 4)
    table.export()
    table.append([*range(40, 20, -1)])
    (found,) = table.audit().unrecorded
    assert (found.rows, found.offsets) == (20, tuple(range(21, 31)))


def test_partitions_that_are_not_audited_are_no_others(data: DataDirectory, table: Table) -> None:
    fill(data.log("orders"), 4)
    fill(data.log("payments"), 2)
    table.export()
    assert not table.audit("orders").is_wrong
    table.append([10], topic="payments")
    assert table.audit("orders").unrecorded == (UnrecordedRows("payments", 0, 1, (10,)),)


def test_rows_below_the_log_start_were_recorded(data: DataDirectory, table: Table) -> None:
    log = data.log("orders", topic_id=OTHER_ID)
    fill(log, 40)
    start_at(data, 50)
    table.export()
    fill(log, 2)
    start_at(data, 150)
    table.export()
    assert not table.audit().is_wrong
    table.append([49])
    assert table.audit().unrecorded == (UnrecordedRows("orders", 0, 1, (49,)),)


def test_a_commit_during_the_audit_is_recorded(
    data: DataDirectory, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data.log("orders"), 4)
    table.export()
    real = audit_compare.open_table

    def opened(*arguments: Any) -> Any:
        found = real(*arguments)
        fill(data.log("orders"), 2)
        fill(data.log("later"), 2)
        table.export()
        return found

    monkeypatch.setattr("tidelog.pipeline.jobs.audit.open_table", opened)
    result = table.audit("orders")
    assert not result.is_wrong, summary(result)
    assert table.rows().num_rows == 40


def test_rows_of_an_earlier_topic_of_that_name_were_recorded(data: DataDirectory, table: Table) -> None:
    fill(data.log("orders"), 4)
    fill(data.log("payments"), 1)
    table.export()
    data.close()
    shutil.rmtree(data.path / "orders-0")
    fill(data.log("orders", topic_id=OTHER_ID), 1)
    table.export(restart_recreated=True)
    assert not table.audit("payments").is_wrong
    if table.kind == "delta":  # compaction takes the files' names away
        DeltaTable(table.path).optimize.compact()
    elif table.target is not None:
        table_of(table.target).overwrite(table.rows())
    assert not table.audit("payments").is_wrong


def test_rows_of_an_earlier_topic_that_the_state_does_not_name_are_known_by_their_files(
    data: DataDirectory,
) -> None:
    """States of older versions say nothing of topics that were created again."""
    table = Table(data, "delta")
    fill(data.log("orders"), 4)
    fill(data.log("payments"), 1)
    table.export()
    data.close()
    shutil.rmtree(data.path / "orders-0")
    fill(data.log("orders", topic_id=OTHER_ID), 1)
    table.export(restart_recreated=True)
    (newest,) = Path(table.path, "_tidelog").glob("delta-*2-*.json")
    state = json.loads(newest.read_text())
    del state["earlier"]
    newest.write_text(json.dumps(state))
    assert table.audit("payments").unrecorded == ()
    table.append([20])
    assert table.audit("payments").unrecorded == (UnrecordedRows("orders", 0, 1, (20,)),)


def test_an_unreadable_file_of_a_partition_that_is_not_audited_is_reported(data: DataDirectory) -> None:
    table = Table(data, "parquet")
    fill(data.log("orders"), 1)
    fill(data.log("payments"), 1)
    table.export()
    (path,) = Path(table.path, "data").glob("payments*")
    os.truncate(path, 10)
    result = table.audit("orders")
    assert result.is_wrong
    assert any(f"{path} cannot be read: " in line for line in summary(result))
