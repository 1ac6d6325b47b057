"""Changes while ``export --follow`` runs: partitions, retention, cleaning, long transactions, other clusters.

Runs follow each other as ``--follow`` makes them. After each change the table has the expected rows; where no record
was lost, an audit confirms it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from deltalake import DeltaTable

from tests.support.iceberg import NAME, closed_catalogs, table_of, target_below
from tests.support.pipelines import NOW_MS, DataDirectory, end_transaction, fill
from tidelog.pipeline.errors import DataLossError, TopicRecreatedError
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.pipeline.jobs.compact import CompactRequest, compact
from tidelog.pipeline.jobs.export import ExportRequest, ExportResult, export
from tidelog.pipeline.jobs.exporting import commits
from tidelog.pipeline.jobs.exporting.delta import export_to_delta
from tidelog.pipeline.jobs.exporting.follow import Follower
from tidelog.pipeline.jobs.iceberg import IcebergTarget, export_to_iceberg
from tidelog.pipeline.jobs.offline_logs import Configuration
from tidelog.pipeline.jobs.source import LogSource

Place = tuple[str, int, int]
OTHER_ID = bytes(range(1, 17))


@dataclass
class Followed:
    """A table, and the lines that its follower has printed."""

    kind: str
    path: Path
    target: IcebergTarget
    lines: list[str] = field(default_factory=list)

    def follow(self, source: LogSource, **fields: Any) -> None:
        """Run the export once more. Raises the errors that end a follower."""
        request = ExportRequest(source, str(self.path), **fields)
        Follower(lambda: self._run(request), self.lines.append, 1).run_once()

    def _run(self, request: ExportRequest) -> ExportResult:
        if self.kind == "iceberg":
            return export_to_iceberg(None, request, self.target)
        return export_to_delta(None, request) if self.kind == "delta" else export(None, request)

    def places(self) -> list[Place]:
        """Return topic, partition and offset of each row."""
        table = self._table()
        columns = (table.column(name).to_pylist() for name in ("topic", "partition", "offset"))
        return sorted(zip(*columns, strict=True))

    def _table(self) -> pa.Table:
        if self.kind == "iceberg":
            return table_of(self.target).scan().to_arrow()
        if self.kind == "delta":
            return DeltaTable(str(self.path)).to_pyarrow_table()
        return pyarrow.parquet.read_table(self.path / "data", partitioning=None)

    def is_right(self, data: DataDirectory) -> bool:
        """Return whether an audit finds no fault."""
        iceberg, name = (self.target, NAME) if self.kind == "iceberg" else (None, str(self.path))
        return not audit(None, AuditRequest(data.source(), name, iceberg=iceberg)).is_wrong


@pytest.fixture(params=["folder", "iceberg", "delta"])
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Followed]:
    with closed_catalogs(monkeypatch):
        yield Followed(request.param, tmp_path / "table", target_below(tmp_path))


def places(topic: str, partition: int, *offsets: range) -> list[Place]:
    return [(topic, partition, offset) for some in offsets for offset in some]


def test_partitions_and_topics_that_are_added(data: DataDirectory, table: Followed) -> None:
    fill(data.log("t"), 4)
    table.follow(data.source())
    fill(data.log("t", 1), 4)
    fill(data.log("new"), 2)
    fill(data.log("t"), 1)
    table.follow(data.source())
    assert table.places() == sorted(places("t", 0, range(25)) + places("t", 1, range(20)) + places("new", 0, range(10)))
    assert table.is_right(data)


def test_offsets_that_retention_deleted_between_runs_are_reported(data: DataDirectory, table: Followed) -> None:
    """The gap is reported with its offsets; a follower that accepts it continues after it."""
    fill(data.log("t"), 60)
    table.follow(data.source())
    fill(data.log("t"), 120)
    begin = take_segments(data, 600)
    with pytest.raises(DataLossError, match=f"t-0 begins at offset {begin}, the table ends at 300"):
        table.follow(data.source())
    table.follow(data.source(), fail_on_data_loss=False)
    assert table.lines[-1] == f"t-0 lost before export: offsets 300 to {begin - 1}"
    assert table.places() == places("t", 0, range(300), range(begin, 900))


def take_segments(data: DataDirectory, below: int) -> int:
    """Remove the segments that end below an offset, as retention does; returns where the log begins then."""
    data.close()
    segments = sorted((data.path / "t-0").glob("*.log"))
    ends = [int(segment.stem) for segment in segments[1:]]
    gone = [segment for segment, end in zip(segments, ends, strict=False) if end <= below]
    for file in (file for segment in gone for file in (data.path / "t-0").glob(f"{segment.stem}.*")):
        file.unlink()
    return int(segments[len(gone)].stem)


@pytest.mark.parametrize("moment", ["_write", "plan_files"])
@pytest.mark.parametrize("below", [450, 700], ids=["some", "all"])
def test_offsets_that_retention_deletes_during_a_run_are_reported(
    data: DataDirectory, table: Followed, monkeypatch: pytest.MonkeyPatch, below: int, moment: str
) -> None:
    """Offsets deleted between a run's plan and its reading are reported as if they had been deleted before."""
    fill(data.log("t"), 60)
    table.follow(data.source())
    fill(data.log("t"), 60)
    real, begins = getattr(commits, moment), list[int]()

    def overtaken(*asked: Any) -> Any:
        if not begins:
            fill(data.log("t"), 60)
            begins.append(take_segments(data, below))
        return real(*asked)

    monkeypatch.setattr(commits, moment, overtaken)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "lines", [])
        table.follow(data.source(), fail_on_data_loss=False)
        assert table.lines[1:] == [f"t-0 lost before export: offsets 300 to {min(begins[0], 600) - 1}"]
    table.follow(data.source(), fail_on_data_loss=False)
    assert table.places() == places("t", 0, range(300), range(begins[0], 900))


