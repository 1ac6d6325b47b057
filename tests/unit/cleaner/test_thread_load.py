"""Load of a thread, measured by its CPU clock."""

from __future__ import annotations

import time

import pytest

from tidelog.cleaner.thread_load import BUSY_SHARE, READ_INTERVAL_MS, ThreadLoad, load_of_main_thread


class Clocks:
    """A wall clock and a CPU clock that the test moves, in ms."""

    def __init__(self) -> None:
        self.wall = self.cpu = 1000.0

    def load(self) -> ThreadLoad:
        return ThreadLoad(lambda: self.cpu, lambda: self.wall)

    def go(self, wall: float, share: float) -> None:
        self.wall += wall
        self.cpu += wall * share


def test_a_thread_counts_as_busy_until_its_clock_was_read_twice() -> None:
    clocks = Clocks()
    load = clocks.load()
    assert load.is_busy()
    clocks.go(READ_INTERVAL_MS - 1, 0)
    assert load.is_busy()
    clocks.go(1, 0)
    assert not load.is_busy()


@pytest.mark.parametrize(("share", "busy"), [(0.0, False), (BUSY_SHARE / 2, False), (BUSY_SHARE * 2, True), (1, True)])
def test_a_thread_is_busy_above_a_share_of_a_processor(share: float, busy: bool) -> None:
    clocks = Clocks()
    load = clocks.load()
    clocks.go(READ_INTERVAL_MS, share)
    assert load.is_busy() is busy


def test_each_interval_is_measured_by_itself() -> None:
    clocks = Clocks()
    load = clocks.load()
    seen = []
    for share in (0.0, 0.5, 0.0):
        clocks.go(READ_INTERVAL_MS, share)
        seen.append(load.is_busy())
    assert seen == [False, True, False]


def test_the_main_thread_has_a_clock_of_its_own() -> None:
    wall = iter([0.0, float(READ_INTERVAL_MS), 1e9])
    load = load_of_main_thread(lambda: next(wall))
    if load is None:
        pytest.skip("threads have no clocks of their own here")
    until = time.thread_time() + 0.002
    while time.thread_time() < until:
        pass
    assert load.is_busy(), "2 ms of 10"
    assert not load.is_busy(), "next to nothing of 1e9 ms"
