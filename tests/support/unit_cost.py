"""CPU time of tests: a run ends with a list of unit tests over a second, and with a table of modules.

The table is printed with ``--durations``. The time is that of the test's process and of the child processes that it has
waited for. It changes little if other processes need the CPU. It includes work that is done once, for the first test:
an import, the coder of a message, the broker of a module. A long unit test does not fail. Make it faster, or move it to
``tests/faults`` or ``tests/fuzz``.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Generator, Iterable
from typing import NamedTuple

import pytest

MAX_CPU_S = 1.0
"""CPU seconds of a unit test without its fixtures; tests that take longer are listed."""
MODULES_NAMED = 40
"""Rows of the table of modules."""
UNSENT = "unsent_s"
"""Property of a report: CPU and wall seconds of phases before it whose reports a worker did not send."""
_PROPERTY = "cpu_s"
SHORT_S = 0.1
"""Seconds in which several phases may end without a reading of the CPU time between them."""
_READ = pytest.StashKey["_Reading"]()
"""The last reading."""


class ModuleCost(NamedTuple):
    """CPU and wall seconds of a module's tests and fixtures.

    ``end_s`` is the time from the begin of the run's first test to the end of the module's last one.
    """

    cpu_s: float
    wall_s: float
    end_s: float
    name: str


class _State:
    """CPU seconds of processes that have ended, and were children of another process than this one."""

    elsewhere_s = 0.0


class _Reading(NamedTuple):
    """The CPU time of a process, and when it was read."""

    cpu_s: float
    at_s: float


def add_cpu_seconds(cpu_s: float) -> None:
    """Count the CPU time of a process that was started for this one, but is not its child."""
    _State.elsewhere_s += cpu_s


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the child processes that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime + _State.elsewhere_s


def _note_phase(item: pytest.Item, *, is_last: bool = False) -> Generator[None]:
    """Note the CPU time since the last reading in the test's properties, which pytest-xdist sends with each report.

    A reading takes 0.3 ms in a process with a hundred threads. So there is none until SHORT_S have passed, except at
    the end of a module: the time of short phases is noted with a later one of their module.
    """
    read = item.config.stash.get(_READ, None) or read_now()
    try:
        return (yield)
    finally:
        now = read_now() if is_last or time.monotonic() > read.at_s + SHORT_S else read
        item.config.stash[_READ] = now
        item.user_properties.append((_PROPERTY, now.cpu_s - read.cpu_s))


def read_now() -> _Reading:
    """Read the CPU time and the clock."""
    return _Reading(cpu_seconds(), time.monotonic())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Note the CPU time of the fixtures that this test is the first to need."""
    return (yield from _note_phase(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Note the CPU time of the test itself, without its fixtures."""
    return (yield from _note_phase(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Note the CPU time of fixtures that end. A broker or JVM counts when the test's process has waited for its end."""
    return (yield from _note_phase(item, is_last=nextitem is None or nextitem.path != item.path))


def cost_of_phase(properties: Iterable[tuple[str, object]]) -> float:
    """Return the CPU time of a report's phase: the last value, because earlier phases noted theirs, too."""
    return float(dict(properties).get(_PROPERTY, 0))  # type: ignore[arg-type]


def _unsent(report: pytest.TestReport) -> tuple[float, float]:
    """Return the CPU and wall seconds of phases before a report's whose reports a worker did not send."""
    return dict(report.user_properties).get(UNSENT, (0.0, 0.0))  # type: ignore[return-value]


def long_unit_tests(reports: Iterable[object]) -> list[tuple[float, str]]:
    """List unit tests over MAX_CPU_S among the reports of a run, longest first.

    A run with AddressSanitizer has none: its tests take several times as long.
    """
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        return []
    calls = (report for report in reports if isinstance(report, pytest.TestReport) and report.when == "call")
    costs = [(cost_of_phase(report.user_properties), report.nodeid) for report in calls]
    return sorted((cost for cost in costs if cost[0] > MAX_CPU_S and "tests/unit/" in cost[1]), reverse=True)


def module_costs(reports: Iterable[object]) -> list[ModuleCost]:
    """Add up the cost of each module of a run; sort by CPU time, the highest first."""
    phases = [report for report in reports if isinstance(report, pytest.TestReport)]
    begin = min((phase.start for phase in phases), default=0.0)
    costs: dict[str, ModuleCost] = {}
    for phase in phases:
        name = phase.nodeid.partition("::")[0]
        cpu_s, wall_s, end_s, _ = costs.get(name, ModuleCost(0, 0, 0, name))
        more_cpu_s, more_wall_s = _unsent(phase)
        cpu_s += cost_of_phase(phase.user_properties) + more_cpu_s
        costs[name] = ModuleCost(cpu_s, wall_s + phase.duration + more_wall_s, max(end_s, phase.stop - begin), name)
    return sorted(costs.values(), reverse=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the unit tests over MAX_CPU_S, and with ``--durations`` the table of modules."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    found = long_unit_tests(reports)
    if found:
        terminalreporter.section(f"unit tests over {MAX_CPU_S:.0f} s of CPU time")
        for cost, name in found:
            terminalreporter.write_line(f"{cost:6.1f} s  {name}")
    if config.option.durations:
        _print_modules(terminalreporter, module_costs(reports))


def _print_modules(terminalreporter: pytest.TerminalReporter, modules: list[ModuleCost]) -> None:
    """Print the modules with the most CPU time, the sums of all other modules, and the five modules that ended last."""
    terminalreporter.section(f"CPU seconds, seconds and end of the {MODULES_NAMED} dearest modules")
    for cost in modules[:MODULES_NAMED]:
        terminalreporter.write_line(f"{cost.cpu_s:6.1f} {cost.wall_s:6.1f} {cost.end_s:7.1f}  {cost.name}")
    others = modules[MODULES_NAMED:]
    sums = sum(cost.cpu_s for cost in others), sum(cost.wall_s for cost in others)
    terminalreporter.write_line(f"{sums[0]:6.1f} {sums[1]:6.1f}  {len(others):>7}  other modules")
    last = ", ".join(f"{cost.name} ({cost.end_s:.0f} s)" for cost in sorted(modules, key=lambda cost: -cost.end_s)[:5])
    terminalreporter.write_line(f"the last to end: {last}")
