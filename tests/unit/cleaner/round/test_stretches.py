"""Stretches of superseded records that the copy pass does not read: they are found exactly, and results and counts are
equal without them."""

from __future__ import annotations

import random
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cleaning import NOW_MS, LogWriter, compacted, log_bytes, open_log, records_of, whole
from tidelog.cleaner.engine import batch_table as at
from tidelog.cleaner.engine.arrays import IntegerArray
from tidelog.cleaner.engine.batch_table import BatchState
from tidelog.cleaner.engine.engine import ENGINE, Engine, ReferenceEngine
from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions
from tidelog.cleaner.round.stretches import Stretch, Stretches

NO_OFFSETS: IntegerArray = np.zeros(0, np.int64)
ENGINES = [ReferenceEngine(), ENGINE]


def rows(*changes: dict[int, int]) -> IntegerArray:
    """Build a batch of 10 records and 100 bytes, from offset 1,000 on, for each argument; then change its columns."""
    table: IntegerArray = np.zeros((len(changes), at.COLUMNS), np.int64)
    for number, row in enumerate(table):
        row[at.POSITION], row[at.SIZE], row[at.COUNT] = 100 * number, 100, 10
        row[at.BASE_OFFSET] = row[at.ORDINAL] = 1000 + 10 * number
        row[at.LAST_OFFSET_DELTA] = 9
        for column, value in changes[number].items():
            row[column] = value
    return table


def find_superseded(table: IntegerArray, bits: int, last_offsets: IntegerArray = NO_OFFSETS) -> list[Stretch]:
    """Return the stretches passed over when the low bits of ``bits`` are those of the records from 1,000 on."""
    stretches = Stretches()
    stretches.note(7, 5000, table)
    array = np.frombuffer(bits.to_bytes(16, "little"), np.uint8)
    return stretches.find_superseded(7, at.SupersededBits(array, 1000), last_offsets)


def test_a_stretch_without_a_living_record_vanishes() -> None:
    assert find_superseded(rows({}, {}), (1 << 20) - 1) == [Stretch(5000, 5200, 1000, 1020, 1000, 1019, 2)]


@given(first=st.integers(0, 40), count=st.integers(0, 60), missing=st.none() | st.integers(0, 59))
def test_every_record_must_be_superseded(first: int, count: int, missing: int | None) -> None:
    bits = ((1 << count) - 1) << first
    if missing is not None and missing < count:
        bits &= ~(1 << (first + missing))
    found = find_superseded(rows({at.ORDINAL: 1000 + first, at.COUNT: count}), bits)
    assert bool(found) == (missing is None or missing >= count)


@pytest.mark.parametrize(
    "change",
    [
        {at.STATE: int(BatchState.POISON)},
        {at.STATE: int(BatchState.CONVERTED)},
        {at.ATTRIBUTES: at.CONTROL_MASK},
        {at.ATTRIBUTES: at.TRANSACTIONAL_MASK},
        {at.DECISION: at.RETAIN_EMPTY},
    ],
)
def test_records_that_may_stay_for_another_reason_are_read(change: dict[int, int]) -> None:
    assert find_superseded(rows({}, change, {}), (1 << 30) - 1) == []


@pytest.mark.parametrize(("last", "stays"), [(999, False), (1000, True), (1019, True), (1020, False)])
def test_a_stretch_with_a_producers_last_batch_is_read(last: int, *, stays: bool) -> None:
    found = find_superseded(rows({}, {}), (1 << 20) - 1, np.array([5, last, 5000], np.int64))
    assert bool(found) != stays


def test_the_number_of_remembered_stretches_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.cleaner.round.stretches.MAX_STRETCHES", 2)
    stretches = Stretches()
    for segment in range(3):
        stretches.note(segment, 0, rows({}))
    bits = at.SupersededBits(np.full(4, 0xFF, np.uint8), 1000)
    assert [len(stretches.find_superseded(segment, bits, NO_OFFSETS)) for segment in range(4)] == [1, 1, 0, 0]


def write(directory: Path, seed: int) -> None:
    """Write a log in which the cleaner removes long stretches, between records that stay for different reasons."""
    chance = random.Random(seed)
    log = open_log(directory, compacted(segment_bytes=9000))
    writer = LogWriter(log)
    for number in range(220):
        kind = chance.random()
        pairs: list[Any] = [(b"%d" % chance.randrange(4), b"v" * chance.randrange(90)) for _ in range(3)]
        if kind < 0.8:
            writer.append(pairs, compression=chance.choice([0, 0, 0, 1, 3, 4]))
        elif kind < 0.85:
            writer.append([(b"only %d" % number, None)])
        elif kind < 0.9:
            writer.transactional(chance.randrange(2), pairs)
        elif kind < 0.92:
            writer.end(chance.randrange(2), commit=chance.random() < 0.5)
        else:
            writer.transactional(5, pairs, is_transactional=False)
    for producer in range(2):
        writer.end(producer, commit=True)
    writer.roll()
    log.close()


@pytest.mark.parametrize("engine", ENGINES, ids=["reference", "as built"])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("map_bytes", [64 * 1024, 512])
def test_a_round_leaves_the_same_log_with_and_without_stretches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine, seed: int, map_bytes: int
) -> None:
    outcomes, read = [], []
    write(tmp_path, seed)
    for max_stretches in (0, 1000):
        monkeypatch.setattr("tidelog.cleaner.round.stretches.MAX_STRETCHES", max_stretches)
        directory = tmp_path / f"cleaned-{max_stretches}"
        shutil.copytree(tmp_path, directory, ignore=shutil.ignore_patterns("cleaned-*"))
        log = open_log(directory, compacted(segment_bytes=9000))
        log.update_high_watermark(log.log_end_offset)
        options = CleanerOptions(map_bytes=map_bytes, io_buffer_bytes=1024)
        facts = asdict(Cleaner(engine, options).clean(whole(log), NOW_MS))
        read.append(facts.pop("bytes_read"))
        outcomes.append((facts, log_bytes(log), records_of(log)))
        log.close()
    assert outcomes[0] == outcomes[1]
    assert read[1] < read[0], "stretches vanish in this log"
