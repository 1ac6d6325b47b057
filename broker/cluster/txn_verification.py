"""Answers of transaction coordinators: which producers may write into which partitions (KIP-890).

    ask     creates a guard, which keeps one question and later its answer. A marker of the producer in the
            partition removes the guard
    settle  notes the answer in the guard. It has no effect if the guard was removed meanwhile: a late batch must not
            begin a transaction again that a marker has ended
    check   is called before an append of a transaction whose coordinator is another broker; a guard that allows the
            append stays until the marker comes

Sans-io; loop thread only. Source: AddPartitionsToTxnManager and VerificationStateEntry of Kafka 4.3.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.protocol.errors import CoordinatorLoadInProgressError, KafkaError

MAX_GUARDS = 100_000
"""Largest number of guards. A new one then replaces the oldest, whose question is asked again when needed."""


class GuardKey(NamedTuple):
    """A producer in a partition, in one leader epoch: markers of other epochs may have gone to other leaders."""

    topic: str
    partition: int
    producer_id: int
    leader_epoch: int


class Guard:
    """One question to a transaction coordinator: the producer's epoch, and the answer."""

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
        """Return whether the coordinator must be asked: there is no guard of this epoch, or its answer was an error."""
        guard = self._guards.get(key)
        return guard is None or guard.epoch != epoch or guard.error is not None

    def ask(self, key: GuardKey, epoch: int) -> Guard:
        """Return a new guard for a question to the coordinator; it replaces an earlier guard of ``key``."""
        if key not in self._guards and len(self._guards) >= MAX_GUARDS:
            del self._guards[next(iter(self._guards))]
        guard = self._guards[key] = Guard(epoch)
        return guard

    def settle(self, guard: Guard, error: KafkaError | None) -> None:
        """Note what the coordinator answered."""
        guard.is_settled = True
        guard.error = error

    def check(self, key: GuardKey, epoch: int) -> None:
        """Raise the error that the coordinator answered, or CoordinatorLoadInProgressError while there is no answer."""
        guard = self._guards.get(key)
        if guard is None or guard.epoch != epoch or not guard.is_settled:
            raise CoordinatorLoadInProgressError
        if guard.error is not None:
            del self._guards[key]
            raise guard.error

    def note_marker(self, key: GuardKey) -> None:
        """Remove the guard, as a marker ended the transaction: for the next one the coordinator is asked again."""
        self._guards.pop(key, None)
