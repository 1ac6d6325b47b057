"""Appends of transactions' records, and markers, that fail: what is served is what the log says, and what is decided is
done."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.support.coordinators import MemoryTopicLog, RecordingMarkers, TransactionWorld
from tidelog.broker.coordinator.transaction.shard import ProducerIdAndEpoch
from tidelog.broker.coordinator.transaction.state import PREPARED, PartitionKey, Transaction
from tidelog.broker.loop.deferred import Deferred
from tidelog.protocol.errors import KafkaError, KafkaStorageError

SEEDS = range(40)
OPERATIONS = 60
SOFT = {"last_producer_epoch", "unmarked"}
"""Attributes of transactions that are not in the log."""
PARTITIONS = [("t", 0), ("t", 1), ("u", 0)]


class FailingLog(MemoryTopicLog):
    """A log that refuses the appends that chance selects."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(partitions=1)
        self.chance = chance
        self.failing = chance.choice([0.2, 0.5])

    def append(self, partition: int, batch: bytearray, transaction_version: int = 0) -> int:
        if self.chance.random() < self.failing:
            raise KafkaStorageError
        return super().append(partition, batch, transaction_version)


class FailingMarkers(RecordingMarkers):
    """A writer of markers that fails as often as the log."""

    def __init__(self, log: FailingLog) -> None:
        super().__init__()
        self.log = log

    def write(self, partition: PartitionKey, producer: ProducerIdAndEpoch, **fields: Any) -> Deferred[None]:
        if self.log.chance.random() < self.log.failing:
            raise KafkaStorageError
        return super().write(partition, producer, **fields)


class Producers:
    """Producers of one transactional id, one after the other. ``steps`` are their requests."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.log = FailingLog(random.Random(seed))
        self.markers = FailingMarkers(self.log)
        self.version = self.chance.choice([1, 2])
        self.producer: ProducerIdAndEpoch = (-1, -1)
        self.added: set[PartitionKey] = set()
        self.ended: list[tuple[ProducerIdAndEpoch, set[PartitionKey], bool]] = []
        """Transactions whose EndTxn was answered: producer, partitions, and whether it was a commit."""
        self.world = self.start(TransactionWorld(self.log))
        self.steps: list[Callable[[], object]] = [
            self.init, self.init_again, *[self.add] * 4, *[self.end] * 4, *[self.wait] * 2, self.restart,
        ]  # fmt: skip

    def start(self, world: TransactionWorld) -> TransactionWorld:
        world.coordinator._markers = self.markers
        return world

    def init(self) -> None:
        self.added = set()
        self.producer = (-1, -1)
        self.producer = self.world.init()

    def init_again(self) -> None:
        self.added = set()
        self.producer = self.world.init(self.producer)

    def add(self) -> None:
        wanted = set(self.chance.sample(PARTITIONS, 2))
        self.world.add(self.producer, *wanted, version=self.version)
        self.added |= wanted

    def end(self) -> None:
        if not self.added:
            return
        commit = self.chance.random() < 0.5
        ending, added = self.producer, self.added
        self.producer = self.world.end(ending, commit=commit, version=self.version)
        self.added = set()
        self.ended.append((self.producer if self.version == 2 else ending, added, commit))

    def wait(self) -> None:
        self.world.advance(self.chance.choice([1_000, 5_000, 70_000]))

    def restart(self) -> None:
        again = TransactionWorld(self.log, self.world.time)
        again.next_producer_id = self.world.next_producer_id + 1000
        self.world = self.start(again)
        self.world.runtime.load_all()
        self.world.loop.run_soon()


def durable(world: TransactionWorld) -> dict[str, dict[str, Any]]:
    names = [name for name in Transaction.__slots__ if name not in SOFT]
    found = world.runtime.shard(0).transactions
    return {key: {name: getattr(one, name) for name in names} for key, one in found.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_decided_is_done_after_failed_appends(seed: int) -> None:
    producers = Producers(seed)
    for _ in range(OPERATIONS):
        with suppress(KafkaError):
            producers.chance.choice(producers.steps)()
        producers.world.loop.run_soon()
        again = TransactionWorld(producers.log, producers.world.time)
        again.coordinator.finish = lambda _: None  # type: ignore[method-assign,misc,assignment]
        assert durable(producers.world) == durable(again)
    producers.log.failing = 0
    producers.world.advance(120_000)
    assert all(one.state not in PREPARED for one in producers.world.runtime.shard(0).transactions.values())
    written = set(producers.markers.written)
    if producers.version == 2:  # otherwise several transactions have one epoch
        assert not {(partition, producer, not commit) for partition, producer, commit in written} & written
    for producer, partitions, commit in producers.ended:
        assert {(partition, producer, commit) for partition in partitions} <= written
