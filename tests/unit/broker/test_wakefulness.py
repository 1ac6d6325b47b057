"""A loop that does not sleep while a client asks again at once, and sleeps as soon as it does not."""

from __future__ import annotations

import pytest

from broker.wakefulness import PREEMPTED_MS, REST_MS, Wakefulness
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


@pytest.mark.parametrize("milliseconds", [0.2, PREEMPTED_MS * 1.5])
def test_after_a_window_in_vain_the_loop_sleeps_for_a_while(
    loop: ManualLoop, wakefulness: Wakefulness, milliseconds: float
) -> None:
    wakefulness.stay(loop.time.monotonic_ms())
    assert not turn(loop, milliseconds)
    wakefulness.stay(loop.time.monotonic_ms())
    assert not loop.soon
    loop.time.advance(REST_MS)
    wakefulness.stay(loop.time.monotonic_ms())
    assert loop.soon


def test_so_it_does_when_others_had_the_processor(loop: ManualLoop, wakefulness: Wakefulness) -> None:
    wakefulness.stay(loop.time.monotonic_ms())
    assert turn(loop, 0.1)
    loop.time.advance(PREEMPTED_MS * 1.5)
    wakefulness.stay(loop.time.monotonic_ms())  # its request was found by the poll before the turn
    loop.run_soon()
    assert not loop.soon
