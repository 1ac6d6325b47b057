"""Batches that are read from the log after a snapshot was loaded: the last five of each producer, in whichever
segments."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from tests.support.logs import LogBench, append, batch, producer_batch
from tidelog.log.producer import replay
from tidelog.log.producer.replay import recall_batches
from tidelog.log.producer.state import BATCHES_TO_RETAIN, BatchMetadata, ProducerStateManager
from tidelog.log.unified_log import UnifiedLog

FAR = 1 << 30
SPARSE: dict[str, Any] = {"index.interval.bytes": 300}
SMALL: dict[str, Any] = {"segment.bytes": 16_384, **SPARSE}


def filled(tmp_path: Path, dice: random.Random) -> UnifiedLog:
    """Write a log of several segments, in which producers begin, write more or less often, and end."""
    bench = LogBench(str(tmp_path), **SMALL)
    log = bench.open()
    sequences: dict[int, int] = {}
    for step in range(150):
        producer = dice.choice([1, 1, 1, 2, 2, 3 + step // 40])
        if dice.random() < 0.3:
            append(log, batch(value=bytes(dice.randint(1, 400))))
            continue
        count = dice.randint(1, 4)
        append(log, producer_batch(sequences.get(producer, 0), count, producer_id=producer))
        sequences[producer] = sequences.get(producer, 0) + count
    return log


def forgotten(log: UnifiedLog) -> ProducerStateManager:
    """Forget all but the last batch of each producer, as a snapshot does. Returns the log's producer state."""
    state = log.producer_state
    for entry in state.producers.values():
        while len(entry.batches) > 1:
            entry.batches.popleft()
    return state


def last_batches(log: UnifiedLog) -> dict[int, list[BatchMetadata]]:
    return {number: list(entry.batches) for number, entry in log.producer_state.producers.items()}


@pytest.mark.parametrize("at_once", [1, 700, 5_000, FAR])
@pytest.mark.parametrize("seed", range(3))
def test_the_last_five_of_each_producer_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, at_once: int
) -> None:
    monkeypatch.setattr(replay, "RECALLED_AT_ONCE_BYTES", at_once)
    log = filled(tmp_path, random.Random(seed))
    expected = last_batches(log)
    recall_batches(forgotten(log), log.segments, FAR)
    assert last_batches(log) == expected
    assert any(len(batches) == BATCHES_TO_RETAIN for batches in expected.values())


def test_no_more_is_read_than_producers_wrote_lately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "RECALLED_AT_ONCE_BYTES", 1_000)
    log = LogBench(str(tmp_path), **SPARSE).open()
    for sequence in range(400):
        append(log, producer_batch(sequence))
    expected = last_batches(log)
    read: deque[int] = deque()
    plain = replay._batches_of

    def counted(*arguments: object) -> object:
        read.append(1)
        return plain(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(replay, "_batches_of", counted)
    recall_batches(forgotten(log), log.segments, FAR)
    assert last_batches(log) == expected
    assert len(read) <= 2
