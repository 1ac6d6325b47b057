"""The report of the costs of tests: unit tests of more than a second of CPU time, and the most expensive modules."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from tests.support import unit_cost
from tests.support.unit_cost import ModuleCost, cpu_seconds, long_unit_tests, module_costs


def report(name: str, seconds: float, when: Literal["setup", "call"] = "call") -> pytest.TestReport:
    return pytest.TestReport(name, ("", 0, ""), {}, "passed", None, when, user_properties=[("cpu_s", seconds)])


def test_long_unit_tests_are_named_longest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    reports = [
        report("tests/unit/a.py::test_short", 0.9),
        report("tests/unit/a.py::test_long", 1.1),
        report("tests/unit/a.py::test_long", 1.1, "setup"),
        report("tests/faults/b.py::test_kill", 9.0),
        report("tests/unit/c.py::test_longest", 7.5),
        "a warning",
    ]
    assert long_unit_tests(reports) == [(7.5, "tests/unit/c.py::test_longest"), (1.1, "tests/unit/a.py::test_long")]


def test_a_run_with_sanitizers_names_no_long_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/lib/libasan.so")
    assert long_unit_tests([report("tests/unit/a.py::test_long", 1.1)]) == []


def test_the_time_is_the_processors(request: pytest.FixtureRequest) -> None:
    begin = cpu_seconds()
    while cpu_seconds() < begin + 0.02:
        pass
    assert cpu_seconds() > begin
    assert [name for name, _ in request.node.user_properties] == [
        "cpu_s"
    ]  # the fixtures'; the test's is noted after it


def test_short_phases_are_noted_with_the_next_reading_of_their_module(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(cpu_s=100.0, at_s=1.0)
    monkeypatch.setattr(unit_cost, "read_now", lambda: unit_cost._Reading(clock.cpu_s, clock.at_s))
    monkeypatch.setattr(unit_cost, "time", SimpleNamespace(monotonic=lambda: clock.at_s))
    config = SimpleNamespace(stash=pytest.Stash())

    def test_in(module: str) -> Any:
        return SimpleNamespace(config=config, path=Path(module), user_properties=[])

    def run(phase: Any, *arguments: Any, seconds: float) -> None:
        steps = phase(*arguments)
        next(steps)
        clock.cpu_s, clock.at_s = clock.cpu_s + seconds, clock.at_s + seconds
        with pytest.raises(StopIteration):
            steps.send(None)

    first, second, other = test_in("a.py"), test_in("a.py"), test_in("b.py")
    run(unit_cost.pytest_runtest_setup, first, seconds=0.25)
    run(unit_cost.pytest_runtest_call, first, seconds=0.0625)
    run(unit_cost.pytest_runtest_teardown, first, second, seconds=0.0625)
    run(unit_cost.pytest_runtest_call, second, seconds=0.0625)
    run(unit_cost.pytest_runtest_teardown, second, other, seconds=0.0)
    run(unit_cost.pytest_runtest_call, other, seconds=0.5)
    noted = [[seconds for _, seconds in item.user_properties] for item in (first, second, other)]
    assert noted == [[0.25, 0, 0.125], [0, 0.0625], [0.5]]


def test_the_cost_of_a_module_is_the_sum_of_its_tests_and_fixtures() -> None:
    def phase(name: str, begin: float, duration: float, noted: list[float]) -> pytest.TestReport:
        properties: list[tuple[str, object]] = [("cpu_s", seconds) for seconds in noted]
        return pytest.TestReport(
            name, ("", 0, ""), {}, "passed", None, "call", (), duration, begin, begin + duration, properties
        )

    reports = [
        phase("tests/clients/a.py::test_one", 100, 2, [0.5]),
        phase("tests/clients/a.py::test_one", 102, 3, [0.5, 0.25]),
        phase("tests/faults/b.py::test_kill", 101, 1, [9.0]),
        "a warning",
    ]
    assert module_costs(reports) == [
        ModuleCost(9.0, 1, 2, "tests/faults/b.py"),
        ModuleCost(0.75, 5, 5, "tests/clients/a.py"),
    ]
    assert module_costs([]) == []
