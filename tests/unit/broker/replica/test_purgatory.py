from __future__ import annotations

import pytest

from tests.unit.broker.manual_loop import ManualLoop
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.steps import SLICE_MS
from tidelog.broker.replica.purgatory import Purgatory
from tidelog.protocol.errors import UnknownServerError


class Operation:
    def __init__(self) -> None:
        self.ready = False
        self.tried = 0
        self.expired = 0

    def try_complete(self) -> bool:
        self.tried += 1
        return self.ready

    def expire(self) -> None:
        self.expired += 1


class RaisingOperation(Operation):
    """An operation that always raises."""

    def try_complete(self) -> bool:
        raise MemoryError

    def expire(self) -> None:
        raise RuntimeError


def ignore(_: Exception) -> None:
    """Do nothing: the operations raise nothing."""


def test_touching_a_key_tries_the_operation_in_the_next_turn(loop: ManualLoop, purgatory: Purgatory) -> None:
    operation = Operation()
    operation.ready = True
    purgatory.park(operation, ["a", "b"], 100, ignore)
    purgatory.touch("b")
    assert operation.tried == 0
    loop.run_soon()
    assert operation.tried == 1
    assert len(purgatory) == 0


def test_touches_of_one_turn_try_an_operation_once(loop: ManualLoop, purgatory: Purgatory) -> None:
    operation = Operation()
    purgatory.park(operation, ["a", "b"], 100, ignore)
    for _ in range(3):
        purgatory.touch("a")
        purgatory.touch("b")
    assert len(loop.soon) == 1
    loop.run_soon()
    assert operation.tried == 1
    assert len(purgatory) == 1


def test_very_many_operations_of_one_key_are_looked_at_in_slices(loop: ManualLoop, purgatory: Purgatory) -> None:
    tried: list[int] = []

    class Long(Operation):
        """An operation that takes a millisecond to look at."""

        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def try_complete(self) -> bool:
            tried.append(self.number)
            loop.time.advance(1)
            return True

    for number in range(100):
        purgatory.park(Long(number), ["a"], 10_000, ignore)
    purgatory.touch("a")
    lengths = []
    while loop.soon:
        before = len(tried)
        loop.run_soon()
        lengths.append(len(tried) - before)
    assert tried == list(range(100))
    assert max(lengths) <= SLICE_MS + 1


def test_an_operation_touched_between_two_slices_is_tried_again(loop: ManualLoop, purgatory: Purgatory) -> None:
    class Long(Operation):
        """An operation that takes a whole slice to look at."""

        def try_complete(self) -> bool:
            loop.time.advance(SLICE_MS)
            return super().try_complete()

    operations = [Long() for _ in range(3)]
    for operation in operations:
        purgatory.park(operation, ["a"], 10_000, ignore)
    purgatory.touch("a")
    loop.run_soon()
    assert [operation.tried for operation in operations] == [1, 0, 0]
    purgatory.touch("a")
    while loop.soon:
        loop.run_soon()
    assert [operation.tried for operation in operations] == [2, 1, 1]


def test_operations_left_by_an_interrupted_turn_are_tried_later(loop: ManualLoop, purgatory: Purgatory) -> None:
    class Ending(Operation):
        """An operation in which something ends the turn of the loop, as a signal's handler does."""

        def try_complete(self) -> bool:
            super().try_complete()
            if self.tried == 1:
                raise KeyboardInterrupt
            return False

    operations = [Ending(), Operation()]
    for operation in operations:
        purgatory.park(operation, ["a"], 10_000, ignore)
    purgatory.touch("a")
    with pytest.raises(KeyboardInterrupt):
        loop.run_soon()
    loop.run_soon()
    assert [operation.tried for operation in operations] == [1, 1]
    purgatory.touch("a")
    loop.run_soon()
    assert [operation.tried for operation in operations] == [2, 2]


def test_touching_a_key_without_operations_does_nothing(loop: ManualLoop, purgatory: Purgatory) -> None:
    purgatory.touch("a")
    assert loop.soon == []


def test_an_operation_expires_at_its_deadline(loop: ManualLoop, purgatory: Purgatory) -> None:
    operation = Operation()
    purgatory.park(operation, ["a"], 100, ignore)
    loop.advance(99)
    assert operation.expired == 0
    loop.advance(5)
    assert operation.expired == 1
    assert purgatory.expired_total == 1
    assert len(purgatory) == 0


