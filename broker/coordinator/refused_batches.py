"""Batches of transactions v2 that were refused before they were appended: later ones of the producer have to wait.

A producer sends up to five requests for a partition before the first is answered. The first is refused if the
coordinator still ends the producer's last transaction, and a later one may arrive when it has ended it. A log without
records of the producer accepts any sequence number: after the later batch the refused one could never be appended, and
its producer would repeat it until the transaction times out.

Each transaction v2 has an epoch of its own, so what was refused in one does not matter to the next. Sans-io; loop
thread only. Source: VerificationStateEntry.lowestSequence of Kafka 4.3, KIP-890.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.protocol.errors import OutOfOrderSequenceNumberError

MAX_PRODUCERS = 100_000
"""Largest number of producers in partitions with a refused batch. The oldest is forgotten first."""


class ProducerInPartition(NamedTuple):
    """A producer's transaction in a partition."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int


class RefusedBatches:
    """Lowest sequence number of the refused batches of each producer in each partition."""

    __slots__ = ("_lowest",)

    def __init__(self) -> None:
        self._lowest: dict[ProducerInPartition, int] = {}

    def check(self, producer: ProducerInPartition, sequence: int) -> None:
        """Raise OutOfOrderSequenceNumberError, which producers retry, if an earlier batch was refused."""
        lowest = self._lowest.get(producer)
        if lowest is not None and sequence > lowest:
            raise OutOfOrderSequenceNumberError(f"the batch with sequence {lowest} was refused and comes first")

    def note(self, producer: ProducerInPartition, sequence: int) -> None:
        """Note that the batch that begins with ``sequence`` was refused."""
        lowest = self._lowest.get(producer)
        if lowest is None:
            if len(self._lowest) >= MAX_PRODUCERS:
                del self._lowest[next(iter(self._lowest))]
            self._lowest[producer] = sequence
        else:
            self._lowest[producer] = min(lowest, sequence)

    def forget(self, producer: ProducerInPartition) -> None:
        """Note that the first refused batch may be appended now. Harmless without one."""
        self._lowest.pop(producer, None)
