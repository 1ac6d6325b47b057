"""The table of results, and the aims that a report compares them with."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report import Results, list_missed, markdown_table, put_section, ratio
from benchmarks.rows import KAFKA, TIDELOG, Contender, Metric, Row, Run

CPU = Metric("cpu", "CPU", "s", limit=2.0)
TOTAL = Metric("total", "all CPU", "s", limit=1.5)
RATE = Metric("rate", "rate", "1/s", limit=100, more_is_better=True, digits=0)


def nothing(_run: Run, _contender: Contender) -> dict[str, float]:
    return {}


def row(*metrics: Metric) -> Row:
    return Row("work", "some work", metrics, nothing)


def results(**found: dict[str, float]) -> Results:
    made = Results()
    for contender, values in found.items():
        made.add("work", contender, values)
    return made


@pytest.mark.parametrize(
    ("metric", "value", "met"),
    [(CPU, 2.0, True), (CPU, 2.1, False), (RATE, 100, True), (RATE, 99, False), (Metric("x", "x", "s"), 1.0, None)],
)
def test_aim_is_met(metric: Metric, value: float, met: bool | None) -> None:
    assert metric.is_met(value) is met


def test_ratio_says_how_many_times_better() -> None:
    assert ratio(CPU, 1.0, 5.0) == 5.0
    assert ratio(RATE, 10.0, 5.0) == 2.0
    assert ratio(CPU, None, 5.0) is None


def test_results_take_the_median_of_the_rounds() -> None:
    made = Results()
    for value in (1.0, 9.0, 2.0):
        made.add("work", TIDELOG, {"cpu": value})
    assert made.median("work", "cpu", TIDELOG) == 2.0


def test_table_marks_brokers_without_a_measurement() -> None:
    made = results(**{TIDELOG: {"cpu": 1.0}, KAFKA: {"cpu": 3.0}})
    assert markdown_table([row(CPU)], made).splitlines()[2:] == [
        "| some work | CPU, s | 1.00 | 3.00 | 3.0x | - | <= 2 | yes |"
    ]


def test_table_leaves_out_rows_without_a_measurement() -> None:
    assert len(markdown_table([row(CPU)], Results()).splitlines()) == 2


def test_missed_aims_are_listed() -> None:
    made = results(**{TIDELOG: {"cpu": 3.0, "total": 1.0}})
    assert list_missed([row(CPU, TOTAL)], made) == ["work CPU: 3.00 s, aim <= 2"]


def test_an_introduction_stays_before_the_sections(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("# Results\n\nWhat the words mean.\n\n## one\n\nfirst\n")
    put_section(page, "two", "second")
    assert page.read_text() == "# Results\n\nWhat the words mean.\n\n## two\n\nsecond\n\n## one\n\nfirst\n"


def test_newest_section_is_first(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    put_section(page, "one", "first")
    put_section(page, "two", "second")
    assert page.read_text() == "# Results\n\n## two\n\nsecond\n\n## one\n\nfirst\n"
