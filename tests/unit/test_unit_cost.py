"""The report of unit tests that take more than a second of CPU time."""

from __future__ import annotations

from typing import Literal

import pytest

from tests.support.unit_cost import cpu_seconds, long_unit_tests


def report(name: str, seconds: float, when: Literal["setup", "call"] = "call") -> pytest.TestReport:
    return pytest.TestReport(name, ("", 0, ""), {}, "passed", None, when, user_properties=[("cpu_s", seconds)])


def test_long_unit_tests_are_named_longest_first() -> None:
    reports = [
        report("tests/unit/a.py::test_short", 0.9),
        report("tests/unit/a.py::test_long", 1.1),
        report("tests/unit/a.py::test_long", 1.1, "setup"),
        report("tests/faults/b.py::test_kill", 9.0),
        report("tests/unit/c.py::test_longest", 7.5),
        "a warning",
    ]
    assert long_unit_tests(reports) == [(7.5, "tests/unit/c.py::test_longest"), (1.1, "tests/unit/a.py::test_long")]


def test_the_time_is_the_processors(request: pytest.FixtureRequest) -> None:
    begin = cpu_seconds()
    while cpu_seconds() < begin + 0.02:
        pass
    assert cpu_seconds() > begin
    assert request.node.user_properties == []  # noted after the test
