"""The messages of a worker of pytest-xdist: those that are not used are left out, and no cost is lost with them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.unit_cost import ModuleCost, long_unit_tests, module_costs
from tests.support.worker_reports import SHORT_S, FewerMessages, unpack


class Sent(list[tuple[str, dict[str, Any]]]):
    """The messages that arrived, and the number of those that were sent."""

    number = 0

    def __call__(self, name: str, **kwargs: Any) -> None:
        self.number += 1
        unpack(self.append)((name, kwargs))

    def reports(self) -> list[pytest.TestReport]:
        """Build the reports as the process that prints does."""
        return [pytest.TestReport._from_json(kwargs["data"]) for name, kwargs in self if name == "testreport"]


def report(when: str, seconds: float, cpu_s: float, outcome: str = "passed") -> dict[str, Any]:
    """Make a report as a worker sends it."""
    made = pytest.TestReport(
        "tests/unit/a.py::test_one",
        ("", 0, ""),
        {},
        outcome,  # type: ignore[arg-type]
        None,
        when,  # type: ignore[arg-type]
        duration=seconds,
        user_properties=[("cpu_s", 7.0), ("cpu_s", cpu_s)],
    )
    return made._to_json()


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def send(sent: Sent) -> FewerMessages:
    return FewerMessages(sent)


def test_calls_long_phases_and_whatever_failed_are_sent(sent: Sent, send: FewerMessages) -> None:
    kept = [
        report("call", 0.001, 0.5),
        report("setup", SHORT_S, 0.5),
        report("teardown", 1.0, 0.5),
        report("setup", 0.001, 0.5, "failed"),
        report("setup", 0.001, 0.5, "skipped"),
    ]
    for each in kept:
        send("testreport", data=each)
    send("runtest_protocol_complete", item_index=0, duration=0.1)
    assert [kwargs["data"] for _, kwargs in sent[:-1]] == kept


def test_begins_ends_and_short_phases_that_passed_are_not_sent(sent: Sent, send: FewerMessages) -> None:
    send("logstart", nodeid="a", location=("", 0, ""))
    send("testreport", data=report("setup", 0.001, 0.5))
    send("testreport", data=report("teardown", 0.001, 0.5))
    send("logfinish", nodeid="a", location=("", 0, ""))
    assert sent == []
    send("runtest_protocol_complete", item_index=0, duration=0.1)
    assert sent == [("runtest_protocol_complete", {"item_index": 0, "duration": 0.1})]


def test_a_call_that_passed_is_sent_with_the_end_of_its_test(sent: Sent, send: FewerMessages) -> None:
    call, done = ("testreport", {"data": report("call", 0.001, 0.5)}), ("runtest_protocol_complete", {"item_index": 0})
    for name, kwargs in (call, done):
        send(name, **kwargs)
    assert sent == [call, done]
    assert sent.number == 1


@pytest.mark.parametrize("later", ["warning_recorded", "testreport"])
def test_a_call_that_passed_is_sent_before_any_other_message(sent: Sent, send: FewerMessages, later: str) -> None:
    call = ("testreport", {"data": report("call", 0.001, 0.5)})
    other = (later, {"data": report("teardown", 1.0, 0.5, "failed")})
    for name, kwargs in (call, other):
        send(name, **kwargs)
    assert sent == [call, other]
    assert sent.number == 2


def test_a_call_that_failed_is_sent_at_once(sent: Sent, send: FewerMessages) -> None:
    send("testreport", data=report("call", 0.001, 0.5, "failed"))
    assert sent.number == 1


def test_the_cost_of_a_module_includes_phases_that_are_not_sent(sent: Sent, send: FewerMessages) -> None:
    for _ in range(2):
        send("testreport", data=report("setup", 0.001, 0.25))
        send("testreport", data=report("call", 0.125, 0.5))
        send("testreport", data=report("teardown", 0.001, 0.125))
    send("testreport", data=report("call", 1.0, 2.0))
    send("workerfinished", workeroutput={})
    (cost,) = module_costs(sent.reports())
    assert cost._replace(wall_s=round(cost.wall_s, 6)) == ModuleCost(3.75, 1.254, cost.end_s, "tests/unit/a.py")
    assert [cpu_s for cpu_s, _ in long_unit_tests(sent.reports())] == [2.0]
