"""The producers that a cleaning round reads: in parts, each under the log's lock, beside appends."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.cleaning import NOW_MS, LogWriter, open_log, whole
from tidelog.cleaner.engine.engine import ENGINE
from tidelog.cleaner.errors import CleaningAbortedError
from tidelog.cleaner.round import cleaner
from tidelog.cleaner.round.cleaner import Cleaner, RoundHooks
from tidelog.log.producer.state import PRODUCERS_UNDER_LOCK, ProducerBatch
from tidelog.log.unified_log import UNBOUND, UnifiedLog
from tidelog.protocol.record.batches import iter_batches

FEW = 7
"""Producers in a part, in these tests."""


class CountingLock:
    """The log's lock, which calls ``after`` each time that it has been released."""

    def __init__(self, lock: Any, after: Callable[[], object]) -> None:
        self.lock, self.after = lock, after

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        self.after()


def written(directory: Path, producers: int) -> UnifiedLog:
    """Make a log with one batch of each producer, all below the active segment."""
    log = open_log(directory)
    writer = LogWriter(log)
    for number in range(producers):
        writer.append([(b"k", b"v")], producer_id=number, producer_epoch=0, base_sequence=0)
    writer.roll()
    log.clean_bound = UNBOUND  # as the checkpoint sets it when a round begins
    return log


def replace_lock(log: Any, lock: object) -> None:
    log.lock = lock


def kept(log: UnifiedLog) -> set[int]:
    """Return the producers that have a batch in the log."""
    data = b"".join(segment.records.read_at(0, segment.size) for segment in log.segments)
    return {batch.producer_id for batch in iter_batches(data)}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner, "PRODUCERS_UNDER_LOCK", FEW)


def test_a_round_reads_each_producer_once_and_few_under_one_lock() -> None:
    held: list[int] = []

    class Entry(SimpleNamespace):
        @property
        def last_offset(self) -> int:
            held[-1] += 1
            return int(self.producer_id) - 1

    entries = {number: Entry(producer_id=number, producer_epoch=3) for number in range(2500)}

    class Lock:
        def __enter__(self) -> None:
            held.append(0)

        def __exit__(self, *_: object) -> None:
            pass

    state = SimpleNamespace(producers=entries, known=list(entries))
    log: Any = SimpleNamespace(lock=Lock(), clean_bound=UNBOUND, producer_state=state)
    needs = cleaner.read_needs(log, UNBOUND)
    assert sum(held) == 2500
    assert max(held) <= PRODUCERS_UNDER_LOCK
    assert sorted(map(tuple, needs.last_batches.tolist())) == [(number - 1, number) for number in range(1, 2500)]
    assert needs.fences.tolist() == [[0, 3]]


def test_both_passes_of_a_round_use_one_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: None) -> None:
    reads, real = 0, cleaner.read_needs

    def read(log: UnifiedLog, clean_bound: int) -> cleaner.ProducerNeeds:
        nonlocal reads
        reads += 1
        return real(log, clean_bound)

    monkeypatch.setattr(cleaner, "read_needs", read)
    log = written(tmp_path, 30)
    Cleaner(ENGINE).clean(whole(log), NOW_MS)
    assert reads == 1
    assert kept(log) == set(range(30))


@pytest.mark.parametrize("seed", range(10))
def test_the_last_batches_stay_whatever_producers_come_and_go_between_the_parts(
    tmp_path: Path, few: None, seed: int
) -> None:
    chance, log = random.Random(seed), written(tmp_path, 60)
    state, plain = log.producer_state, log.lock
    stay = set(chance.sample(range(60), 30))

    def between() -> None:
        with plain:
            for number in chance.sample(range(60), 3):
                if number in stay or number not in state.producers:
                    continue
                state.known.remove(number)
                state.producers.pop(number)
            end = state.end_offset
            state.update(ProducerBatch(chance.randrange(100, 200), 0, 0, 0, end, end, NOW_MS, False))

    replace_lock(log, CountingLock(plain, between))
    Cleaner(ENGINE).clean(whole(log), NOW_MS)
    replace_lock(log, plain)
    assert stay <= kept(log)


def test_a_truncation_between_the_parts_ends_the_round(tmp_path: Path, few: None) -> None:
    """It builds another state, in another order: a walk that went on could miss producers."""
    log = written(tmp_path, 30)
    writer = LogWriter(log)
    writer.append([(b"k", b"v")])
    plain, end = log.lock, log.log_end_offset

    def cut() -> None:
        replace_lock(log, plain)
        log.truncate_to(end - 1)

    cleanable = whole(log)
    replace_lock(log, CountingLock(plain, cut))
    with pytest.raises(CleaningAbortedError, match="truncated"):
        cleaner.read_needs(log, log.clean_bound)
    assert cleanable.first_uncleanable_offset < end


def test_no_segment_is_swapped_after_a_truncation_above_it(tmp_path: Path) -> None:
    """The producer's batch that was cut was its last one when the round read the producers. Now the one below it
    is, and its records are superseded."""
    log = open_log(tmp_path)
    writer = LogWriter(log)
    writer.append([(b"a", b"1")], producer_id=9, producer_epoch=0, base_sequence=0)
    writer.append([(b"a", b"2")])
    writer.roll()
    writer.append([(b"b", b"3")], producer_id=9, producer_epoch=0, base_sequence=1)
    log.clean_bound = UNBOUND

    def cut(_size: int) -> None:
        log.truncate_to(2)

    with pytest.raises(CleaningAbortedError, match="truncated"):
        Cleaner(ENGINE).clean(whole(log), NOW_MS, RoundHooks(check=cut))
    assert kept(log) == {9, -1}
