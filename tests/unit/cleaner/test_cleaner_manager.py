"""States of the cleaner manager and their valid predecessors, the choice of the log with the most to clean, checkpoint,
quarantine."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tests.support.cleaning import NOW_MS, PARTITION, LogWriter, compacted, open_log
from tidelog.cleaner.checkpoint import CleanerCheckpoint
from tidelog.cleaner.cleaner_manager import (
    FIRST_RETRY_MS,
    CleaningState,
    InvalidCleaningStateError,
    LogCleanerManager,
    RoundReport,
)
from tidelog.cleaner.engine.engine import ReferenceEngine
from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions
from tidelog.log.system.file_system import LogStorageError, OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaStorageError

REPORT = RoundReport(0, 0, False, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0, (), 0, 0, "reference")


class Bench:
    """A manager over one log with two closed segments."""

    def __init__(self, directory: Path, **config: Any) -> None:
        self.time = ManualTime(NOW_MS)
        self.log = open_log(directory, compacted(**config))
        self.write(2)
        self.logs: list[UnifiedLog] = [self.log]
        self.manager = LogCleanerManager(lambda: self.logs, OsFileSystem(), self.time)
        self.manager.checkpoint.begin_round(self.log)  # what the test saves counts from here on

    def write(self, batches: int) -> None:
        """Append segments of one batch each."""
        writer = LogWriter(self.log)
        for _ in range(batches):
            writer.append([(b"a", b"1")])
            writer.roll()

    def state(self) -> CleaningState:
        return self.manager.status(self.log).state


def test_the_log_with_the_most_to_clean_is_taken_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    found = bench.manager.grab_filthiest()

    assert found is not None
    assert (found.first_dirty_offset, found.first_uncleanable_offset, found.cleanable_ratio) == (0, 2, 1.0)
    assert bench.state() is CleaningState.IN_PROGRESS
    assert bench.manager.grab_filthiest() is None
    assert bench.manager.grab(bench.log) is None


def test_clean_log_is_not_due(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.manager.checkpoint.save(bench.log, 2)

    assert bench.manager.grab_filthiest() is None
    assert bench.manager.grab(bench.log) is not None


def test_ratio_must_be_passed_not_met(tmp_path: Path) -> None:
    bench = Bench(tmp_path, min_cleanable_dirty_ratio=0.5)
    bench.manager.checkpoint.save(bench.log, 1)

    assert bench.manager.measure(bench.log).cleanable_ratio == 0.5
    assert bench.manager.grab_filthiest() is None


def test_overdue_log_is_due_whatever_its_ratio_and_its_active_segment_is_rolled(tmp_path: Path) -> None:
    bench = Bench(tmp_path, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=1000)
    LogWriter(bench.log).append([(b"b", b"1")])

    found = bench.manager.grab_filthiest()

    assert found is not None
    assert found.overdue
    assert found.first_uncleanable_offset == 3
    assert bench.manager.max_compaction_delay_ms > 900_000


def test_young_records_are_not_cleaned(tmp_path: Path) -> None:
    bench = Bench(tmp_path, min_compaction_lag_ms=10_000_000)

    assert bench.manager.measure(bench.log).cleanable_bytes == 0


def test_an_offset_beyond_the_log_counts_as_its_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.manager.checkpoint.save(bench.log, 99)

    assert bench.manager.measure(bench.log).first_dirty_offset == 0


def test_an_offset_within_the_active_segment_gives_a_round_nothing_of_that_segment(tmp_path: Path) -> None:
    """A recovery has dropped the log's end, up to which it was clean. The active segment may not be swapped."""
    log = open_log(tmp_path, compacted())
    writer = LogWriter(log)
    writer.append([(b"a", b"1"), (b"b", b"1")])
    writer.roll()
    for _ in range(3):
        writer.append([(b"a", b"2")])
    manager = LogCleanerManager(lambda: [log], OsFileSystem(), ManualTime(NOW_MS))
    manager.checkpoint.begin_round(log)
    manager.checkpoint.save(log, 4)

    found = manager.measure(log)

    assert (found.first_dirty_offset, found.first_uncleanable_offset, found.cleanable_bytes) == (2, 2, 0)
    assert manager.grab_filthiest() is None
    stats = Cleaner(ReferenceEngine(), CleanerOptions(map_bytes=64 * 1024)).clean(found, NOW_MS)
    assert stats.unreadable_batches == 0
    assert [segment.base_offset for segment in log.segments] == [0, 2]


@pytest.mark.parametrize("saves", [True, False])
def test_records_in_the_place_of_truncated_ones_are_dirty(tmp_path: Path, saves: bool) -> None:
    bench = Bench(tmp_path)
    bench.manager.checkpoint.save(bench.log, 2)
    bench.log.truncate_to(1)
    if saves:
        bench.manager.checkpoint.lower(bench.log)
        assert (tmp_path / "cleaner-offset-checkpoint").read_text().endswith(" 0 1\n")
    bench.write(2)

    found = bench.manager.grab_filthiest()
    assert found is not None
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (1, 3)
    assert (tmp_path / "cleaner-offset-checkpoint").read_text().endswith(" 0 1\n")


