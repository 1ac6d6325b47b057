"""The check of histories finds each kind of fault, and none in a correct history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.faulty_cluster.history import History, Position


def at(offset: int, value: str, partition: int = 0) -> Position:
    """Return a value of the topic t."""
    return Position("t", partition, offset, value.encode())


LOG = [at(0, "w-0"), at(1, "w-1"), at(3, "w-2"), at(0, "w-9", 1)]


def right() -> History:
    """Build a history: three values acknowledged and read, one of unknown fate, one aborted, one without an offset."""
    history = History()
    for one in LOG[:2]:
        history.acknowledge(one)
    history.acknowledge(at(-1, "w-2"))
    history.acknowledge(at(2, "w-5"))
    history.abort(b"w-5")
    for one in LOG:
        history.read("r", one)
    return history


Break = Callable[[History], list[Position]]


def lose(history: History) -> list[Position]:
    history.acknowledge(at(4, "w-3"))
    return LOG


def double(_: History) -> list[Position]:
    return [*LOG, at(5, "w-2")]


def change(history: History) -> list[Position]:
    history.read("other", at(1, "w-7"))
    return LOG


def read_aborted(history: History) -> list[Position]:
    history.abort(b"w-1")
    return LOG


def skip(history: History) -> list[Position]:
    history.reads["r"].remove(at(1, "w-1"))
    return LOG


def disorder(_: History) -> list[Position]:
    return [*LOG, at(6, "w-1", 1)]


def test_a_right_history_has_no_findings() -> None:
    assert right().findings(LOG).is_clean


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (lose, "lost"),
        (double, "duplicated"),
        (change, "changed"),
        (read_aborted, "aborted_reads"),
        (skip, "skipped"),
        (disorder, "disordered"),
    ],
)
def test_each_fault_is_found(broken: Break, name: str) -> None:
    history = right()
    findings = history.findings(broken(history))
    assert {kind for kind, found in findings._asdict().items() if found} == {name}


def test_values_of_a_writer_that_was_promised_nothing_are_not_judged() -> None:
    history = right()
    history.read("r", at(2, "lonely-0"))
    history.read("other", at(2, "lonely-1"))
    assert history.findings(LOG).changed
    history.forget("lonely")
    assert history.findings(LOG).is_clean
