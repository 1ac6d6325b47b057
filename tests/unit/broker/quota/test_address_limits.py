"""Limits of connections by address, with host names that a thread resolves."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.quota.address_limits import OVERRIDES, AddressLimits, Limits, resolve_names

NAMES = {"node.example": ["10.0.0.7", "2001:db8::7"], "other.example": ["10.0.0.8"]}


def look_up(name: str, *_: object, **__: object) -> list[tuple[Any, ...]]:
    if name not in NAMES:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return [(0, 0, 0, "", (address, 0)) for address in NAMES[name]]


class World:
    """Limits whose thread runs when ``resolve`` is called."""

    def __init__(self, overrides: str) -> None:
        self.config = BrokerConfig({"max.connections.per.ip": "9", OVERRIDES: overrides})
        self.begun: list[tuple[Callable[[], Limits], Deferred[Limits]]] = []
        self.limits = AddressLimits(self.config, self._run)

    def _run(self, work: Callable[[], Limits]) -> Deferred[Limits]:
        self.begun.append((work, Deferred()))
        return self.begun[-1][1]

    def resolve(self, number: int = 0) -> None:
        work, resolved = self.begun[number]
        resolved.complete(work())

    def set(self, overrides: str) -> None:
        self.config.set_dynamic({OVERRIDES: overrides})

    def of(self, *addresses: str) -> list[int]:
        return [self.limits.limit_for(address) for address in addresses]


@pytest.fixture(autouse=True)
def known_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def test_a_host_name_stands_for_all_of_its_addresses() -> None:
    world = World("node.example:2,10.0.0.1:3")
    assert world.of("10.0.0.1", "10.0.0.7") == [3, 9], "no connection waits for a name server"
    world.resolve()
    assert world.of("10.0.0.1", "10.0.0.7", "2001:db8::7", "10.0.0.2") == [3, 2, 2, 9]


def test_an_address_is_never_looked_up_and_its_own_limit_wins() -> None:
    world = World("[2001:DB8:0::5]:1")
    assert (world.of("2001:db8::5"), world.begun) == ([1], [])
    world = World("10.0.0.7:1,node.example:2")
    world.resolve()
    assert world.of("10.0.0.7") == [1]


def test_a_change_of_the_overrides_is_taken_over_and_an_earlier_look_up_is_dropped() -> None:
    world = World("node.example:2")
    world.set("other.example:4")
    assert world.of("10.0.0.8") == [9]
    world.resolve(1)
    world.resolve(0)
    assert world.of("10.0.0.7", "10.0.0.8") == [9, 4]
    world.set("")
    assert world.of("10.0.0.8") == [9]


def test_a_name_that_cannot_be_resolved_is_logged_and_the_others_are(caplog: pytest.LogCaptureFixture) -> None:
    assert resolve_names({"missing.example": 1, "other.example": 4}) == {"10.0.0.8": 4}
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{OVERRIDES}: missing.example has no limit of its own, since it cannot be resolved: "
        "[Errno -2] Name or service not known"
    )
