"""Results of a coordinator's state machine: records to append, the answer, and what to settle after the append.

A state machine decides and returns; the runtime appends. Durable state changes only in ``replay(record)``, which the
runtime calls after the append and the loader calls for each record of the log: serving and loading go one way. Soft
state (who waits for a rebalance, deadlines) is not in the log; whatever of it depends on the append is settled in
``on_append``, which learns whether the append went well.

Source: the shape of Kafka's CoordinatorResult and CoordinatorRecord (KIP-848).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tidelog.protocol.errors import KafkaError

T = TypeVar("T")

#: Settles soft state once the append is done: None, or why it failed.
AppendCallback = Callable[[KafkaError | None], None]


@dataclass(slots=True)
class CoordinatorRecord:
    """One record of an internal topic as values; ``value`` None is a tombstone."""

    key: Any
    value: Any | None


@dataclass(slots=True, frozen=True)
class ProducerStamp:
    """The transaction a batch of records belongs to."""

    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class CoordinatorResult(Generic[T]):
    """A decision of a state machine.

    ``replay`` is False where the soft state already holds what the records say (a classic group's members): the
    records then serve only the next load. Records are appended as one batch: all or none.
    """

    response: T
    records: Sequence[CoordinatorRecord] = ()
    on_append: AppendCallback | None = None
    replay: bool = True
    stamp: ProducerStamp | None = None


#: A long decision, part by part: each part rests on the state at its moment, and is written before others are served.
Parts = Iterator[CoordinatorResult[None]]

#: What a timer's action may return.
TimerResult = CoordinatorResult[None] | Parts | None
