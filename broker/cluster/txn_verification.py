"""Answers of other brokers' transaction coordinators: which producers may write into which partitions (KIP-890).

    ask     a guard stands for the question; a marker of the producer in the partition removes it
    settle  counts only while the guard stands: a transaction that was ended meanwhile must not be begun by a late batch
    check   before each append; a guard that allows it stays until the marker comes

Sans-io; loop thread only. Source: AddPartitionsToTxnManager and VerificationStateEntry of Kafka 4.3.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.protocol.errors import CoordinatorLoadInProgressError, KafkaError

MAX_GUARDS = 100_000
"""Guards that are kept; one that was dropped is asked for again."""


class GuardKey(NamedTuple):
    """A producer in a partition, in one leader epoch: while another broker led it, markers came to that one."""

    topic: str
    partition: int
    producer_id: int
    leader_epoch: int


class Guard:
    """One question: the producer's epoch, and what came of it."""

    __slots__ = ("epoch", "error", "is_settled")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.is_settled = False
        self.error: KafkaError | None = None


class Verifications:
    """Guards of the partitions that this broker leads."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[GuardKey, Guard] = {}

    def is_wanted(self, key: GuardKey, epoch: int) -> bool:
        """Return whether the coordinator has to be asked: there is no guard of this epoch, or it was refused."""
        guard = self._guards.get(key)
        return guard is None or guard.epoch != epoch or guard.error is not None

    def ask(self, key: GuardKey, epoch: int) -> Guard:
        """Put a new guard in the place of the one before, and return it."""
        if key not in self._guards and len(self._guards) >= MAX_GUARDS:
            del self._guards[next(iter(self._guards))]
        guard = self._guards[key] = Guard(epoch)
        return guard

    def settle(self, guard: Guard, error: KafkaError | None) -> None:
        """Note what the coordinator answered."""
        guard.is_settled = True
        guard.error = error

    def check(self, key: GuardKey, epoch: int) -> None:
        """Raise what the coordinator answered, CoordinatorLoadInProgressError where it has not answered."""
        guard = self._guards.get(key)
        if guard is None or guard.epoch != epoch or not guard.is_settled:
            raise CoordinatorLoadInProgressError
        if guard.error is not None:
            del self._guards[key]
            raise guard.error

    def note_marker(self, key: GuardKey) -> None:
        """Remove the guard, as a marker ended the transaction: the producer's next one is asked for again."""
        self._guards.pop(key, None)
