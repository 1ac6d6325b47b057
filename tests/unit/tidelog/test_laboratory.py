from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

import tidelog
from tidelog.broker.laboratory.control import MAX_LINE_BYTES
from tidelog.broker_process import Broker, BrokerProcessError
from tidelog.laboratory import MAX_COMMAND_BYTES, Laboratory, LaboratoryError


def commands_of(work: Callable[[Laboratory], object], *results: object) -> list[dict[str, Any]]:
    """Run ``work`` with a broker that answers with these results. Returns the commands that it received."""
    ours, theirs = socket.socketpair()
    commands: list[dict[str, Any]] = []

    def serve() -> None:
        lines = theirs.makefile("rb")
        for result in results:
            commands.append(json.loads(lines.readline()))
            theirs.sendall(json.dumps(result).encode() + b"\n")
        lines.close()
        theirs.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    laboratory = Laboratory(ours)
    try:
        work(laboratory)
    finally:
        laboratory.close()
        thread.join(60)
    return commands


def test_the_clock_is_moved_by_days_hours_minutes_and_seconds() -> None:
    moved = commands_of(lambda lab: lab.advance(days=1, hours=2, minutes=3, seconds=4.5), {"result": None})
    assert moved == [{"command": "advance", "ms": 93_784_500}]


def test_a_fault_is_asked_how_often_it_was_met() -> None:
    met: list[int] = []
    commands = commands_of(lambda lab: met.append(lab.drop("Fetch", times=2).met), {"result": 7}, {"result": 1})
    assert met == [1]
    assert commands[0]["api"] == "Fetch"
    assert commands[1] == {"command": "met", "fault": 7}


def test_a_leader_comes_back_and_a_disk_has_room_again_when_the_test_fails_in_between() -> None:
    def fail(lab: Laboratory) -> None:
        with pytest.raises(ZeroDivisionError), lab.leader_away("orders", 2), lab.full_disk():
            _ = 1 // 0

    commands = commands_of(fail, *[{"result": None}] * 4)
    away = {"command": "leader", "topic": "orders", "partition": 2}
    assert commands == [
        {**away, "is_away": True},
        {"command": "disk", "is_full": True},
        {"command": "disk", "is_full": False},
        {**away, "is_away": False},
    ]


def test_the_reason_of_the_broker_is_reported() -> None:
    def ask(lab: Laboratory) -> None:
        with pytest.raises(LaboratoryError, match="no API of Kafka"):
            lab.requests("Produced")

    commands_of(ask, {"error": "'Produced' is no API of Kafka"})


def test_a_broker_that_has_ended_is_reported() -> None:
    def ask(lab: Laboratory) -> None:
        with pytest.raises(LaboratoryError, match=r"ended|does not answer"):
            lab.clear()

    commands_of(ask)


@pytest.mark.parametrize("days", [1e12, -1e12, float("inf"), float("nan")])
def test_a_span_that_no_clock_has_is_an_error_of_the_laboratory(days: float) -> None:
    def advance(lab: Laboratory) -> None:
        with pytest.raises(LaboratoryError, match="advance: "):
            lab.advance(days=days)

    assert commands_of(advance) == []


def test_a_command_that_is_too_long_is_not_sent() -> None:
    """The broker would close its socket, and no later command would reach it."""

    def fail(lab: Laboratory) -> None:
        with pytest.raises(LaboratoryError, match=r"fault: 7\d{4} bytes; a command has at most 65536"):
            lab.fail("Fetch", "x" * 70_000)
        lab.clear()

    assert commands_of(fail, {"result": None}) == [{"command": "clear"}]
    assert MAX_COMMAND_BYTES == MAX_LINE_BYTES


def test_a_broker_without_laboratory_says_how_to_get_one() -> None:
    assert tidelog.Laboratory is Laboratory
    assert tidelog.LaboratoryError is LaboratoryError
    with pytest.raises(BrokerProcessError, match=r"Broker\(lab=True\)"):
        _ = Broker().lab
