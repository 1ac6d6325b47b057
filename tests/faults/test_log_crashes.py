"""Kills and power losses at every step of a log (faults F1 to F4 of docs/internals/faults.md). ``log/check`` runs after
each."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.support.faulty_file_system import FaultyFileSystem, Killed
from tests.support.logs import NOW_MS, LogBench, append, batch, producer_batch, values
from tidelog.log.check import check_directory
from tidelog.log.segment.segment import CLEANED_SUFFIX, LogSegment
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.unified_log import UnifiedLog

ROOT = Path(__file__).resolve().parents[2]
SMALL: dict[str, Any] = {"segment_bytes": 700, "index_interval_bytes": 200, "file_delete_delay_ms": 0}


def new_bench(directory: Path, seed: int = 0) -> tuple[LogBench, FaultyFileSystem]:
    directory.mkdir()
    disk = FaultyFileSystem(str(directory), seed)
    return LogBench(str(directory), disk, **SMALL), disk


def value_of(offset: int) -> bytes:
    return b"value %d " % offset * (offset % 7 + 1)


def run_appends(log: UnifiedLog, acknowledged: dict[int, bytes], *, flush_each: bool = False) -> None:
    """Append, with rolls, flushes and a truncation of nothing; what returned is acknowledged."""
    for number in range(30):
        offset = log.log_end_offset
        append(log, batch(1, value=value_of(offset), timestamp=NOW_MS + number))
        if flush_each:
            log.flush()
        acknowledged[offset] = value_of(offset)
        if number % 10 == 9:
            log.flush()


def steps_of_appends(tmp_path: Path, *, flush_each: bool = False) -> int:
    bench, disk = new_bench(tmp_path / "count")
    run_appends(bench.open(), {}, flush_each=flush_each)
    return len(disk.calls)


def assert_log_serves(bench: LogBench, acknowledged: dict[int, bytes], *, recovery_point: int = 0) -> UnifiedLog:
    """Check I1 to I3 of docs/internals/faults.md: acknowledged records have their bytes, offsets have no gap, the files
    are in order."""
    log = bench.open(recovery_point=recovery_point)
    found = values(log)
    assert {offset: found.get(offset) for offset in acknowledged} == acknowledged
    assert list(found) == list(range(log.log_end_offset))
    assert all(value == value_of(offset) for offset, value in found.items())
    assert log.log_end_offset <= max(acknowledged, default=-1) + 2, (
        "at most the batch in flight is there unacknowledged"
    )
    append(log, batch(1, value=value_of(log.log_end_offset)))
    log.close()
    assert check_directory(OsFileSystem(), bench.directory) == []
    return log


def test_kill_at_every_step_keeps_acknowledged_records(tmp_path: Path) -> None:
    """F1: the process dies, and its writes are in the page cache."""
    steps = steps_of_appends(tmp_path)
    assert steps > 60
    for step in range(steps):
        bench, disk = new_bench(tmp_path / str(step), seed=step)
        acknowledged: dict[int, bytes] = {}
        recovery_point = 0
        disk.kill_at = step
        try:
            log = bench.open()
            run_appends(log, acknowledged)
        except Killed:
            pass
        disk.kill_at = None
        survivor = LogBench(bench.root, **SMALL)
        assert_log_serves(survivor, acknowledged, recovery_point=recovery_point)


@pytest.mark.parametrize("torn", [False, True])
def test_power_loss_at_every_step_with_flush_keeps_acknowledged_records(tmp_path: Path, torn: bool) -> None:
    """F4 with ``flush.messages=1``: acknowledged means synced."""
    steps = steps_of_appends(tmp_path, flush_each=True)
    for step in range(0, steps, 1 if not torn else 3):
        bench, disk = new_bench(tmp_path / f"{step}-{torn}", seed=step)
        acknowledged: dict[int, bytes] = {}
        disk.kill_at = step
        with contextlib.suppress(Killed):
            run_appends(bench.open(), acknowledged, flush_each=True)
        disk.crash(torn=torn)
        assert_log_serves(LogBench(bench.root, **SMALL), acknowledged)


@pytest.mark.parametrize("keep_names", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_power_loss_without_flush_loses_only_the_unsynced_tail(tmp_path: Path, seed: int, keep_names: bool) -> None:
    """F4 without flush mode: no gap, no mixed bytes, and everything below the recovery point."""
    bench, disk = new_bench(tmp_path / "log", seed)
    log = bench.open()
    run_appends(log, {})
    flushed = log.recovery_point
    for _ in range(seed % 9):
        append(log, batch(1, value=value_of(log.log_end_offset)))
    disk.crash(torn=True, keep_names=keep_names)
    survivor = LogBench(bench.root, **SMALL).open(recovery_point=flushed)
    found = values(survivor)
    assert list(found) == list(range(survivor.log_end_offset))
    assert survivor.log_end_offset >= flushed
    assert all(value == value_of(offset) for offset, value in found.items())
    survivor.close()
    assert check_directory(OsFileSystem(), bench.directory) == []


def test_kill_during_recovery_converges(tmp_path: Path) -> None:
    """F3: recovery is killed at each of its own steps, again and again, and ends in the same log."""
    bench, disk = new_bench(tmp_path / "log")
    log = bench.open()
    acknowledged: dict[int, bytes] = {}
    run_appends(log, acknowledged)
    for sequence in range(5):
        append(log, producer_batch(sequence, timestamp=NOW_MS))
    end = log.log_end_offset
    with open(log.segments.active.records.path, "ab") as file:
        file.write(b"torn tail")
    for path in log.segments.first.paths[1:3]:
        os.unlink(path)
    for attempt in range(200):
        disk.kill_at = len(disk.calls) + attempt
        again = LogBench(bench.root, disk, **SMALL)
        try:
            recovered = again.open()
        except Killed:
            continue
        break
    else:
        pytest.fail("recovery never got through")
    disk.kill_at = None
    assert recovered.log_end_offset == end
    assert append(recovered, producer_batch(4)).duplicate
    recovered.close()
    assert check_directory(OsFileSystem(), bench.directory) == []


def cleaned(log: UnifiedLog, sources: list[LogSegment]) -> list[LogSegment]:
    """Write two ``.cleaned`` segments that hold every second record of ``sources``."""
    environment = log.environment
    copies = []
    for group in (sources[:2], sources[2:]):
        copy = LogSegment.create(
            log.directory, group[0].base_offset, log.config, environment.file_system, environment.time, CLEANED_SUFFIX
        )
        for source in group:
            for header, data in source.batches():
                if header.base_offset % 2 == 0:
                    copy.append(bytes(data), header.last_offset, header.max_timestamp, header.last_offset)
        copy.on_become_inactive()
        copy.flush()
        copies.append(copy)
    return copies


def swap(bench: LogBench) -> None:
    log = bench.open()
    old = list(log.segments)[:4]
    log.replace_segments(cleaned(log, old), old)
    bench.environment.deletions.run(everything=True)


def write_closed_log(directory: Path) -> Path:
    """Write a compacted log of several segments, and close it."""
    directory.mkdir()
    log = LogBench(str(directory), **SMALL, cleanup_policy="compact").open()
    run_appends(log, {})
    log.close()
    return directory


def copy_of(template: Path, directory: Path) -> tuple[LogBench, FaultyFileSystem]:
    shutil.copytree(template, directory)
    disk = FaultyFileSystem(str(directory))
    return LogBench(str(directory), disk, **SMALL, cleanup_policy="compact"), disk


@pytest.mark.parametrize("power_loss", [False, True])
def test_kill_at_every_step_of_a_swap_leaves_old_or_new(tmp_path: Path, power_loss: bool) -> None:
    """F2: never a mix of old and new segments, and leftover files are removed."""
    template = write_closed_log(tmp_path / "template")
    bench, disk = copy_of(template, tmp_path / "count")
    log = bench.open()
    before, boundary = values(log), log.segments[4].base_offset
    log.close()
    disk.calls.clear()
    swap(bench)
    steps = len(disk.calls)
    after = {offset: value for offset, value in before.items() if offset % 2 == 0 or offset >= boundary}
    seen = set()
    for step in range(steps):
        bench, disk = copy_of(template, tmp_path / f"{step}-{power_loss}")
        disk.kill_at = step
        with contextlib.suppress(Killed):
            swap(bench)
        if power_loss:
            disk.crash(keep_names=True)
        disk.kill_at = None
        survivor = LogBench(bench.root, **SMALL, cleanup_policy="compact").open()
        found = values(survivor)
        assert found in (before, after), f"a mix after step {step}"
        seen.add(len(found))
        survivor.close()
        leftovers = [name for name in os.listdir(bench.directory) if name.endswith((".cleaned", ".swap", ".deleted"))]
        assert leftovers == []
        assert check_directory(OsFileSystem(), bench.directory) == []
    assert seen == {len(before), len(after)}


WRITER = """
    import sys
    from tests.support.logs import LogBench, append, batch
    from tidelog.log.system.time import SystemTime
    bench = LogBench(sys.argv[1], time=SystemTime(), segment_bytes=20000, index_interval_bytes=500)
    log = bench.open()
    while True:
        offset = log.log_end_offset
        append(log, batch(1, value=b"value %d " % offset * (offset % 7 + 1), timestamp=bench.time.milliseconds()))
        sys.stdout.write(f"{offset}\\n")
        sys.stdout.flush()
"""


def test_real_kill_minus_nine_again_and_again(tmp_path: Path) -> None:
    """F1 on a real process: each round is killed while it writes; nothing acknowledged is lost over all rounds."""
    acknowledged = -1
    for round_number in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            for _ in range(150 + 70 * round_number):
                line = process.stdout.readline()
            acknowledged = int(line)
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split()
            # A line cut by the kill still names an acknowledged offset only when it is whole.
            acknowledged = max([acknowledged, *(int(item) for item in rest[:-1])])
        log = LogBench(str(tmp_path), segment_bytes=20000, index_interval_bytes=500).open()
        found = values(log)
        assert list(found) == list(range(log.log_end_offset))
        assert log.log_end_offset > acknowledged
        assert all(value == value_of(offset) for offset, value in found.items())
        log.close()
        assert check_directory(OsFileSystem(), log.directory) == []
