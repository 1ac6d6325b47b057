"""Long decisions continue only while the shard that began them is served."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.coordinators import ManualLoop
from tidelog.broker.coordinator.runtime.execution import (
    LongDecision,
    execute_decisions,
    execute_timed,
    refuse_uncommitted,
)
from tidelog.broker.coordinator.runtime.internal_topic import TopicLog
from tidelog.broker.coordinator.runtime.result import CoordinatorResult
from tidelog.broker.coordinator.runtime.topic_log import InternalTopicLog
from tidelog.broker.loop.steps import StepRunner
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import KafkaStorageError, NotCoordinatorError

SHARD: Any = object()
LOG_TYPES: tuple[type[TopicLog], ...] = (InternalTopicLog,)


class Writer:
    """A runtime that keeps what is written, until its shard is given up."""

    name = "__consumer_offsets"

    def __init__(self) -> None:
        self.loop = ManualLoop(ManualTime())
        self.steps = StepRunner(self.loop.call_soon, self.loop.time.monotonic_ms)
        self.written: list[Any] = []
        self.failure: Exception | None = None
        self.serves = True

    def write(self, partition: int, shard: Any, result: CoordinatorResult[Any]) -> None:
        if self.failure is not None:
            raise self.failure
        self.written.append(result.response)

    def is_served(self, partition: int, shard: Any) -> bool:
        return self.serves


def parts_of(count: int) -> Any:
    return (CoordinatorResult(number) for number in range(count))


def test_a_long_decision_of_a_timer_ends_with_its_shard() -> None:
    writer, shard = Writer(), SHARD
    execute_timed(writer, 0, shard, parts_of(3))
    writer.loop.run_soon()
    assert writer.written == [0, 1, 2]
    writer.serves = False
    execute_timed(writer, 0, shard, parts_of(3))
    writer.loop.run_soon()
    assert writer.written == [0, 1, 2, 0]


def test_a_timer_that_decides_nothing_writes_nothing() -> None:
    writer = Writer()
    execute_timed(writer, 0, SHARD, None)
    assert writer.written == []


@pytest.mark.parametrize("is_served", [True, False])
def test_a_decision_begins_again_where_its_shard_was_given_up(*, is_served: bool) -> None:
    writer = Writer()
    begun: list[str] = []
    writer.failure, writer.serves = NotCoordinatorError(), is_served
    decision = LongDecision(0, SHARD, parts_of(2), lambda: begun.append("again"), lambda: begun.append("later"))
    steps = execute_decisions(writer, [decision])
    if is_served:  # the log said so
        with pytest.raises(NotCoordinatorError):
            list(steps)
        assert begun == ["later"]
    else:
        list(steps)
        assert begun == ["again"]


def test_a_record_that_may_be_lost_makes_clients_look_for_their_coordinator() -> None:
    with pytest.raises(NotCoordinatorError):
        refuse_uncommitted(KafkaStorageError())
