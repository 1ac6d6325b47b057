"""Refused batches of transactions v2: which later ones wait, and for how long."""

from __future__ import annotations

import pytest

from tidelog.broker.coordinator import refused_batches
from tidelog.broker.coordinator.refused_batches import ProducerInPartition, RefusedBatches
from tidelog.protocol.errors import OutOfOrderSequenceNumberError

PRODUCER = ProducerInPartition("t", 0, 7, 1)


def test_later_batches_wait_for_the_lowest_refused_one() -> None:
    refused = RefusedBatches()
    refused.check(PRODUCER, 81)
    refused.note(PRODUCER, 20)
    refused.note(PRODUCER, 0)
    refused.note(PRODUCER, 81)
    for sequence in (1, 20, 81):
        with pytest.raises(OutOfOrderSequenceNumberError, match="sequence 0 was refused"):
            refused.check(PRODUCER, sequence)
    refused.check(PRODUCER, 0)
    refused.forget(PRODUCER)
    refused.check(PRODUCER, 81)


@pytest.mark.parametrize("other", [("u", 0, 7, 1), ("t", 1, 7, 1), ("t", 0, 8, 1), ("t", 0, 7, 2)])
def test_other_partitions_producers_and_transactions_do_not_wait(other: tuple[str, int, int, int]) -> None:
    refused = RefusedBatches()
    refused.note(PRODUCER, 0)
    refused.check(ProducerInPartition(*other), 5)


def test_the_oldest_is_forgotten_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_batches, "MAX_PRODUCERS", 2)
    refused = RefusedBatches()
    for partition in range(3):
        refused.note(PRODUCER._replace(partition=partition), 0)
    refused.check(PRODUCER, 5)
    with pytest.raises(OutOfOrderSequenceNumberError):
        refused.check(PRODUCER._replace(partition=2), 5)
