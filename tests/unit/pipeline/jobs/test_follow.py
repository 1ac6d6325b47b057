"""``export --follow``: its runs, its messages, and its end."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines import DataDirectory, damage_first_batch, end_transaction, fill
from tidelog.pipeline.errors import LogRewrittenError, OptionError, TopicRecreatedError
from tidelog.pipeline.job_errors import BadRequestError, ConflictError, JobError, SparkEndedError
from tidelog.pipeline.jobs.export import ExportRequest, ExportResult, export
from tidelog.pipeline.jobs.exporting.follow import Follower
from tidelog.protocol.errors import KafkaStorageError

LIMIT_S = 120


def exporter_of(data: DataDirectory) -> Callable[[], ExportResult]:
    return lambda: export(None, ExportRequest(data.source(), str(data.path.parent / "table")))


def test_each_run_reports_its_commit_and_writes_the_metrics(data: DataDirectory, tmp_path: Path) -> None:
    printed: list[str] = []
    follower = Follower(exporter_of(data), printed.append, 1, str(tmp_path / "metrics"))
    fill(data.log("orders"), 2)
    follower.run_once()
    follower.run_once()
    fill(data.log("orders"), 1, producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    follower.run_once()
    assert len(printed) == 1
    assert printed[0].startswith("version 1: 10 rows in 1 files, ")
    lines = (tmp_path / "metrics").read_text().splitlines()
    assert "tidelog_export_commits_total 1" in lines
    assert "tidelog_export_rows_total 10" in lines
    assert 'tidelog_export_lag_records{topic="orders",partition="0"} 5' in lines
    end_transaction(data.log("orders"), 5, commit=True)
    follower.run_once()
    assert follower.metrics.lag_records == {("orders", 0): 0}
    assert printed[-1].endswith("lag 0 records")


def test_lost_records_and_dead_letters_are_reported(data: DataDirectory, tmp_path: Path) -> None:
    printed: list[str] = []
    table = str(tmp_path / "table")

    def run() -> ExportResult:
        return export(None, ExportRequest(data.source(), table, fail_on_data_loss=False))

    follower = Follower(run, printed.append, 1, str(tmp_path / "metrics"))
    fill(data.log("orders"), 60)
    data.close()
    first, second, third, *_ = sorted((data.path / "orders-0").glob("*.log"))
    damage_first_batch(first)
    second.unlink()
    follower.run_once()
    follower.run_once()
    gone = f"{int(second.stem)} to {int(third.stem) - 1}"
    assert printed[1:] == ["dead letters: 1; see the dead-letter table", f"orders-0 lost before export: offsets {gone}"]
    lines = (tmp_path / "metrics").read_text().splitlines()
    assert "tidelog_export_dead_letters_total 1" in lines
    assert f"tidelog_export_lost_offsets_total {int(third.stem) - int(second.stem)}" in lines


def test_metrics_that_cannot_be_written_are_reported_and_end_nothing(data: DataDirectory, tmp_path: Path) -> None:
    printed: list[str] = []
    (tmp_path / "file").write_text("")
    follower = Follower(exporter_of(data), printed.append, 1, str(tmp_path / "file" / "metrics"))
    fill(data.log("orders"), 2)
    follower.run_once()
    follower.run_once()
    assert printed[0].startswith("version 1: 10 rows")
    assert all(line.startswith("the metrics cannot be written: ") for line in printed[1:])
    assert len(printed) == 3


@pytest.mark.parametrize(
    "error", [ConflictError("beaten"), JobError("busy"), KafkaStorageError("down"), OSError("no route")]
)
def test_a_failed_run_is_reported_and_repeated(error: Exception) -> None:
    printed: list[str] = []
    calls = 0

    def run() -> ExportResult:
        nonlocal calls
        calls += 1
        if calls == 3:
            follower.stop()
        raise error

    follower = Follower(run, printed.append, 0)
    follower.follow()
    assert follower.metrics.failures_total == 3
    assert printed == [f"{error}; the next attempt is in 0 s"] * 3


def follow_with_signal(moment: int) -> int:
    """Follow for at most two runs, with a stop before the line of Python of that number in waits; how many lines
    there were."""
    lines = runs = 0

    def handler(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_globals.get("__name__") not in ("threading", "queue", Follower.__module__):
            return None
        lines += 1
        if lines == moment:
            follower.stop()
        return handler

    def run() -> ExportResult:
        nonlocal runs
        runs += 1
        if runs == 2:
            follower.stop()
        raise JobError("busy")

    def follow() -> None:
        sys.settrace(handler)
        follower.follow()

    follower = Follower(run, lambda _: None, 0)
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive(), f"it hangs after a signal before line {moment}"
    return lines


def test_a_signal_at_any_line_stops_it() -> None:
    """A handler runs on the thread that waits, between any two lines."""
    moment = 1
    while moment <= follow_with_signal(moment):
        moment += 1
    assert moment > 10


@pytest.mark.parametrize(
    "error",
    [
        TopicRecreatedError("again"),
        LogRewrittenError("cut"),
        OptionError("no"),
        BadRequestError("no"),
        SparkEndedError("gone"),
    ],
)
def test_an_error_that_needs_a_decision_ends_the_export(error: Exception) -> None:
    def run() -> ExportResult:
        raise error

    with pytest.raises(type(error)):
        Follower(run, print, 0).follow()


@pytest.mark.parametrize("interval", [1e12, math.inf])
def test_any_interval_can_be_waited(interval: float) -> None:
    """Python's queues refuse waits of over 292 years; the command ended with a traceback after its first run."""

    def run() -> ExportResult:
        follower.stop()
        raise JobError("no table")

    follower = Follower(run, lambda _: None, interval)
    follower.follow()
