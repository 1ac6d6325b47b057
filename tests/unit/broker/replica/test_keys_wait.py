"""Waits of requests in steps for a change of one of many keys."""

from __future__ import annotations

import pytest

from tests.unit.broker.manual_loop import ManualLoop
from tidelog.broker.replica.keys_wait import KeysWait
from tidelog.broker.replica.purgatory import Purgatory


def test_a_change_of_any_key_ends_the_wait(loop: ManualLoop, purgatory: Purgatory) -> None:
    wait = KeysWait(purgatory, ["a", "b"], 100)
    purgatory.touch("b")
    loop.run_soon()
    assert (wait.ended.has_value, wait.is_over) == (True, False)
    assert len(purgatory) == 0


@pytest.mark.parametrize("delay_ms", [100, -1])
def test_after_its_delay_the_wait_is_over(loop: ManualLoop, purgatory: Purgatory, delay_ms: int) -> None:
    wait = KeysWait(purgatory, ["a"], delay_ms)
    assert not wait.ended.done
    loop.advance(101)
    assert (wait.ended.has_value, wait.is_over) == (True, True)


def test_a_hurried_wait_is_over(purgatory: Purgatory) -> None:
    wait = KeysWait(purgatory, ["a"], 100)
    wait.ended.hurry()
    assert (wait.ended.has_value, wait.is_over) == (True, True)


def test_a_cancelled_wait_does_not_end(loop: ManualLoop, purgatory: Purgatory) -> None:
    wait = KeysWait(purgatory, ["a"], 100)
    wait.cancel()
    wait.cancel()
    purgatory.touch("a")
    loop.advance(101)
    assert not wait.ended.done
    assert len(purgatory) == 0
