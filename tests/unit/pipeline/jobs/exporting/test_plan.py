"""Sizes of an export's files: if there are fewer files than workers, each worker gets an equal part of the log."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.pipelines import DataDirectory, fill
from tidelog.pipeline.export.file import FilePlan
from tidelog.pipeline.export.manifest import UPSERT
from tidelog.pipeline.jobs.export import ExportRequest, ExportResult, export
from tidelog.pipeline.jobs.exporting import commits
from tidelog.pipeline.jobs.exporting.plan import PartitionPlan, plan_files, share_out
from tidelog.pipeline.jobs.source import LogSource

MB = 1024 * 1024
SOURCE = LogSource(("data",))


def shared_size(log_mb: int, workers: int, **fields: Any) -> int:
    """Return the size of files, in MB of the log."""
    request = ExportRequest(SOURCE, "table", file_bytes=256 * MB, **fields)
    return round(share_out(request, log_mb * MB, workers).file_bytes / MB)


@pytest.mark.parametrize(
    ("log_mb", "workers", "file_mb"),
    [
        (330, 2, 165),
        (330, 8, 165),  # three files would have less than half of the size each
        (1000, 8, 143),
        (600, 2, 300),  # in place of 256, 256 and a rest
        (700, 2, 256),
        (100, 8, 256),
        (255, 2, 256),
        (10_000, 8, 256),
        (330, 1, 256),
    ],
)
def test_workers_share_the_log_while_files_stay_about_as_large_as_asked_for(
    log_mb: int, workers: int, file_mb: int
) -> None:
    assert shared_size(log_mb, workers) == file_mb


def test_files_of_latest_values_and_those_for_hours_keep_their_size() -> None:
    assert shared_size(330, 2, mode=UPSERT) == 256
    assert shared_size(330, 2, split_by="hour") == 256


def test_a_request_for_the_smallest_files_is_no_error() -> None:
    request = ExportRequest(SOURCE, "table", file_bytes=1)
    assert share_out(request, 100, 4) is request


@pytest.mark.parametrize("seed", range(5))
def test_a_log_divided_differently_by_each_run_is_in_the_table_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Runs one after the other, each with another number of workers."""
    chance = random.Random(seed)
    data, written = DataDirectory(tmp_path / "data"), 0
    log = data.log("orders")
    request = ExportRequest(data.source(), str(tmp_path / "table"), file_bytes=20_000)
    for _ in range(3):
        written += len(fill(log, chance.randrange(50, 400)))
        workers = chance.choice((1, 2, 3, 8))
        monkeypatch.setattr(commits, "_workers", lambda _, workers=workers: workers)
        result = export(None, request)
        assert result.manifest.offsets() == {"orders": {0: written}}
    assert offsets_in(request) == list(range(written))


def test_as_many_files_as_workers_come_of_one_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataDirectory(tmp_path / "data", segment_bytes=1 << 20)
    fill(data.log("orders"), 300)
    size = sum(path.stat().st_size for path in data.path.glob("orders-0/*.log"))
    monkeypatch.setattr(commits, "_workers", lambda _: 4)
    files = sorted_files(export(None, ExportRequest(data.source(), str(tmp_path / "table"), file_bytes=size // 3)))
    assert len(files) == 4
    assert max(files) < 1.25 * min(files)


def sorted_files(result: ExportResult) -> list[int]:
    return sorted(file.log_bytes for file in result.manifest.files)


def offsets_in(request: ExportRequest) -> list[int]:
    found: list[int] = []
    for path in sorted(Path(request.table, "data").glob("*.parquet")):
        found += pq.read_table(path, columns=["offset"]).column("offset").to_pylist()
    return found


def test_partitions_that_another_size_does_not_change_are_planned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataDirectory(tmp_path / "data", segment_bytes=1 << 20)
    for number in range(5):
        fill(data.log("orders", number), 300 if number == 3 else 20)
    planned: list[int] = []

    def counted(plan: PartitionPlan, *arguments: Any) -> list[FilePlan]:
        planned.append(plan.partition.directory.partition)
        return plan_files(plan, *arguments)

    monkeypatch.setattr(commits, "plan_files", counted)
    monkeypatch.setattr(commits, "_workers", lambda _: 2)
    size = sum(path.stat().st_size for path in data.path.glob("orders-*/*.log"))
    result = export(None, ExportRequest(data.source(), str(tmp_path / "table"), file_bytes=size))
    assert (sorted(planned), result.files, result.rows) == ([0, 1, 2, 3, 3, 4], 6, 5 * (300 + 4 * 20))
