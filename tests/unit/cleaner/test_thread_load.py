"""Load of a thread, measured by its CPU clock."""

from __future__ import annotations

import threading
import time

import pytest

from tidelog.cleaner.thread_load import BUSY_SHARE, READ_INTERVAL_MS, ThreadLoad, load_of_main_thread

WORK_MS = 20.0


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


def work() -> None:
    """Use the CPU for WORK_MS in this thread."""
    until = time.thread_time() + WORK_MS / 1000
    while time.thread_time() < until:
        pass


def test_the_main_thread_has_a_clock_of_its_own() -> None:
    interval_ms = WORK_MS / BUSY_SHARE / 2  # so WORK_MS is twice the share of a busy thread
    wall = iter([0.0, interval_ms, 2 * interval_ms])
    load = load_of_main_thread(lambda: next(wall))
    if load is None:
        pytest.skip("threads have no clocks of their own here")
    work()
    assert load.is_busy(), "the main thread has worked"
    other = threading.Thread(target=work, daemon=True)
    other.start()
    other.join()
    assert not load.is_busy(), "another thread has worked"