def test_a_transaction_that_is_open_for_many_runs(data: DataDirectory, table: Followed) -> None:
    """It holds up what comes after it in its partition, and nothing else."""
    fill(data.log("t"), 2)
    fill(data.log("t"), 1, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    for run in range(4):
        fill(data.log("t"), 10)
        fill(data.log("t", 1), 1)
        table.follow(data.source())
        assert table.lines[-1].endswith(f"lag {5 + 50 * (run + 1)} records")
    assert table.places() == places("t", 0, range(10)) + places("t", 1, range(20))
    end_transaction(data.log("t"), 5, commit=True)
    fill(data.log("t"), 1)
    table.follow(data.source())
    assert table.places() == places("t", 0, range(215), range(216, 221)) + places("t", 1, range(20))
    assert table.is_right(data)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_log_that_is_cleaned_between_its_runs(data: DataDirectory, table: Followed, mode: str) -> None:
    if (table.kind, mode) == ("folder", "upsert"):
        pytest.skip("a folder has no latest values")
    cleaning = Configuration(overrides={"cleanup.policy": "compact", "segment.bytes": "4096"})
    fill(data.log("t"), 60)
    table.follow(data.source(), mode=mode)
    for run in range(3):
        fill(data.log("t"), 40)
        data.close()
        (cleaned,) = compact(None, CompactRequest(data.source(), cleaning, now_ms=NOW_MS + 10**9))
        assert cleaned.records_after < cleaned.records_before
        table.follow(data.source(), mode=mode)
        assert table.lines[-1].endswith("lag 0 records"), "the run failed"  # an audit compares only what was exported
        assert table.places()[-1] == ("t", 0, 300 + 200 * (run + 1) - 1)
        assert table.is_right(data)
    if mode == "append":
        assert table.places()[:300] == places("t", 0, range(300))


def test_two_clusters_with_topics_of_their_own_and_one_of_the_same_name(tmp_path: Path, table: Followed) -> None:
    """One table may have topics of several clusters. A topic with a name that the table has and another id is refused,
    as if it had been created again."""
    one, other = DataDirectory(tmp_path / "one"), DataDirectory(tmp_path / "other")
    fill(one.log("t"), 4)
    fill(other.log("u"), 3)
    table.follow(one.source())
    table.follow(other.source())
    fill(one.log("t"), 1)
    fill(other.log("u"), 1)
    table.follow(one.source())
    table.follow(other.source())
    assert table.places() == places("t", 0, range(25)) + places("u", 0, range(20))
    fill(other.log("t", 1, OTHER_ID), 1)
    with pytest.raises(TopicRecreatedError, match="topic t was deleted and created again"):
        table.follow(other.source())
    assert table.places() == places("t", 0, range(25)) + places("u", 0, range(20))
