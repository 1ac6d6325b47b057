"""The load test's steps and lines."""

from __future__ import annotations

import pytest

from benchmarks.histogram import Histogram
from benchmarks.load import Step, arguments, curves, header, line
from benchmarks.native import LoadResult
from benchmarks.rows import FLOOR, KAFKA, TIDELOG
from benchmarks.run import arguments as run_arguments
from benchmarks.run import contenders, rotate_contenders


def step(rate: float, completed: int, seconds: float, end_to_end: Histogram | None = None) -> Step:
    latency = Histogram.from_pairs([(100, completed)])
    return Step(rate, LoadResult(seconds, 0, 0, 0, 0.0, completed, completed, latency, end_to_end or Histogram()))


@pytest.mark.parametrize(
    ("completed", "seconds", "saturated"), [(1000, 1.0, False), (1000, 1.2, True), (900, 1.0, True)]
)
def test_step_is_saturated_when_answers_come_late(completed: int, seconds: float, saturated: bool) -> None:
    assert step(1000, completed, seconds).is_saturated is saturated


def test_curves_have_one_point_a_step() -> None:
    assert curves([step(1, 1, 1), step(2, 2, 1)])["acknowledge p99"] == [0.1, 0.1]


def test_end_to_end_is_drawn_only_with_consumers() -> None:
    assert "end to end p99" not in curves([step(1, 1, 1)])
    assert "end to end p99" in curves([step(1, 1, 1, Histogram.from_pairs([(5, 1)]))])


def test_columns_of_the_table_line_up() -> None:
    assert len(header()) == len(line("acknowledge", 1000, Histogram()))


def test_default_load_has_many_producers_and_consumers() -> None:
    asked = arguments([])
    assert (asked.producers, asked.consumers) == (20, 10)


def test_unknown_row_is_refused() -> None:
    with pytest.raises(SystemExit):
        run_arguments(["--only", "nothing"])


@pytest.mark.parametrize(
    ("rival", "tidelog", "names"),
    [(KAFKA, True, [TIDELOG, KAFKA, FLOOR]), ("none", True, [TIDELOG, FLOOR]), (KAFKA, False, [KAFKA, FLOOR])],
)
def test_contenders_are_the_floor_and_the_chosen_brokers(rival: str, tidelog: bool, names: list[str]) -> None:
    assert [contender.name for contender in contenders(rival, tidelog)] == names


def test_another_contender_begins_each_round() -> None:
    everyone = contenders(KAFKA, True)
    assert [rotate_contenders(everyone, number)[0].name for number in range(4)] == [TIDELOG, KAFKA, FLOOR, TIDELOG]
