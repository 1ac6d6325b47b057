from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from tidelog.broker.loop.turn_clock import LOG_EVERY_MS, LONG_MS, NOTABLE_MS, READ_EVERY_MS, TurnClock
from tidelog.log.system.time import ManualTime


class Fixture:
    """A turn clock over wall and CPU clocks that the test moves."""

    def __init__(self) -> None:
        self.time = ManualTime()
        self.cpu_s = 0.0
        self.readings = 0
        self.turns = TurnClock(self.time.monotonic_ms, self.read_cpu)

    def read_cpu(self) -> float:
        self.readings += 1
        return self.cpu_s

    def pass_time(self, wall_ms: float, cpu_ms: float) -> None:
        self.time.advance(wall_ms)
        self.cpu_s += cpu_ms / 1000

    def turn(self, wall_ms: float, cpu_ms: float, what: str = "PRODUCE") -> None:
        self.turns.run(what, lambda: self.pass_time(wall_ms, cpu_ms))

    def value(self, name: str, **labels: str) -> float:
        found = [sample for sample in self.turns.samples() if (sample.name, sample.labels) == (name, labels)]
        return found[0].value if found else -1


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


def test_the_longest_turn_is_measured_in_cpu_and_in_wall_time(fixture: Fixture) -> None:
    fixture.turn(wall_ms=30, cpu_ms=20)
    fixture.turn(wall_ms=40, cpu_ms=10)
    assert fixture.value("tidelog_loop_longest_turn_cpu_seconds") == pytest.approx(0.020)
    assert fixture.value("tidelog_loop_longest_turn_seconds") == pytest.approx(0.040)


def test_a_reading_restarts_the_measurement_since_the_last_reading(fixture: Fixture) -> None:
    name = "tidelog_loop_longest_turn_since_read_cpu_seconds"
    fixture.turn(wall_ms=30, cpu_ms=20)
    assert fixture.value(name) == pytest.approx(0.020)
    assert fixture.value(name) == 0
    fixture.turn(wall_ms=5, cpu_ms=3)
    assert fixture.value(name) == pytest.approx(0.003)


def test_work_between_turns_is_not_counted(fixture: Fixture) -> None:
    fixture.turn(wall_ms=0, cpu_ms=0)
    fixture.pass_time(wall_ms=500, cpu_ms=400)
    fixture.turn(wall_ms=10, cpu_ms=10)
    assert fixture.value("tidelog_loop_longest_turn_cpu_seconds") == pytest.approx(0.010)


def test_cpu_time_is_never_too_short_and_at_most_one_reading_too_long(fixture: Fixture) -> None:
    fixture.turn(wall_ms=0.9 * READ_EVERY_MS, cpu_ms=0.9)  # too short to be counted, and read again behind it
    fixture.turn(wall_ms=10, cpu_ms=10)
    assert 0.010 <= fixture.value("tidelog_loop_longest_turn_cpu_seconds") <= 0.011


def test_short_turns_do_not_read_the_cpu_clock_each(fixture: Fixture) -> None:
    for _ in range(1000):
        fixture.turn(wall_ms=NOTABLE_MS / 100, cpu_ms=NOTABLE_MS / 100)
    assert fixture.readings <= 1 + 1000 * NOTABLE_MS / 100 / READ_EVERY_MS


def test_a_turn_that_cannot_be_the_longest_is_not_counted_and_one_that_can_is(fixture: Fixture) -> None:
    name = "tidelog_loop_longest_turn_since_read_cpu_seconds"
    fixture.turn(wall_ms=20, cpu_ms=5)
    readings = fixture.readings
    for _ in range(100):  # of less wall time than the longest took of the CPU: the clock is read as they begin
        fixture.turn(wall_ms=4, cpu_ms=4)
    assert fixture.readings <= readings + 100
    fixture.turn(wall_ms=7, cpu_ms=6)
    assert fixture.value(name) == pytest.approx(0.006)
    fixture.turn(wall_ms=2, cpu_ms=2)  # from a reading of the metrics on, any may be the longest
    assert fixture.value(name) == pytest.approx(0.002)


def test_a_long_turn_is_counted_after_a_longer_one(fixture: Fixture) -> None:
    fixture.turn(wall_ms=10 * LONG_MS, cpu_ms=10 * LONG_MS)
    fixture.turn(wall_ms=LONG_MS, cpu_ms=1)
    assert fixture.value("tidelog_loop_long_turns_total", what="PRODUCE") == 2


def test_a_long_turn_is_counted_and_logged_with_its_request(fixture: Fixture, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        fixture.turns.begin(0)
        fixture.pass_time(LONG_MS, 40)
        fixture.turns.end(0, LONG_MS, "FETCH", "10.0.0.1")
        fixture.turn(LONG_MS - 1, 40)
    assert [record.getMessage() for record in caplog.records] == [
        "one turn of the loop took 50 ms (40 ms of CPU time): FETCH of 10.0.0.1"
    ]
    assert fixture.value("tidelog_loop_long_turns_total", what="FETCH") == 1
    assert fixture.value("tidelog_loop_long_turns_total", what="PRODUCE") == -1


def test_the_log_has_one_line_a_second_and_says_how_many_it_left_out(
    fixture: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            fixture.turn(LONG_MS, 1)
        assert len(caplog.records) == 1
        fixture.time.advance(LOG_EVERY_MS)
        fixture.turn(LONG_MS, 1)
    assert caplog.records[-1].getMessage().endswith("(2 more since the last such line)")
    assert fixture.value("tidelog_loop_long_turns_total", what="PRODUCE") == 4


def test_a_turn_that_raises_is_measured(fixture: Fixture) -> None:
    def fail() -> None:
        fixture.pass_time(30, 20)
        raise ValueError("as planned")

    with pytest.raises(ValueError, match="as planned"):
        fixture.turns.run("timer", fail)
    assert fixture.value("tidelog_loop_longest_turn_cpu_seconds") == pytest.approx(0.020)


def test_callbacks_of_the_loop_are_measured_one_by_one(fixture: Fixture) -> None:
    soon: list[Callable[[], None]] = []
    call_soon = fixture.turns.measure_callbacks("coordinator", soon.append)
    for _ in range(2):
        call_soon(lambda: fixture.pass_time(30, 20))
    for callback in soon:
        callback()
    assert fixture.value("tidelog_loop_longest_turn_cpu_seconds") == pytest.approx(0.020)
