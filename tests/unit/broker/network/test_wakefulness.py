"""The loop polls without sleep while a client sends its next request at once, if that is faster; otherwise it
sleeps."""

from __future__ import annotations

import pytest

from tests.unit.broker.manual_loop import ManualLoop
from tidelog.broker.network.wakefulness import DECISION_MS, PREEMPTED_MS, RETRY_MS, SAMPLE, Wakefulness

WINDOW_MS = 0.15
ASLEEP_MS, AWAKE_MS = 0.09, 0.045


class Client:
    """Asks again and again; ``gap_ms`` says how soon, by whether the loop is awake."""

    def __init__(self, loop: ManualLoop, *, asleep_ms: float = ASLEEP_MS, awake_ms: float = AWAKE_MS) -> None:
        self.loop = loop
        self.wakefulness = Wakefulness(loop, loop.time.monotonic_ms, WINDOW_MS)
        self.gaps_ms = (asleep_ms, awake_ms)

    def is_awake(self) -> bool:
        return bool(self.loop.soon)

    def ask(self, times: int = 1) -> int:
        """Send requests and return how many of them found the loop awake."""
        found_awake = 0
        for _ in range(times):
            is_awake = self.is_awake()
            found_awake += is_awake
            gap_ms = self.gaps_ms[is_awake]
            self.loop.time.advance(gap_ms / 2)
            self.loop.run_soon()
            self.loop.time.advance(gap_ms / 2)
            self.wakefulness.note_request(self.loop.time.monotonic_ms(), gap_ms)
        return found_awake


@pytest.fixture
def loop() -> ManualLoop:
    return ManualLoop()


def test_a_loop_stays_awake_where_that_is_faster(loop: ManualLoop) -> None:
    client = Client(loop)
    assert client.ask(SAMPLE) == 0
    assert client.ask(1000) == 1000


def test_staying_awake_is_given_up_where_it_is_not_faster(loop: ManualLoop) -> None:
    client = Client(loop, asleep_ms=0.03, awake_ms=0.029)
    assert client.ask(SAMPLE) == 0
    assert client.ask(1000) == SAMPLE + 1, "the turn that was asked for already comes, and is the last"
    assert not client.is_awake()


def test_staying_awake_is_tried_again_after_a_while(loop: ManualLoop) -> None:
    client = Client(loop, asleep_ms=0.03, awake_ms=0.029)
    client.ask(2 * SAMPLE)
    loop.run_soon()
    loop.time.advance(DECISION_MS)
    client.gaps_ms = (ASLEEP_MS, AWAKE_MS)
    assert client.ask(SAMPLE + 1) == 0
    assert client.ask(1000) == 1000


def test_sleeping_is_tried_again_after_a_while(loop: ManualLoop) -> None:
    client = Client(loop)
    client.ask(2 * SAMPLE)
    asked = int(DECISION_MS / AWAKE_MS) + SAMPLE + 10
    assert asked - client.ask(asked) in range(SAMPLE - 1, SAMPLE + 2)


def test_the_loop_sleeps_when_the_window_has_passed(loop: ManualLoop) -> None:
    client = Client(loop)
    client.ask(2 * SAMPLE)
    loop.time.advance(0.1)
    loop.run_soon()
    assert client.is_awake()
    loop.time.advance(0.1)
    loop.run_soon()
    assert not client.is_awake()
    client.ask()
    assert client.is_awake()


@pytest.mark.parametrize(("requests", "rest_ms"), [(SAMPLE + 5, DECISION_MS), (2 * SAMPLE + 5, RETRY_MS)])
def test_a_loop_that_lost_its_processor_sleeps_until_the_next_trial(
    loop: ManualLoop, requests: int, rest_ms: float
) -> None:
    client = Client(loop)
    client.ask(requests)
    loop.time.advance(PREEMPTED_MS * 1.5)
    client.wakefulness.note_request(loop.time.monotonic_ms(), 0.1)  # found by the poll before the turn
    loop.run_soon()
    loop.time.advance(rest_ms * 0.9)
    assert client.ask(50) == 0
    loop.time.advance(rest_ms * 0.1)
    client.ask(SAMPLE + 1)
    assert client.ask(100) == 100
