"""Lives of a log with key and tag indices in seeded orders: appends, gaps, truncations, retention, kills, and steps,
checkpoints, trims and rebuilds of the indexer, while calls of the disk for the indices fail.

In between, look-ups and readers of virtual topics get all records of a model. The readers live as long as the log.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.test_index_disk_errors import Disk
from tests.support.finding import QUERIES, catch_up, check_answers, fill, indexed_bench, use_reference
from tests.support.logs import NOW_MS
from tests.unit.log.find.test_filtering import read_on
from tidelog.log.find.filtering import MatchReader
from tidelog.log.find.index_checkpoint import remove_checkpoints_beyond
from tidelog.log.find.index_file import IndexDamagedError
from tidelog.log.find.indexer import LogIndexer
from tidelog.log.follower.append import append_as_follower
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.record.record_batch import Record, build_batch

SEEDS = int(os.environ.get("TIDELOG_FUZZ_SEEDS", "8"))
STEPS = 40


class Life:
    """A log, its indices, and the records that it must have."""

    def __init__(self, directory: Path, disk: Disk, chance: random.Random) -> None:
        self._disk = disk
        self._chance = chance
        entries = {"index.keys.entries": chance.choice((7, 40, 200)), "index.tag.entries": chance.choice((5, 30, 90))}
        self._bench = indexed_bench(str(directory), **entries)
        self._records: list[Record] = []
        self._is_damaged = False
        self._open()

    def _open(self, log_start_offset: int = 0) -> None:
        self._log = self._bench.open(log_start_offset=log_start_offset)
        self._log.update_high_watermark(self._log.log_end_offset)
        self._indexer = LogIndexer(self._log)
        self._readers = [MatchReader(self._log, query) for query in QUERIES]

    def step(self) -> None:
        chance = self._chance
        changes = (self._append, self._leave_gap, self._truncate, self._truncate, self._expire, self._kill, self._kill)
        if chance.random() < 0.6:
            chance.choice(changes)()
        self._work(chance.choice((self._index, self._indexer.checkpoint, self._indexer.trim)))
        if chance.random() < 0.2:
            self.check()

    # ---- changes of the log

    def _append(self) -> None:
        self._records += fill(self._log, self._chance, self._chance.randrange(1, 20))

    def _leave_gap(self) -> None:
        """Append what is left of a leader's segment after compaction."""
        first = self._log.log_end_offset + self._chance.randrange(1, 20)
        records = [Record(first + i, NOW_MS, b"Aa", b"", (("kind", b"paid"),)) for i in range(3)]
        append_as_follower(self._log, memoryview(build_batch(records)), 0)
        self._log.update_high_watermark(self._log.log_end_offset)
        self._records += records

    def _truncate(self) -> None:
        if self._records:
            self._log.truncate_to(self._chance.choice(self._records).offset)
            end = self._log.log_end_offset
            self._records = [record for record in self._records if record.offset < end]
            remove_checkpoints_beyond(self._log.environment.file_system, self._log.directory, end)
            self._append()

    def _expire(self) -> None:
        if self._records:
            self._log.maybe_increment_log_start_offset(self._records[len(self._records) // 4].offset)
            self._records = [record for record in self._records if record.offset >= self._log.log_start_offset]

    def _kill(self) -> None:
        """End without a checkpoint. Recovery may cut the log at a gap."""
        self._log.close()
        self._open(self._log.log_start_offset)
        headers = [header for segment in self._log.segments for header in segment.headers()]
        there = {offset for header in headers for offset in range(header.base_offset, header.last_offset + 1)}
        self._records = [record for record in self._records if record.offset in there]

    # ---- work of the indexer's thread

    def _work(self, work: Callable[[], object]) -> None:
        if self._chance.random() < 0.3:
            self._disk.arm(self._chance.randrange(1, 12), self._chance.choice((errno.EIO, errno.ENOSPC)))
        try:
            self._prepare()
            work()
        except IndexDamagedError:
            self._is_damaged = True
        except KafkaStorageError:
            pass  # the next work goes on
        finally:
            self._disk.arm(0, 0)

    def _index(self) -> None:
        self._indexer.step(self._chance.choice((1, 500, 3_000)))

    def _prepare(self) -> None:
        if self._indexer.config is not self._log.config:
            self._indexer.configure()
        if self._is_damaged:
            self._indexer.rebuild()
            self._is_damaged = False

    # ---- checks

    def check(self) -> None:
        self._prepare()
        catch_up(self._indexer)
        assert self._indexer.lag == 0
        check_answers(self._log, self._indexer, self._records)
        start = self._chance.randrange(self._log.log_start_offset, self._log.log_end_offset + 1)
        for query, reader in zip(QUERIES, self._readers, strict=True):
            found = [record.offset for record in read_on(reader, self._log, self._indexer, start)]
            assert found == [r.offset for r in self._records if r.offset >= start and query.matches(r)], query


@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_index_has_all_records_of_its_log(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        use_reference(monkeypatch)
    life = Life(tmp_path, Disk(monkeypatch), random.Random(seed))
    for _ in range(STEPS):
        life.step()
    life.check()
