from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.broker.manual_loop import ManualLoop
from tidelog.commands.running.service_manager import ServiceManager, watchdog_interval_s


class Manager:
    """The manager's end of the socket."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{path[1:]}" if path.startswith("@") else path)
        self._socket.setblocking(False)
        self.address = path

    def receive_all(self) -> list[str]:
        """Return the messages so far."""
        found = []
        try:
            while True:
                found.append(self._socket.recv(4096).decode())
        except BlockingIOError:
            return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["notify", "user@1", None], ids=["file", "file with an at sign", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(str(tmp_path / request.param) if request.param else f"@tidelog-test-{os.getpid()}")
    yield manager
    manager.close()


def test_systemd_is_notified_when_the_broker_is_ready_and_stops(manager: Manager) -> None:
    loop = ManualLoop()
    service = ServiceManager({"NOTIFY_SOCKET": manager.address}, cast(Any, loop))
    assert manager.receive_all() == []
    service.send_ready()
    service.send_stopping()
    service.close()
    assert manager.receive_all() == ["READY=1", "STOPPING=1"]
    assert loop.later == []


def test_the_watchdog_is_notified_twice_in_its_interval(manager: Manager) -> None:
    loop = ManualLoop()
    service = ServiceManager({"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "10000000"}, cast(Any, loop))
    service.send_ready()
    assert manager.receive_all() == ["READY=1", "WATCHDOG=1"]
    loop.advance(20_000)
    assert manager.receive_all() == ["WATCHDOG=1"] * 4
    service.close()
    loop.advance(20_000)
    assert manager.receive_all() == []


def test_a_manager_that_is_gone_is_no_fault(manager: Manager) -> None:
    service = ServiceManager({"NOTIFY_SOCKET": manager.address + "-gone"}, cast(Any, ManualLoop()))
    service.send_ready()
    service.send_stopping()
    service.close()


@pytest.mark.parametrize(
    ("environment", "interval_s"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "4000000"}, 2.0),
        ({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
    ],
)
def test_the_watchdog_of_another_process_is_not_notified(environment: dict[str, str], interval_s: float) -> None:
    assert watchdog_interval_s(environment) == interval_s


def test_the_watchdog_of_this_process_is_notified() -> None:
    assert watchdog_interval_s({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getpid())}) == 2.0
