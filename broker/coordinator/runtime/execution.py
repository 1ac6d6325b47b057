"""Execution of CoordinatorResults for which no client waits, such as those of timers, and of long decisions in parts.

A long decision is a change of many groups, transactional ids or share partitions, such as after the deletion of a
topic. The decision yields one CoordinatorResult for each part (``Parts``). Between two parts other requests are served,
and the runtime may give up the shard after an unexpected error in one of these.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from tidelog.broker.coordinator.runtime.replay import Shard
from tidelog.broker.coordinator.runtime.result import AppendCallback, CoordinatorResult, Parts, TimerResult
from tidelog.broker.loop.steps import StepRunner, Steps, strip_traceback
from tidelog.protocol.errors import KafkaError, NotCoordinatorError

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)
S_contra = TypeVar("S_contra", bound=Shard, contravariant=True)


class Writer(Protocol[S_contra]):
    """The part of a runtime that executes results."""

    name: str
    """The internal topic, for log lines."""
    steps: StepRunner

    def write(self, partition: int, shard: S_contra, result: CoordinatorResult[Any]) -> None: ...

    def is_served(self, partition: int, shard: S_contra) -> bool: ...


class LongDecision(NamedTuple, Generic[S]):
    """A long decision of a loaded shard. If this shard is given up, ``begin_again`` has the partition's next shard
    decide again. If the records of a part cannot be appended, ``postpone`` has the shard decide again later.
    """

    partition: int
    shard: S
    parts: Parts
    begin_again: Callable[[], None]
    postpone: Callable[[], None]


class ExecutedInAll(Generic[S]):
    """A long decision for several partitions, and a function to call once each of them has executed it to its end.

    A partition that is not loaded decides when it is loaded. One that was given up or could not be written decides
    again later: only the run in which all parts were appended counts.
    """

    __slots__ = ("_decide", "_on_executed", "_waiting")

    def __init__(
        self, decide: Callable[[S, int], Parts], partitions: Iterable[int], on_executed: Callable[[], None]
    ) -> None:
        self._decide = decide
        self._waiting = set(partitions)
        self._on_executed = on_executed
        if not self._waiting:
            on_executed()

    def decide_in(self, partition: int) -> Callable[[S, int], Parts]:
        """Return the decision of one partition."""

        def decide(shard: S, end_offset: int) -> Parts:
            yield from self._decide(shard, end_offset)
            self._note(partition)

        return decide

    def _note(self, partition: int) -> None:
        if partition in self._waiting:
            self._waiting.remove(partition)
            if not self._waiting:
                self._on_executed()


def ignore_execution() -> None:
    """Do nothing: the caller of ``execute_in_all`` need not know when all partitions have executed its decision."""


def refusal_of(on_append: AppendCallback, error: KafkaError) -> KafkaError | None:
    """Call ``on_append`` with the error of a failed append. Returns the KafkaError that it raises, or None."""
    try:
        on_append(error)
    except KafkaError as refusal:
        return refusal
    return None


def refuse_uncommitted(_error: KafkaError) -> NoReturn:
    """Raise NotCoordinatorError, so that clients look for their coordinator again: records that were appended for
    them are not committed, and may be lost.
    """
    raise NotCoordinatorError


def execute_timed(runtime: Writer[S], partition: int, shard: S, result: TimerResult) -> None:
    """Execute the result of a timer or of ``on_loaded``, for which no client waits. A failed append is logged."""
    if result is None:
        return
    if not isinstance(result, CoordinatorResult):
        runtime.steps.run(execute_parts(runtime, partition, shard, result))
        return
    try:
        runtime.write(partition, shard, result)
    except KafkaError as error:
        logger.warning(
            "%s-%d: a change by a timer, or after a load, cannot be stored: %s", runtime.name, partition, error
        )


def execute_decisions(runtime: Writer[S], decisions: list[LongDecision[S]]) -> Steps[None]:
    """Execute long decisions one after another, each as long as its shard is served. If a shard was given up meanwhile,
    the partition's next shard begins the decision again. If a part cannot be appended, the other decisions are
    executed, and the first KafkaError is raised at the end."""
    failure: KafkaError | None = None
    for decision in decisions:
        for part in decision.parts:
            try:
                runtime.write(decision.partition, decision.shard, part)
            except KafkaError as error:
                if isinstance(error, NotCoordinatorError) and not runtime.is_served(decision.partition, decision.shard):
                    decision.begin_again()
                else:
                    decision.postpone()
                    failure = failure or strip_traceback(error)
                break
            yield None
    if failure is not None:
        raise failure


def execute_parts(runtime: Writer[S], partition: int, shard: S, parts: Parts) -> Steps[None]:
    """Execute a long decision in parts, as long as the shard is served."""
    for part in parts:
        execute_timed(runtime, partition, shard, part)
        yield None
        if not runtime.is_served(partition, shard):
            return
