"""Scans and exports of unusual logs give the records that were written: `tests.support.strange_logs`."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet

import tidelog
from tests.support.strange_logs import StrangeLog, new_data
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.pipeline.jobs.export import ExportRequest, export
from tidelog.pipeline.jobs.index import IndexRequest, index
from tidelog.pipeline.jobs.source import LogSource
from tidelog.pipeline.options.columns import NAMES
from tidelog.pipeline.scan import scan as scan_module

SEEDS = int(os.environ.get("TIDELOG_SCAN_SEEDS", "6"))
FIRST_SEED = int(os.environ.get("TIDELOG_SCAN_FIRST_SEED", "0"))
Rows = list[dict[str, Any]]


@dataclass
class World:
    """Three strange logs in one data directory. A topic's name may have dots, or end as a partition does."""

    data: Path
    logs: list[StrangeLog]
    chance: random.Random

    @classmethod
    def at_random(cls, path: Path, seed: int) -> World:
        """Write one of the unusual logs."""
        chance = random.Random(seed)
        data = new_data(path)
        places = (("a.b", 0), ("a.b", 3), ("a-1", 0))
        logs = [StrangeLog(data, topic, number, chance, chance.random() < 0.5) for topic, number in places]
        for log in logs:
            log.grow(chance.randint(1, 4))
        return cls(data, logs, chance)

    def rows(self, *, committed: bool) -> Rows:
        """Return all records in the order of a scan."""
        logs = sorted(self.logs, key=lambda log: (log.topic, log.partition))
        return [row for log in logs for row in log.rows(committed=committed)]

    def maybe_index(self) -> None:
        """Build indices, by which readers find their way, or leave the files without."""
        if self.chance.random() < 0.5:
            index(None, IndexRequest(LogSource((str(self.data),)), rebuild=True))


@pytest.fixture(params=range(FIRST_SEED, FIRST_SEED + SEEDS))
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return World.at_random(tmp_path / "data", request.param)


def rows_of(table: pa.Table) -> Rows:
    at = table.column_names.index("timestamp")
    whole = pa.field("timestamp", pa.int64())
    found: Rows = table.set_column(at, whole, table.column("timestamp").cast(pa.int64())).to_pylist()
    return found


def scanned(world: World, **asked: Any) -> Rows:
    return rows_of(tidelog.scan(world.data, ["a-1", "a.b"], columns=NAMES, **asked).read_all())


def test_scans_find_the_records_of_strange_logs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole and in parts: of offsets, times and keys, in slices of any size."""
    for log in world.logs:
        if world.chance.random() < 0.5:
            log.tear()
        else:
            world.maybe_index()
        if world.chance.random() < 0.5:
            log.delete_records()
    for slice_bytes in (1 << 28, 2000, 1):
        monkeypatch.setattr(scan_module, "_SLICE_BYTES", slice_bytes)
        for isolation in ("read_uncommitted", "read_committed"):
            rows = world.rows(committed=isolation == "read_committed")
            assert scanned(world, isolation=isolation) == rows
            for log in world.logs:
                ask_for_parts(world, log, isolation)


def ask_for_parts(world: World, log: StrangeLog, isolation: str) -> None:
    rows = log.rows(committed=isolation == "read_committed")
    end = log.stable_end if isolation == "read_committed" else log.end
    asked: dict[str, Any] = {"topic": {log.topic: [log.partition]}, "isolation": isolation, "columns": NAMES}
    begin, until = sorted(world.chance.randint(log.start, end) for _ in range(2))
    found = tidelog.scan(world.data, offsets=(begin, until), **asked).read_all()
    assert rows_of(found) == [row for row in rows if begin <= row["offset"] < until]
    first, last = sorted(world.chance.choice(rows)["timestamp"] // 1000 for _ in range(2)) if rows else (0, 1)
    found = tidelog.scan(world.data, times=(max(0, first), last + 1), **asked).read_all()
    assert rows_of(found) == [row for row in rows if max(0, first) * 1000 <= row["timestamp"] < (last + 1) * 1000]
    found = tidelog.scan(world.data, keys=b"key-2", **asked).read_all()
    assert rows_of(found) == [row for row in rows if row["key"] == b"key-2"]


def test_exports_hold_the_records_of_strange_logs(world: World, tmp_path: Path) -> None:
    """Run after run, while the log grows and transactions end; the audit finds nothing wrong and compares all."""
    table = tmp_path / "table"
    source = LogSource((str(world.data),))
    for _ in range(3):
        size = world.chance.choice((1, 1000, 1 << 20))
        export(None, ExportRequest(source, str(table), file_bytes=size, commit_files=world.chance.randint(1, 9)))
        files = sorted((table / "data").glob("*.parquet"))
        found = [row for file in files for row in rows_of(pyarrow.parquet.read_table(file, partitioning=None))]
        found.sort(key=lambda row: (row["topic"], row["partition"], row["offset"]))
        assert found == world.rows(committed=True)
        result = audit(None, AuditRequest(source, str(table)))
        found_wrong = {found.kind for one in result.partitions for part in one.segments for found in part.findings}
        assert found_wrong <= {"index"}, "the files are there without indices, and nothing else is wrong"
        assert not any(one.findings for one in result.partitions)
        assert result.total("lost_offsets") == 0
        assert all(one.accepts(compared) for one in result.partitions for compared in one.comparisons)
        for log in world.logs:
            log.grow(world.chance.randint(0, 2))
