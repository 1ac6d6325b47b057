"""Retries of a producer with five requests in flight (fault F19 of docs/internals/faults.md): after a restart or a
truncation each of its last five batches is recognized.

A client that lost its connection sends everything again that was not acknowledged. It takes
OUT_OF_ORDER_SEQUENCE_NUMBER for the first of these as a fatal error. So the log must recognize a batch that it has as a
duplicate.
"""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path

import pytest

from tests.support.logs import LogBench, append, batch, producer_batch
from tidelog.log.producer.state import BATCHES_TO_RETAIN, MAX_SEQUENCE
from tidelog.log.unified_log import UnifiedLog

PRODUCERS = (7, 8, 9)
#: Sequence and number of records of each batch a producer may send again, by producer, with its offset.
Sent = dict[int, deque[tuple[int, int, int]]]


class Producers:
    """Idempotent producers that remember what they may have to send again."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        near_the_end = chance.random() < 0.5
        self._next = {number: MAX_SEQUENCE - chance.randint(0, 40) if near_the_end else 0 for number in PRODUCERS}
        self._epochs = dict.fromkeys(PRODUCERS, 0)
        self.sent: Sent = {producer: deque(maxlen=BATCHES_TO_RETAIN) for producer in PRODUCERS}

    def send(self, log: UnifiedLog) -> None:
        """Send one batch from one of the producers, or from a producer without an id."""
        chance = self._chance
        if chance.random() < 0.1:
            append(log, batch(chance.randint(1, 3)))
            return
        producer, count = chance.choice(PRODUCERS), chance.randint(1, 4)
        if chance.random() < 0.03:
            self._epochs[producer] += 1
            self._next[producer] = 0
            self.sent[producer].clear()
        sequence = self._next[producer]
        info = append(log, producer_batch(sequence, count, producer_id=producer, epoch=self._epochs[producer]))
        self._next[producer] = (sequence + count) & MAX_SEQUENCE
        self.sent[producer].append((sequence, count, info.first_offset))

    def forget_from(self, offset: int) -> None:
        """Forget the batches that a truncation removed: their sequence numbers are used again by new batches."""
        for producer, sent in self.sent.items():
            while sent and sent[-1][2] + sent[-1][1] > offset:
                self._next[producer] = sent.pop()[0]

    def retry(self, log: UnifiedLog) -> None:
        """Send all batches again: nothing is appended, and each response has the offset of the first time."""
        end = log.log_end_offset
        for producer, sent in self.sent.items():
            for sequence, count, offset in sent:
                again = producer_batch(sequence, count, producer_id=producer, epoch=self._epochs[producer])
                info = append(log, again)
                assert (info.duplicate, info.first_offset) == (True, offset), (producer, sequence)
        assert log.log_end_offset == end


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("seed", range(20))
def test_the_last_five_batches_are_duplicates_after_a_restart(tmp_path: Path, seed: int, clean: bool) -> None:
    chance = random.Random(seed)
    bench = LogBench(str(tmp_path), segment_bytes=chance.choice([600, 2000, 1 << 20]), index_interval_bytes=300)
    producers, log = Producers(chance), bench.open()
    for _ in range(3):
        for _ in range(chance.randint(1, 60)):
            producers.send(log)
        if chance.random() < 0.3:
            log.flush()
        recovery_point = log.recovery_point
        if clean:
            log.close()
        log = bench.open(clean=clean, recovery_point=recovery_point)
        producers.retry(log)


@pytest.mark.parametrize("seed", range(20))
def test_the_last_batches_that_a_truncation_left_are_duplicates(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    bench = LogBench(str(tmp_path), segment_bytes=600, index_interval_bytes=300)
    producers, log = Producers(chance), bench.open()
    for _ in range(60):
        producers.send(log)
    offset = log.log_end_offset - chance.randint(1, 4)
    log.truncate_to(offset)
    producers.forget_from(log.log_end_offset)
    log.update_high_watermark(log.log_end_offset)
    producers.retry(log)
    for _ in range(10):
        producers.send(log)
    producers.retry(log)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_batches_before_and_after_sequences_wrap_are_known_over_segments_and_restarts(
    tmp_path: Path, clean: bool
) -> None:
    """The first sequence of all, 0, follows the largest one: the batches before it count, too."""
    bench = LogBench(str(tmp_path), segment_bytes=100)
    log = bench.open()
    sent: deque[tuple[int, int]] = deque(maxlen=BATCHES_TO_RETAIN)
    for number in range(12):
        sequence = (MAX_SEQUENCE - 5 + number) & MAX_SEQUENCE
        sent.append((sequence, append(log, producer_batch(sequence)).first_offset))
        append(log, batch(2))
        if clean:
            log.close()
        log = bench.open(clean=clean, recovery_point=0)
        for again, offset in sent:
            info = append(log, producer_batch(again))
            assert (info.duplicate, info.first_offset) == (True, offset), again
