"""A truncation is durable before new records are appended in its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.faulty_file_system import FaultyFileSystem
from tests.support.logs import LogBench, append, batch, values
from tidelog.log.follower.truncation import sync_cut, truncate_to_epoch_end
from tidelog.log.system.file_system import LogStorageError


class Between(FaultyFileSystem):
    """A disk that lets others work once while the next sync of a directory runs."""

    work: Callable[[], object] | None = None

    def sync_directory(self, path: str) -> None:
        work, self.work = self.work, None
        if work is not None:
            work()
        super().sync_directory(path)


@pytest.fixture
def bench(tmp_path: Path) -> LogBench:
    return LogBench(str(tmp_path), FaultyFileSystem(str(tmp_path)))


def test_a_power_loss_does_not_bring_back_truncated_records(bench: LogBench) -> None:
    """The record that replaced them was not synced, but according to the checkpointed high watermark it is
    committed."""
    log = bench.open()
    append(log, batch(1, value=b"kept"), epoch=0)
    append(log, batch(1, value=b"cut"), epoch=0)
    log.flush()
    assert truncate_to_epoch_end(log, 0, 1)
    sync_cut(log)
    append(log, batch(1, value=b"later"), epoch=1)
    assert isinstance(bench.file_system, FaultyFileSystem)
    bench.file_system.crash()
    assert values(bench.open(recovery_point=1)) == {0: b"kept"}


def test_a_truncation_that_cannot_be_synced_is_an_error(bench: LogBench) -> None:
    log = bench.open()
    append(log, batch(2))
    truncate_to_epoch_end(log, 0, 0)
    assert isinstance(bench.file_system, FaultyFileSystem)
    bench.file_system.fail_operation = {"sync": 5}
    with pytest.raises(LogStorageError):
        sync_cut(log)
    assert not log.is_serving


def test_a_flush_during_a_truncation_does_not_cover_later_records(tmp_path: Path) -> None:
    disk = Between(str(tmp_path))
    bench = LogBench(str(tmp_path), disk)
    log = bench.open()
    append(log, batch(1, value=b"kept"), epoch=0)
    append(log, batch(1, value=b"cut"), epoch=0)

    def cut() -> None:
        assert truncate_to_epoch_end(log, 0, 1)
        sync_cut(log)
        append(log, batch(1, value=b"later"), epoch=1)

    log.leader_epochs.flush()
    disk.work = cut
    log.flush()
    promised = log.recovery_point
    disk.crash()
    kept = values(bench.open(recovery_point=promised))
    assert [kept.get(offset) for offset in range(promised)] == [b"kept", b"later"][:promised]


def test_a_clean_stop_syncs_the_indices_that_a_truncation_changed(tmp_path: Path) -> None:
    """Other records come in the place of truncated ones, and the log ends where it did when it was opened."""
    disk = FaultyFileSystem(str(tmp_path))
    bench = LogBench(str(tmp_path), disk, index_interval_bytes=0)
    log = bench.open()
    for size in (1, 1, 10, 20, 1, 1):
        append(log, batch(1, value=b"v" * size))
    log.flush()
    log.close()
    log = bench.open(clean=True, recovery_point=6)
    log.truncate_to(2)
    for size in (20, 10, 1, 1):
        append(log, batch(1, value=b"w" * size))
    log.flush()
    log.close()
    disk.crash(keep_names=True)
    log = bench.open(clean=True, recovery_point=6)
    index = log.segments.active.offset_index
    positions = {header.last_offset: header.position for header in log.segments.active.headers()}
    assert [index.entry(slot).position for slot in range(5)] == [positions[offset] for offset in range(1, 6)]
    assert values(log, 3) == {3: b"w" * 10, 4: b"w", 5: b"w"}
