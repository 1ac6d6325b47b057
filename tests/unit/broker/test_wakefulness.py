"""A loop that does not sleep while a client asks again at once, and sleeps as soon as it does not."""

from __future__ import annotations

import pytest

from broker.wakefulness import FIRST_REST_MS, MOST_REST_MS, PAYING_REQUESTS, PREEMPTED_MS, Wakefulness
from tests.unit.broker.manual_loop import ManualLoop

WINDOW_MS = 0.15


@pytest.fixture
def loop() -> ManualLoop:
    return ManualLoop()


@pytest.fixture
def wakefulness(loop: ManualLoop) -> Wakefulness:
    return Wakefulness(loop, loop.time.monotonic_ms, WINDOW_MS)


def turn(loop: ManualLoop, milliseconds: float) -> bool:
    """A turn of the loop after so long; whether another one is asked for."""
    loop.time.advance(milliseconds)
    loop.run_soon()
    return bool(loop.soon)


def test_the_loop_turns_until_the_window_has_passed(loop: ManualLoop, wakefulness: Wakefulness) -> None:
    wakefulness.stay(loop.time.monotonic_ms())
    assert turn(loop, 0.1)
    assert not turn(loop, 0.1)


def test_another_request_begins_the_window_anew(loop: ManualLoop, wakefulness: Wakefulness) -> None:
    wakefulness.stay(loop.time.monotonic_ms())
    assert turn(loop, 0.1)
    wakefulness.stay(loop.time.monotonic_ms())
    assert len(loop.soon) == 1
    assert turn(loop, 0.1)
    assert not turn(loop, 0.1)


def keeps_awake(loop: ManualLoop, wakefulness: Wakefulness) -> bool:
    """Whether the loop does not sleep when asked not to, now."""
    wakefulness.stay(loop.time.monotonic_ms())
    return bool(loop.soon)


@pytest.mark.parametrize("milliseconds", [0.2, PREEMPTED_MS * 1.5])
def test_after_a_window_in_vain_the_loop_sleeps_ever_longer(
    loop: ManualLoop, wakefulness: Wakefulness, milliseconds: float
) -> None:
    rest_ms = FIRST_REST_MS
    for _ in range(12):
        assert keeps_awake(loop, wakefulness)
        assert not turn(loop, milliseconds)
        loop.time.advance(rest_ms * 0.9)
        assert not keeps_awake(loop, wakefulness)
        loop.time.advance(rest_ms * 0.11)
        rest_ms = min(rest_ms * 2, MOST_REST_MS)


def test_a_loop_that_had_many_requests_in_time_need_not_rest(loop: ManualLoop, wakefulness: Wakefulness) -> None:
    for _ in range(3):
        for _ in range(PAYING_REQUESTS + 1):
            assert keeps_awake(loop, wakefulness)
            assert turn(loop, 0.1)
        assert not turn(loop, 0.1)
    assert keeps_awake(loop, wakefulness)


def test_so_it_does_when_others_had_the_processor(loop: ManualLoop, wakefulness: Wakefulness) -> None:
    wakefulness.stay(loop.time.monotonic_ms())
    assert turn(loop, 0.1)
    loop.time.advance(PREEMPTED_MS * 1.5)
    wakefulness.stay(loop.time.monotonic_ms())  # its request was found by the poll before the turn
    loop.run_soon()
    assert not loop.soon
