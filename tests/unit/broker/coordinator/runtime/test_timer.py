"""CoordinatorTimer: deadlines by key, which are cheap to move."""

from __future__ import annotations

import pytest

from tidelog.broker.coordinator.runtime.timer import MAX_EXPIRATIONS_PER_TURN, MIN_REBUILT, CoordinatorTimer
from tidelog.log.system.time import ManualTime


class World:
    def __init__(self) -> None:
        self.time = ManualTime()
        self.timer = CoordinatorTimer(self.time)
        self.ran: list[str] = []

    def schedule(self, name: str, delay_ms: float) -> None:
        self.timer.schedule((name,), delay_ms, lambda: self.ran.append(name))

    def advance(self, milliseconds: float) -> list[str]:
        self.time.advance(milliseconds)
        self.timer.run_due(lambda _: None)
        ran, self.ran = self.ran, []
        return ran


def test_runs_in_order_of_deadlines() -> None:
    world = World()
    world.schedule("late", 20)
    world.schedule("early", 10)
    assert world.advance(30) == ["early", "late"]


@pytest.mark.parametrize(("second", "at_10", "at_20"), [(20.0, [], ["a"]), (5.0, ["a"], [])])
def test_scheduling_again_moves_the_deadline(second: float, at_10: list[str], at_20: list[str]) -> None:
    world = World()
    world.schedule("a", 10)
    world.schedule("a", second)
    assert world.advance(10) == at_10
    assert world.advance(10) == at_20
    assert world.advance(100) == []


def test_cancelled_does_not_run() -> None:
    world = World()
    world.schedule("a", 10)
    world.timer.cancel(("a",))
    assert not world.timer.is_scheduled(("a",))
    assert world.advance(10) == []


def test_cancelled_and_scheduled_again_runs_once() -> None:
    world = World()
    world.schedule("a", 10)
    world.timer.cancel(("a",))
    world.schedule("a", 10)
    assert world.advance(10) == ["a"]


def test_cancelled_actions_take_no_memory_until_their_deadlines() -> None:
    """Each rebalance of a group cancels two, whose deadlines a client may put 24 days ahead."""
    world = World()
    for number in range(100):
        world.schedule(f"kept-{number}", 50 + number % 7)
    for number in range(10_000):
        world.schedule("a", 1_000_000)
        if number % 3:
            world.schedule("a", 100)
        world.timer.cancel(("a",))
    assert len(world.timer._heap) <= 2 * 100 + MIN_REBUILT
    world.schedule("a", 53)
    ran = world.advance(100)
    assert sorted(ran) == sorted(["a", *(f"kept-{number}" for number in range(100))])
    assert [name for name in ran if name.startswith("kept")] == sorted(
        (name for name in ran if name != "a"), key=lambda name: int(name[5:]) % 7
    )


def test_moving_later_adds_nothing_to_the_heap() -> None:
    world = World()
    for delay in range(10, 1000):
        world.schedule("a", delay)
    assert len(world.timer._heap) == 1


def test_wakes_its_owner_for_an_earlier_deadline_only() -> None:
    world = World()
    woken: list[float] = []
    world.timer.wake_up = woken.append
    world.schedule("a", 10)
    world.schedule("b", 20)
    world.schedule("c", 5)
    assert woken == [10, 5]


def test_wall_clock_jumps_move_nothing() -> None:
    world = World()
    world.schedule("a", 10)
    world.time.jump_wall(86_400_000)
    assert world.advance(0) == []


def test_a_turn_is_bounded() -> None:
    world = World()
    for index in range(MAX_EXPIRATIONS_PER_TURN + 1):
        world.schedule(str(index), 1)
    assert len(world.advance(1)) == MAX_EXPIRATIONS_PER_TURN
    assert len(world.advance(0)) == 1


def test_next_deadline_is_none_without_entries() -> None:
    assert World().timer.next_deadline_ms() is None
