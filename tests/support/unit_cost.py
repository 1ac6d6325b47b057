"""CPU time of unit tests: those over a second are named at the end of a run.

The time is that of the test's process and of the children it waited for, so a busy machine changes little. It includes
what the first test to need something pays for: an import, a message's coder. A long test is no failure; it belongs into
``tests/faults`` or ``tests/fuzz``, or wants to be made faster.
"""

from __future__ import annotations

import resource
from collections.abc import Generator, Iterable

import pytest

MOST_CPU_S = 1.0
_PROPERTY = "cpu_s"


def cpu_seconds() -> float:
    """CPU time of this process and of its ended children."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Note the CPU time of the test itself, without its fixtures; it travels with the report from a worker."""
    begin = cpu_seconds()
    try:
        return (yield)
    finally:
        item.user_properties.append((_PROPERTY, cpu_seconds() - begin))


def long_unit_tests(reports: Iterable[object]) -> list[tuple[float, str]]:
    """Unit tests over MOST_CPU_S among the reports of a run, longest first."""
    calls = (report for report in reports if isinstance(report, pytest.TestReport) and report.when == "call")
    costs = [(float(dict(report.user_properties).get(_PROPERTY, 0)), report.nodeid) for report in calls]  # type: ignore[arg-type]
    return sorted((cost for cost in costs if cost[0] > MOST_CPU_S and "tests/unit/" in cost[1]), reverse=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the unit tests that took more than a second of CPU time."""
    found = long_unit_tests(report for reports in terminalreporter.stats.values() for report in reports)
    if found:
        terminalreporter.section(f"unit tests over {MOST_CPU_S:.0f} s of CPU time")
        for cost, name in found:
            terminalreporter.write_line(f"{cost:6.1f} s  {name}")
