"""The counter in C counts the same calls as the interpreter's own profiler."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.unit.broker.request_world import CALLS_PER_MS, Counter


def work() -> list[int]:
    """Call functions of Python and C, a generator, and one that raises."""

    def twice(value: int) -> int:
        return value + value

    with suppress(IndexError):
        [].pop()
    return sorted(twice(value) for value in map(abs, [3, -1, 2]))


def calls_in_python(work: Callable[[], object]) -> int:
    events: list[str] = []
    sys.setprofile(lambda _frame, event, _argument: events.append(event))
    try:
        work()
    finally:
        sys.setprofile(None)
    return sum(event in ("call", "c_call") for event in events) - 1  # the last is setprofile itself


@pytest.fixture
def counter() -> Counter:
    return Counter()


def test_counts_in_c_and_in_python_are_equal(counter: Counter) -> None:
    assert counter.count(work) == calls_in_python(work) > 9


def test_the_clock_continues_with_the_count(counter: Counter) -> None:
    before = counter.milliseconds()
    calls = counter.count(work)
    assert counter.milliseconds() == pytest.approx(before + calls / CALLS_PER_MS)


def test_the_clock_is_a_call_itself(counter: Counter) -> None:
    def read(times: int) -> None:
        for _ in range(times):
            counter.milliseconds()

    assert counter.count(lambda: read(5)) == counter.count(lambda: read(0)) + 5


def test_calls_inside_excluded_work_are_not_counted(counter: Counter) -> None:
    left_out = counter.without(work)
    calls = counter.count(lambda: (work(), left_out(), work()))
    assert calls == counter.count(lambda: (work(), work())) + 1
    assert left_out() == work()
    before = counter.milliseconds()
    left_out()
    work()
    assert counter.milliseconds() == before


def test_counting_stops_after_work_that_raises(counter: Counter) -> None:
    with pytest.raises(ZeroDivisionError):
        counter.count(lambda: 1 / 0)
    before = counter.milliseconds()
    work()
    assert counter.milliseconds() == before
