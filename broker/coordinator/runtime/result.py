"""Results of a coordinator's state machine: records to append, the response, and a callback after the append.

A state machine returns a result; the runtime appends its records. Durable state (what the log holds) changes only in
``replay`` and ``replay_end_transaction``. The runtime calls them after each append, and for each record when it loads a
partition. Classic groups are the exception (``CoordinatorResult.replay``). Soft state (waiting requests, deadlines) is
not in the log. If a change of it depends on the append, ``on_append`` makes the change.

Source: the shape of Kafka's CoordinatorResult and CoordinatorRecord (KIP-848).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tidelog.protocol.errors import KafkaError

T = TypeVar("T")

AppendCallback = Callable[[KafkaError | None], None]
"""Callback after the append, with None or the error of the append."""


@dataclass(slots=True)
class CoordinatorRecord:
    """One record of an internal topic, decoded. It is a tombstone if ``value`` is None."""

    key: Any
    value: Any | None


@dataclass(slots=True, frozen=True)
class ProducerStamp:
    """Producer id and epoch of the transaction to which a batch of records belongs."""

    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class CoordinatorResult(Generic[T]):
    """Result of a request to a state machine, or of a timer.

    Records are appended as one batch: all or none. ``replay`` is False if the state already agrees with the records, or
    ``on_append`` changes it so (classic groups): then they are replayed only when the partition is loaded again.
    ``stamp`` names the producer if the records belong to a transaction.
    """

    response: T
    records: Sequence[CoordinatorRecord] = ()
    on_append: AppendCallback | None = None
    replay: bool = True
    stamp: ProducerStamp | None = None


Parts = Iterator[CoordinatorResult[None]]
"""A long decision in parts (module ``execution``). Each part is decided by the state of that moment, and its records
are appended before other requests are served."""

TimerResult = CoordinatorResult[None] | Parts | None
"""Result of a timer's action."""