def test_a_truncation_during_a_round_bounds_its_cleaned_offset(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    found = bench.manager.grab_filthiest()
    assert found is not None
    bench.log.truncate_to(1)
    bench.write(3)

    bench.manager.checkpoint.save(bench.log, found.first_uncleanable_offset)
    bench.manager.record_success(PARTITION, REPORT)

    assert bench.manager.checkpoint.get(bench.log) == 1
    again = bench.manager.grab_filthiest()
    assert again is not None
    assert again.first_dirty_offset == 1
    bench.manager.checkpoint.save(bench.log, again.first_uncleanable_offset)
    assert bench.manager.checkpoint.get(bench.log) == 4


def test_records_after_an_end_that_recovery_truncated_are_dirty(tmp_path: Path) -> None:
    """The offset in the file is beyond the end with which the log was opened; later records get offsets below it."""
    bench = Bench(tmp_path)
    bench.manager.checkpoint.save(bench.log, 2)
    bench.log.truncate_to(1)
    bench.log.close()
    log = open_log(tmp_path, compacted())
    assert log.log_end_offset == 1
    LogWriter(log).append([(b"a", b"2")])

    for _ in range(2):  # the second start cannot know what the first one's recovery dropped
        assert CleanerCheckpoint(OsFileSystem()).get(log) == 1
        log.close()
        log = open_log(tmp_path, compacted())
        assert log.log_end_offset == 2


def test_a_lower_offset_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    bench, disk = Bench(tmp_path), FillingDisk()
    checkpoint = CleanerCheckpoint(disk)
    checkpoint.save(bench.log, 2)
    bench.log.truncate_to(1)

    disk.is_full = True
    with pytest.raises(KafkaStorageError):
        checkpoint.begin_round(bench.log)
    disk.is_full = False
    checkpoint.begin_round(bench.log)

    assert (tmp_path / "cleaner-offset-checkpoint").read_text().endswith(" 0 1\n")


class FillingDisk(OsFileSystem):
    """A disk that the test can make full."""

    is_full = False

    def replace_file(self, path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        if self.is_full:
            raise LogStorageError("write", path, errno.ENOSPC)
        super().replace_file(path, data, sync=sync)


def test_checkpoint_survives_and_is_forgotten_with_the_log(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.manager.checkpoint.save(bench.log, 2)
    again = LogCleanerManager(lambda: bench.logs, OsFileSystem(), bench.time)

    assert again.checkpoint.get(bench.log) == 2
    assert (tmp_path / "cleaner-offset-checkpoint").read_text() == f"0\n1\n{PARTITION.topic} 0 2\n"
    again.forget(PARTITION, [str(tmp_path)])
    assert (tmp_path / "cleaner-offset-checkpoint").read_text() == "0\n0\n"


def test_a_directory_that_cannot_be_read_keeps_no_checkpoint_of_another_one(tmp_path: Path) -> None:
    """The partition is forgotten in all directories, and the error of the first is raised after that."""

    class HalfDisk(OsFileSystem):
        def read_file(self, path: str) -> bytes:
            if path.startswith("/broken"):
                raise LogStorageError("read", path, errno.EIO)
            return super().read_file(path)

        def exists(self, path: str) -> bool:
            return path.startswith("/broken") or super().exists(path)

    bench = Bench(tmp_path)
    bench.manager.checkpoint.save(bench.log, 2)
    again = LogCleanerManager(lambda: bench.logs, HalfDisk(), bench.time)
    with pytest.raises(LogStorageError, match="/broken"):
        again.forget(PARTITION, ["/broken", str(tmp_path)])
    assert (tmp_path / "cleaner-offset-checkpoint").read_text() == "0\n0\n"


def test_log_created_again_under_the_same_name_is_dirty_from_its_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.manager.checkpoint.save(bench.log, 2)
    other = open_log(tmp_path)

    assert bench.manager.checkpoint.get(other) is None


def test_damaged_checkpoint_makes_everything_dirty(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "cleaner-offset-checkpoint").write_text("rubbish")

    assert bench.manager.measure(bench.log).first_dirty_offset == 0


def test_failed_round_is_retried_after_a_back_off_that_doubles(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for attempt in range(3):
        assert bench.manager.grab_filthiest() is not None
        bench.manager.record_failure(PARTITION, "the reason")
        status = bench.manager.status(bench.log)
        assert (status.state, status.last_error) == (CleaningState.QUARANTINED, "the reason")
        assert (status.failures, status.retry_in_ms) == (attempt + 1, FIRST_RETRY_MS << attempt)
        bench.time.advance((FIRST_RETRY_MS << attempt) - 1)
        assert bench.manager.grab_filthiest() is None
        bench.time.advance(1)

    assert bench.manager.grab_filthiest() is not None
    bench.manager.record_success(PARTITION, REPORT)
    status = bench.manager.status(bench.log)
    assert (status.state, status.last_error, status.last_round) == (CleaningState.IDLE, None, REPORT)


def test_request_does_not_wait_for_the_back_off(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.manager.grab_filthiest()
    bench.manager.record_failure(PARTITION, "the reason")

    assert bench.manager.grab(bench.log) is not None


def test_the_end_of_a_round_that_never_began_is_an_error(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    with pytest.raises(InvalidCleaningStateError, match="cannot go from idle to quarantined"):
        bench.manager.record_failure(PARTITION, "the reason")


def test_statuses_are_sorted_and_frozen(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    (status,) = bench.manager.statuses()

    assert status.dirty_bytes == sum(segment.size for segment in bench.log.segments)
    assert status.compaction_lag_ms == 1_000_000
    with pytest.raises(AttributeError):
        status.failures = 1  # type: ignore[misc]
