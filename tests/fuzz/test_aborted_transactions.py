"""Random logs with transactions: what a reader of committed records is told of aborted ones, after rolls, truncations,
proofs of transaction indices and starts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.logs import LogBench, append, batch, marker, producer_batch
from tidelog.log.fetch import FetchIsolation
from tidelog.log.unified_log import UnifiedLog
from tidelog.log.validation.params import AppendOrigin

PRODUCERS = (7, 8)


class Batch(NamedTuple):
    """A batch of one record that was appended: its producer (-1 without one) and whether it is a marker, and of an
    abort."""

    producer_id: int
    is_marker: bool = False
    is_abort: bool = False


def aborted_batches(batches: list[Batch]) -> list[bool]:
    """Tell for each batch whether it belongs to a transaction that was aborted."""
    found = [False] * len(batches)
    open_of: dict[int, list[int]] = {}
    for offset, one in enumerate(batches):
        if one.is_marker:
            for each in open_of.pop(one.producer_id, []):
                found[each] = one.is_abort
        elif one.producer_id >= 0:
            open_of.setdefault(one.producer_id, []).append(offset)
    return found


class Life:
    """A log and the batches that it must have."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.chance = chance
        self.bench = LogBench(str(root), index_interval_bytes=chance.choice((1, 1, 300)))
        self.log = self.bench.open()
        self.batches: list[Batch] = []

    def append(self) -> None:
        """Append a plain batch, one of a transaction, or a marker."""
        producer_id = self.chance.choice((-1, *PRODUCERS))
        if producer_id < 0:
            append(self.log, batch())
            self.batches.append(Batch(-1))
        elif self.chance.random() < 0.75:
            records = producer_batch(0, producer_id=producer_id, transactional=True)
            append(self.log, records, AppendOrigin.COORDINATOR)
            self.batches.append(Batch(producer_id))
        else:
            commit = self.chance.random() < 0.3
            append(self.log, marker(producer_id, commit=commit), AppendOrigin.COORDINATOR)
            self.batches.append(Batch(producer_id, is_marker=True, is_abort=not commit))

    def step(self) -> None:
        """Change the log in a random way."""
        kind = self.chance.random()
        if kind < 0.6:
            self.append()
        elif kind < 0.75:
            self.log.roll()
        elif kind < 0.87:
            self.log.collect_aborted_transactions(0, len(self.batches))
        elif kind < 0.94 and self.batches:
            offset = self.chance.randrange(len(self.batches) // 4, len(self.batches))
            self.log.truncate_to(offset)
            del self.batches[offset:]
            self.log.update_high_watermark(self.log.log_end_offset)
        elif kind >= 0.94:
            self.log.flush()
            self.log.close()
            self.log = self.bench.open(clean=True)

    def check(self) -> None:
        """Compare what a reader of each batch by itself is told."""
        assert self.log.log_end_offset == len(self.batches)
        aborted = aborted_batches(self.batches)
        for offset in range(self.log.last_stable_offset):
            one = self.batches[offset]
            if one.producer_id >= 0 and not one.is_marker:
                assert is_told_as_aborted(self.log, offset, one.producer_id) == aborted[offset], offset


def is_told_as_aborted(log: UnifiedLog, offset: int, producer_id: int) -> bool:
    """Read one batch as a reader of committed records; return whether the reader drops it."""
    found = log.read(offset, 1, isolation=FetchIsolation.TXN_COMMITTED, min_one_message=True).aborted_transactions
    assert found is not None
    return any(one.producer_id == producer_id and one.first_offset <= offset <= one.last_offset for one in found)


@pytest.mark.parametrize("seed", range(25))
def test_a_reader_of_committed_records_is_told_of_exactly_the_aborted_ones(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    life = Life(tmp_path, chance)
    for number in range(chance.randrange(20, 120)):
        life.step()
        if number % 10 == 9:
            life.check()


def test_a_transaction_that_begins_after_a_truncation_is_searched_for_in_later_segments(tmp_path: Path) -> None:
    """The segment's index was proven, and no transaction was open at its end."""
    life = Life(tmp_path, random.Random(0))
    life.bench = LogBench(str(tmp_path), index_interval_bytes=1)

    def write(*producer_ids: int) -> None:
        for producer_id in producer_ids:
            append(life.log, producer_batch(0, producer_id=producer_id, transactional=True), AppendOrigin.COORDINATOR)
            life.batches.append(Batch(producer_id))

    def end(producer_id: int, *, commit: bool) -> None:
        append(life.log, marker(producer_id, commit=commit), AppendOrigin.COORDINATOR)
        life.batches.append(Batch(producer_id, is_marker=True, is_abort=not commit))

    write(7)
    end(7, commit=True)
    write(7)
    end(7, commit=True)
    life.log.roll()
    write(8)
    life.log.flush()
    life.log.close()
    life.log = life.bench.open(clean=True)
    life.log.collect_aborted_transactions(0, 5)
    life.log.truncate_to(3)
    del life.batches[3:]
    write(7, 7, 7)
    life.log.roll()
    end(7, commit=False)
    life.check()
