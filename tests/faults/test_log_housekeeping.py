"""Retention, rolls and deletions of a real broker with a real clock: what is deleted, when, and what a restart
keeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import TidelogProcess
from tests.support.raw_requests import EARLIEST, LATEST, create, delete_records, fetch_error, offset, produce
from tidelog.protocol.errors import OffsetOutOfRangeError

LIMIT_S = 60.0
OVERRIDES = {
    "log.retention.check.interval.ms": "100",
    "log.flush.scheduler.interval.ms": "100",
    "log.flush.start.offset.checkpoint.interval.ms": "100",
    "log.cleaner.backoff.ms": "3600000",
}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def files(broker: TidelogProcess, topic: str, ending: str) -> list[Path]:
    return sorted((broker.data_directory / f"{topic}-0").glob(f"*{ending}"))


def fill(broker: TidelogProcess, topic: str, count: int, timestamp: int) -> None:
    for _ in range(count):
        assert produce(broker.port, topic, value=bytes(300), timestamp=timestamp) == 0


def now_ms() -> int:
    return int(time.time() * 1000)


def test_retention_by_size_waits_file_delete_delay(tmp_path: Path) -> None:
    with TidelogProcess(tmp_path, OVERRIDES) as broker:
        create(broker.port, "t", segment_bytes="1000", retention_bytes="2000", file_delete_delay_ms="4000")
        fill(broker, "t", 20, now_ms())
        wait_until(lambda: bool(files(broker, "t", ".log.deleted")))
        seen = time.monotonic()
        wait_until(lambda: offset(broker.port, "t", EARLIEST) > 5)
        assert fetch_error(broker.port, "t", 0) == OffsetOutOfRangeError.code
        wait_until(lambda: not files(broker, "t", ".deleted"))
        assert time.monotonic() - seen > 1.5, "the files had their delay"
        assert offset(broker.port, "t", LATEST) == 20


def test_retention_by_time_respects_min_compaction_lag(tmp_path: Path) -> None:
    """Both logs are compacted and deleted; only where no lag protects the records do they go."""
    common: dict[str, Any] = {"cleanup_policy": "compact,delete", "segment_bytes": "1000", "retention_ms": "3600000"}
    with TidelogProcess(tmp_path, OVERRIDES) as broker:
        create(broker.port, "free", **common)
        create(broker.port, "lagging", min_compaction_lag_ms=str(30 * 86_400_000), **common)
        for topic in ("free", "lagging"):
            fill(broker, topic, 20, now_ms() - 86_400_000)
        wait_until(lambda: offset(broker.port, "free", EARLIEST) > 5)
        assert offset(broker.port, "lagging", EARLIEST) == 0
        assert not files(broker, "lagging", ".deleted")


def test_segments_roll_after_segment_ms_less_a_random_jitter(tmp_path: Path) -> None:
    """A segment takes records for 400 to 1,000 ms of their own time, each a different stretch."""
    with TidelogProcess(tmp_path, OVERRIDES) as broker:
        create(broker.port, "t", segment_ms="1000", segment_jitter_ms="600")
        start = now_ms() - 60_000
        for number in range(600):
            assert produce(broker.port, "t", timestamp=start + 50 * number) == 0
        bases = [int(path.name[:20]) for path in files(broker, "t", ".log")]
        stretches = {50 * (after - before) for before, after in pairwise(bases)}
        assert 400 <= min(stretches) <= max(stretches) <= 1050
        assert len(stretches) > 3, "without jitter all would be alike"


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_deleted_records_stay_deleted_over_a_restart(tmp_path: Path, how: str) -> None:
    with TidelogProcess(tmp_path, OVERRIDES) as broker:
        create(broker.port, "t", segment_bytes="1000")
        fill(broker, "t", 20, now_ms())
        assert delete_records(broker.port, "t", 11) == 11
        assert fetch_error(broker.port, "t", 10) == OffsetOutOfRangeError.code
        checkpoint = broker.data_directory / "log-start-offset-checkpoint"
        if how == "kill":
            wait_until(lambda: checkpoint.exists() and "t 0 11" in checkpoint.read_text())
            broker.kill()
        else:
            broker.terminate()
        broker.start()
        assert offset(broker.port, "t", EARLIEST) == 11
        assert fetch_error(broker.port, "t", 10) == OffsetOutOfRangeError.code
        assert fetch_error(broker.port, "t", 11) == 0
        assert offset(broker.port, "t", LATEST) == 20
