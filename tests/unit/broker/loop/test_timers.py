from __future__ import annotations

from functools import partial

import pytest

from tests.unit.broker.manual_loop import ManualLoop
from tidelog.broker.loop.timers import RUN_MS, Timer


@pytest.fixture
def loop() -> ManualLoop:
    return ManualLoop()


def test_timers_fire_in_order_of_their_deadlines(loop: ManualLoop) -> None:
    fired: list[str] = []
    loop.timers.schedule(20, lambda: fired.append("late"))
    loop.timers.schedule(10, lambda: fired.append("early"))
    loop.advance(30)
    assert fired == ["early", "late"]


def test_a_timer_does_not_fire_before_its_deadline(loop: ManualLoop) -> None:
    fired: list[float] = []
    loop.timers.schedule(10, lambda: fired.append(loop.time.monotonic_ms()))
    loop.advance(9)
    assert fired == []
    loop.advance(3)
    assert fired
    assert fired[0] >= 10


def test_a_cancelled_timer_never_fires(loop: ManualLoop) -> None:
    fired: list[str] = []
    timer = loop.timers.schedule(10, lambda: fired.append("no"))
    timer.cancel()
    timer.cancel()
    loop.advance(30)
    assert fired == []
    assert len(loop.timers) == 0


def test_cancelling_after_firing_is_harmless(loop: ManualLoop) -> None:
    timer = loop.timers.schedule(1, lambda: None)
    loop.advance(5)
    timer.cancel()
    assert len(loop.timers) == 0


def test_one_loop_timer_serves_all(loop: ManualLoop) -> None:
    for delay in range(1, 100):
        loop.timers.schedule(delay, lambda: None)
    assert len(loop.later) == 1


def test_an_earlier_timer_moves_the_loop_timer_forward(loop: ManualLoop) -> None:
    fired: list[str] = []
    loop.timers.schedule(1000, lambda: fired.append("late"))
    loop.timers.schedule(5, lambda: fired.append("early"))
    loop.advance(10)
    assert fired == ["early"]


def test_memory_of_cancelled_timers_is_released(loop: ManualLoop) -> None:
    timers = [loop.timers.schedule(10_000, lambda: None) for _ in range(2000)]
    for timer in timers[:1990]:
        timer.cancel()
    assert len(loop.timers) == 10
    assert len(loop.timers._heap) < 1000


def test_a_callback_that_raises_costs_the_others_nothing(loop: ManualLoop) -> None:
    fired: list[str] = []

    def fail() -> None:
        raise RuntimeError("boom")

    loop.timers.schedule(1, fail)
    loop.timers.schedule(1, lambda: fired.append("still"))
    with pytest.raises(RuntimeError):
        loop.advance(5)
    loop.advance(5)
    assert fired == ["still"]


def test_timers_due_together_let_others_be_served_in_between(loop: ManualLoop) -> None:
    """A thousand connections that reach their limit at once take 50 ms to close."""
    fired: list[int] = []

    def fire(number: int) -> None:
        loop.time.advance(RUN_MS / 2)
        fired.append(number)

    for number in range(10):
        loop.timers.schedule(10 + number / 100, lambda number=number: fire(number))  # type: ignore[misc]
    loop.time.advance(20)
    turns = []
    while len(loop.timers):
        loop.timers.run_due()
        turns.append(len(fired))
    assert turns == [2, 4, 6, 8, 10]
    assert fired == [*range(10)]


def test_none_of_those_that_wait_is_lost_when_a_callback_cancels_most_of_the_others(loop: ManualLoop) -> None:
    """Connections that are closed together cancel their own timers: the heap is built again."""
    fired: list[int] = []
    others = [loop.timers.schedule(60_000, lambda: None) for _ in range(1000)]

    def fire(number: int) -> None:
        loop.time.advance(RUN_MS)
        fired.append(number)
        for other in others:
            other.cancel()

    for number in range(5):
        loop.timers.schedule(10 + number / 100, partial(fire, number))
    loop.advance(100)
    assert fired == [*range(5)]
    assert len(loop.timers) == 0


def test_many_that_are_due_together_fire_in_order_also_if_some_are_cancelled_meanwhile(loop: ManualLoop) -> None:
    fired: list[int] = []

    def fire(number: int) -> None:
        fired.append(number)
        timers[number + 1].cancel()

    timers = [loop.timers.schedule(number / 1000, partial(fire, number)) for number in range(3000)]
    loop.time.advance(10)
    loop.advance(100)
    assert fired == [*range(0, 3000, 2)]
    assert len(loop.timers) == 0


def test_a_turn_does_not_take_all_that_are_due_from_the_heap(loop: ManualLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn took all of them, fired one, and put the others back."""
    compared = 0
    compare = Timer.__lt__

    def count(one: Timer, other: Timer) -> bool:
        nonlocal compared
        compared += 1
        return compare(one, other)

    for number in range(20_000):
        loop.timers.schedule(number / 10_000, lambda: loop.time.advance(RUN_MS))
    loop.time.advance(20)
    monkeypatch.setattr(Timer, "__lt__", count)
    for _ in range(10):
        loop.timers.run_due()
    assert len(loop.timers) == 19_990
    assert compared < 20_000


def test_closing_by_a_callback_fires_none_of_those_due_with_it(loop: ManualLoop) -> None:
    fired: list[int] = []
    loop.timers.schedule(1, loop.timers.close)
    loop.timers.schedule(1, lambda: fired.append(1))
    loop.advance(100)
    assert fired == []


def test_a_callback_may_schedule_again(loop: ManualLoop) -> None:
    fired: list[int] = []

    def tick() -> None:
        fired.append(1)
        if len(fired) < 3:
            loop.timers.schedule(10, tick)

    loop.timers.schedule(10, tick)
    loop.advance(100)
    assert len(fired) == 3


def test_closing_fires_nothing_any_more(loop: ManualLoop) -> None:
    fired: list[int] = []
    loop.timers.schedule(10, lambda: fired.append(1))
    loop.timers.close()
    loop.advance(100)
    assert fired == []


def test_timers_that_a_moved_clock_made_due_fire_at_once_and_later_ones_in_their_time(loop: ManualLoop) -> None:
    fired: list[str] = []
    loop.timers.schedule(1_000, lambda: fired.append("moved over"))
    loop.timers.schedule(60_000, lambda: fired.append("later"))
    loop.time.advance(59_000)
    loop.timers.catch_up()
    assert fired == ["moved over"]
    assert len(loop.later) == 1, "the loop's timer of the clock before is cancelled"
    loop.advance(1_100)
    assert fired == ["moved over", "later"]


def test_all_that_a_moved_clock_made_due_has_fired_when_it_caught_up(loop: ManualLoop) -> None:
    fired: list[int] = []

    def fire(number: int) -> None:
        fired.append(number)
        loop.time.advance(RUN_MS)

    for number in range(600):
        loop.timers.schedule(1_000 + number, partial(fire, number))
    later = loop.timers.schedule(10_000_000, lambda: fired.append(-1))
    loop.time.advance(2_000)
    loop.timers.catch_up()
    assert fired == list(range(600))
    assert len(loop.later) == 1
    assert later.callback is not None
