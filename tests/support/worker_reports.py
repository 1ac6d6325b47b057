"""Messages that a worker of pytest-xdist need not send: half a millisecond of each test.

A worker tells the process that prints when a test begins and ends, and sends a report of its setup, call and teardown.
The begin and the end are printed with ``--verbose`` alone. Reports of a setup or teardown that passed in
`SHORT_S` are in no list of durations. Their cost is added to the next report that is sent. The report of a call that
passed is sent together with the message that the worker is done with this test. Both are pickled: execnet
translates each value of a message in Python.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.unit_cost import UNSENT, cost_of_phase

SHORT_S = 0.005
"""The default of ``--durations-min``: shorter phases are not listed."""
PACKED = "packed"
"""Name of a message that contains others."""
_UNUSED = ("logstart", "logfinish")
_REPORT, _DONE = "testreport", "runtest_protocol_complete"


class FewerMessages:
    """The sender of a worker's messages, which leaves out those that are not used, and sends two in one."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._cpu_s = self._wall_s = 0.0
        self._call: dict[str, Any] | None = None
        """The report of a call, until the next message."""

    def __call__(self, name: str, **kwargs: Any) -> None:
        """Send a message, unless it is one that is not used."""
        if name in _UNUSED:
            return
        if name == _REPORT:
            report = kwargs["data"]
            if is_unused(report):
                self._cpu_s += cost_of_phase(report["user_properties"])
                self._wall_s += report["duration"]
                return
            report["user_properties"].append((UNSENT, (self._cpu_s, self._wall_s)))
            self._cpu_s = self._wall_s = 0.0
        call, self._call = self._call, None
        if call is not None and name == _DONE:
            self._send(PACKED, messages=pickle.dumps([(_REPORT, call), (name, kwargs)]))
            return
        if call is not None:
            self._send(_REPORT, **call)
        if name == _REPORT and kwargs["data"]["when"] == "call" and kwargs["data"]["outcome"] == "passed":
            self._call = kwargs
        else:
            self._send(name, **kwargs)


def is_unused(report: dict[str, Any]) -> bool:
    """Return whether a report, as it is sent, is of a short setup or teardown that passed."""
    return bool(report["when"] != "call" and report["outcome"] == "passed" and report["duration"] < SHORT_S)


def send_fewer(config: pytest.Config) -> None:
    """Replace the sender of a worker, unless ``--verbose`` is given; other processes have none."""
    if config.option.verbose > 0:
        return
    plugins = config.pluginmanager.get_plugins()
    worker: Any = next((plugin for plugin in plugins if type(plugin).__name__ == "WorkerInteractor"), None)
    if worker is not None:
        worker.sendevent = FewerMessages(worker.sendevent)


def unpack(take: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a receiver of messages that gives ``take`` each one, and those of a packed one by one."""

    def take_each(message: Any) -> None:
        if isinstance(message, tuple) and message[0] == PACKED:
            for one in pickle.loads(message[1]["messages"]):
                take(one)
        else:
            take(message)

    return take_each


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Let the process that prints take packed messages of a worker."""
    node.process_from_remote = unpack(node.process_from_remote)
