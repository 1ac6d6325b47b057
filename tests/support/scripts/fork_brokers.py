"""Forks processes of ``tidelog serve``, which import nothing: this process has imported what a broker imports.

Standard input is a socket of `tests.support.forked_process.ForkServer`. A request to start a process comes with the
descriptors of its standard output and error, and is answered by its process id. A request for a process's end is
answered by its exit code, negative for a signal, and by its CPU seconds. This process has one thread, and ends when the
socket is closed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from importlib import import_module
from typing import Any

from tidelog.broker.loop.thread_rule import install
from tidelog.cli import main

MAX_REQUEST = 1 << 17
"""Bytes of a request: the environment takes most of them."""


IMPORTED = (
    "tidelog.broker.server",
    "tidelog.broker.security.log_lines",
    "tidelog.broker.handlers.api_versions",
    "tidelog.log.recovery.scan",
    "tidelog.protocol.schema.engine",
    "uvloop",
    "tidelog.broker.coordinator.coordinators",
)
"""Modules that, with those that they import, ``tidelog serve`` has imported when it has answered a first request; last
the coordinators, which it imports in a thread when a client needs one: 0.09 s. The brokers that tests start in the
usual way import them so, two dozen in a run."""


def import_broker() -> None:
    """Import the broker, with the check of the thread rule if the environment asks for it."""
    if os.environ.get("TIDELOG_DEBUG") == "1":
        install()
    for name in IMPORTED:
        import_module(name)


def start(request: dict[str, Any], descriptors: list[int], requests: socket.socket) -> int:
    """Fork a process. Returns its id; in the new process it does not return."""
    pid = os.fork()
    if pid == 0:
        requests.close()
        become(request, descriptors)
        sys.exit(main(sys.argv[1:]))
    for descriptor in descriptors:
        os.close(descriptor)
    return pid


def become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Give this process what an exec in place of the fork would have given it."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((null, *descriptors)):
        os.dup2(descriptor, number)
        if descriptor != number:
            os.close(descriptor)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.argv[1:] = request["words"]


def end_of(pid: int) -> dict[str, Any]:
    """Return exit code and CPU seconds of a process; no exit code while it runs."""
    ended, status, used = os.wait4(pid, os.WNOHANG)
    if not ended:
        return {"code": None}
    return {"code": os.waitstatus_to_exitcode(status), "cpu_s": used.ru_utime + used.ru_stime}


def serve(requests: socket.socket) -> None:
    """Answer requests until the socket is closed."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST, 2)
        if not data:
            return
        request = json.loads(data)
        answer = end_of(request["pid"]) if "pid" in request else {"pid": start(request, descriptors, requests)}
        requests.send(json.dumps(answer).encode())


if __name__ == "__main__":
    import_broker()
    serve(socket.socket(fileno=os.dup(0)))