def test_a_completed_operation_does_not_expire(loop: ManualLoop, purgatory: Purgatory) -> None:
    operation = Operation()
    operation.ready = True
    purgatory.park(operation, ["a"], 100, ignore)
    purgatory.touch("a")
    loop.run_soon()
    loop.advance(1000)
    assert (operation.expired, purgatory.expired_total, len(purgatory)) == (0, 0, 0)


def test_a_cancelled_operation_is_neither_tried_nor_expired(loop: ManualLoop, purgatory: Purgatory) -> None:
    operation = Operation()
    parked = purgatory.park(operation, ["a"], 100, ignore)
    purgatory.touch("a")
    purgatory.cancel(parked)
    purgatory.cancel(parked)
    loop.run_soon()
    loop.advance(1000)
    assert (operation.tried, operation.expired) == (0, 0)


def test_a_clock_jump_moves_no_deadline(loop: ManualLoop, purgatory: Purgatory) -> None:
    operation = Operation()
    purgatory.park(operation, ["a"], 100, ignore)
    loop.time.jump_wall(86_400_000)
    loop.advance(50)
    assert operation.expired == 0


def test_a_key_named_twice_is_left_whole(loop: ManualLoop, purgatory: Purgatory) -> None:
    parked = purgatory.park(Operation(), ["a", "a"], 100, ignore)
    purgatory.cancel(parked)
    assert len(purgatory) == 0
    purgatory.touch("a")
    assert loop.soon == []


def test_an_operation_that_is_expired_twice_expires_once(loop: ManualLoop, purgatory: Purgatory) -> None:
    operation = Operation()
    parked = purgatory.park(operation, ["a"], 100, ignore)
    purgatory.expire(parked)
    purgatory.expire(parked)
    loop.advance(1000)
    assert operation.expired == 1
    assert len(purgatory) == 0


def test_expire_all_answers_everything(purgatory: Purgatory) -> None:
    operations = [Operation() for _ in range(3)]
    for operation in operations:
        purgatory.park(operation, ["a"], 1000, ignore)
    purgatory.expire_all()
    assert [operation.expired for operation in operations] == [1, 1, 1]
    assert len(purgatory) == 0


def test_a_hurried_operation_completes_at_once(purgatory: Purgatory) -> None:
    operation, answer = Operation(), Deferred[int]()
    assert purgatory.park_answer(operation, ["a"], 100, answer) is answer
    answer.hurry()
    assert operation.expired == 1
    assert len(purgatory) == 0


def test_an_answer_whose_client_is_gone_is_forgotten(loop: ManualLoop, purgatory: Purgatory) -> None:
    operation, answer = Operation(), Deferred[int]()
    purgatory.park_answer(operation, ["a"], 100, answer)
    answer.abandon()
    loop.advance(1000)
    purgatory.touch("a")
    loop.run_soon()
    assert (operation.expired, operation.tried, len(purgatory)) == (0, 0, 0)


@pytest.mark.parametrize("occasion", ["touched", "expired", "closed"])
def test_an_operation_that_raises_is_refused_and_keeps_no_other_waiting(
    loop: ManualLoop, purgatory: Purgatory, occasion: str
) -> None:
    answers: list[Deferred[None]] = [Deferred() for _ in range(3)]
    others = [Operation() for _ in range(3)]
    for answer, other in zip(answers, others, strict=True):
        purgatory.park_answer(RaisingOperation(), ["a"], 100, answer)
        purgatory.park(other, ["a"], 100, ignore)
    if occasion == "touched":
        purgatory.touch("a")
        loop.run_soon()
    elif occasion == "expired":
        loop.advance(200)
    else:
        purgatory.expire_all()
    for answer in answers:
        with pytest.raises(UnknownServerError):
            answer.result()
    assert all(other.tried or other.expired for other in others)
    assert len(purgatory) == (3 if occasion == "touched" else 0)


def test_an_error_while_an_operation_is_refused_keeps_no_other_waiting(loop: ManualLoop, purgatory: Purgatory) -> None:
    def fail(_: Exception) -> None:
        raise RuntimeError

    other = Operation()
    purgatory.park(RaisingOperation(), ["a"], 100, fail)
    purgatory.park(other, ["a"], 100, ignore)
    purgatory.touch("a")
    loop.run_soon()
    assert other.tried == 1
