"""The first dirty offset of a log through random orders of events: appends, rounds and their progress, truncations,
restarts, and deletion with a new log under the same name.

In any order, no record counts as clean that no round has read.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from tests.support.cleaning import NOW_MS, PARTITION, LogWriter, compacted, open_log
from tidelog.cleaner.cleaner_manager import LogCleanerManager
from tidelog.cleaner.log_to_clean import LogToClean
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.log.unified_log import UnifiedLog

SEEDS = 60
STEPS = 60


class Life:
    """One partition with its log, its cleaner's table, and which records its rounds have read."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.directory = directory
        self.serials = itertools.count()
        self.records: dict[int, int] = {}
        """Serial number of the record at each offset."""
        self.read: set[int] = set()
        self.found: LogToClean | None = None
        self.seen: dict[int, int] = {}
        """What the running round reads: ``records`` when it began."""
        self.log: UnifiedLog = open_log(directory, compacted())
        self.manager = self.new_manager()

    def new_manager(self) -> LogCleanerManager:
        self.found = None
        return LogCleanerManager(lambda: [self.log], OsFileSystem(), ManualTime(NOW_MS))

    def append(self) -> None:
        for _ in range(self.chance.randrange(1, 4)):
            offset = LogWriter(self.log).append([(b"k", b"v")])
            self.records[offset] = next(self.serials)
        self.log.roll()

    def begin(self) -> None:
        if self.found is None:
            self.found = self.manager.grab(self.log)
            self.seen = dict(self.records)

    def progress(self, end: int | None = None) -> None:
        if self.found is not None:
            end = self.chance.randrange(self.found.first_uncleanable_offset + 1) if end is None else end
            end = max(end, self.found.first_dirty_offset)
            self.read |= {serial for offset, serial in self.seen.items() if offset < end}
            self.manager.checkpoint.save(self.found.log, end)

    def end(self) -> None:
        if self.found is not None:
            self.progress(self.found.first_uncleanable_offset)
            self.stop()

    def stop(self) -> None:
        if self.found is not None:
            self.manager.record_stop(PARTITION)
            self.found = None

    def truncate(self) -> None:
        self.log.truncate_to(self.chance.randrange(self.log.log_end_offset + 1))
        self.after_cut()

    def start_at(self) -> None:
        self.log.truncate_fully_and_start_at(self.chance.randrange(self.log.log_end_offset + 5))
        self.records.clear()
        self.after_cut()

    def after_cut(self) -> None:
        self.records = {offset: one for offset, one in self.records.items() if offset < self.log.log_end_offset}
        if self.chance.random() < 0.5:
            self.manager.checkpoint.lower(self.log)

    def crash(self) -> None:
        """Start again after a recovery that drops records."""
        self.log.truncate_to(self.chance.randrange(self.log.log_start_offset, self.log.log_end_offset + 1))
        self.records = {offset: one for offset, one in self.records.items() if offset < self.log.log_end_offset}
        self.restart()

    def restart(self) -> None:
        start = self.log.log_start_offset
        self.log.close()
        self.log = open_log(self.directory, compacted(), log_start_offset=start)
        self.manager = self.new_manager()

    def create_again(self) -> None:
        """Delete the partition while a round may run; the cleaner is notified before the new log is created, or
        later."""
        self.log.abandon()
        if self.chance.random() < 0.5:
            self.manager.forget(PARTITION, [str(self.directory)])
        for path in (self.directory / PARTITION.directory_name).iterdir():
            path.unlink()
        self.log = open_log(self.directory, compacted())
        self.records.clear()

    def check(self) -> None:
        first_dirty = self.manager.measure(self.log).first_dirty_offset
        unread = {offset for offset, serial in self.records.items() if serial not in self.read}
        assert not [offset for offset in unread if self.log.log_start_offset <= offset < first_dirty]


@pytest.mark.parametrize("part", range(4))
def test_no_record_counts_as_clean_that_no_round_has_read(tmp_path: Path, part: int) -> None:
    for seed in range(part, SEEDS, 4):
        directory = tmp_path / str(seed)
        directory.mkdir()
        life = Life(directory, seed)
        steps = [*[life.append] * 5, *[life.begin] * 3, *[life.progress] * 2, *[life.end] * 3, life.stop,
                 *[life.truncate] * 3, life.start_at, life.restart, life.crash, life.create_again]  # fmt: skip
        for number in range(STEPS):
            step = life.chance.choice(steps)
            step()
            try:
                life.check()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {number}, {step.__name__}") from error
        life.log.close()
