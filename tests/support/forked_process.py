"""Processes of ``tidelog serve`` that are forked, not started: a short life takes 0.05 s of CPU time in place of 0.2.

Most of a short life is the import of modules. In each process of the tests one server (``scripts/fork_brokers.py``)
has imported them, and forks the brokers. A broker is a process of its own, as after an exec: it can be killed, and has
its own files and session. A broker with a preloaded library of ``preloaded.py`` is forked from a server that has
preloaded it, too. A broker with another environment than the tests have, or with another command line than that of
``tidelog serve``, is started in the usual way.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

from benchmarks.rivals.process import BrokerProcess, ChildProcess
from tests.support import preloaded, unit_cost

SCRIPT = Path(__file__).with_name("scripts") / "fork_brokers.py"
SERVE = [sys.executable, "-I", "-m", "tidelog.cli"]
"""How the command line of a broker begins that can be forked."""
MAX_ANSWER = 1 << 12
NOT_READ_BY_IMPORTS = ("PYTEST_CURRENT_TEST", "OPENBLAS_NUM_THREADS", *preloaded.SETTINGS)
"""Variables that differ from test to test, and that count for nothing that the server imports. A cleaner in the process
of the test sets the one of OpenBLAS before it imports NumPy, as each broker does."""
PRELOAD = "LD_PRELOAD"
"""Variable with the library that the loader puts before all others."""


class ForkServer:
    """The process that forks. Any thread may call its methods."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """``environment`` has the variables that count when modules are imported."""
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(SCRIPT)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        self.pid = self._process.pid
        atexit.register(self.close)

    def close(self) -> None:
        """End the server; processes that it has forked go on."""
        self._requests.close()
        self._process.wait()

    def ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """Send a request with descriptors, and return its answer. Raises EOFError if the server has ended."""
        with self._lock:
            socket.send_fds(self._requests, [json.dumps(request).encode()], descriptors)
            answer = self._requests.recv(MAX_ANSWER)
        if not answer:
            raise EOFError("the process that forks brokers has ended")
        found: dict[str, Any] = json.loads(answer)
        return found


class ForkedProcess:
    """A forked process, with those methods of `subprocess.Popen` that a broker's process needs."""

    def __init__(self, server: ForkServer, words: Sequence[str], environment: Mapping[str, str], errors: int) -> None:
        """``words`` follow ``tidelog`` on the command line; ``errors`` is the descriptor of standard error."""
        self._server = server
        self._code: int | None = None
        self._waiting = threading.Lock()
        read, write = os.pipe()
        request = {"words": words, "environment": dict(environment), "directory": os.getcwd()}
        try:
            self.pid: int = server.ask(request, [write, errors])["pid"]
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        self.stdout: IO[bytes] | None = os.fdopen(read, "rb", 0)
        self._end = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        with self._waiting:
            if self._code is None:
                end = self._server.ask({"pid": self.pid})
                if end["code"] is not None:
                    self._code = end["code"]
                    unit_cost.add_cpu_seconds(end["cpu_s"])
                    os.close(self._end)
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return as `poll`. Raises subprocess.TimeoutExpired."""
        if (code := self.poll()) is not None:
            return code
        ended = select.poll()
        ended.register(self._end, select.POLLIN)
        if not ended.poll(None if timeout is None else timeout * 1000):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.send_signal(signal.SIGKILL)


def shared(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that decide what modules do when they are imported. A server shares them with its forks."""
    own = {PRELOAD, *NOT_READ_BY_IMPORTS}
    return {name: value for name, value in environment.items() if name not in own and not name.startswith("KAFKA_")}


@cache
def environment_of_tests() -> dict[str, str]:
    """Return the shared variables of the tests, as they are at the first call."""
    return shared(os.environ)


@cache
def fork_server(library: str | None = None) -> ForkServer:
    """Return the server of this process whose brokers have ``library`` preloaded; the first call starts it."""
    return ForkServer(environment_of_tests() | ({} if library is None else {PRELOAD: library}))


def can_fork(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a process with this command line and environment would be the same if it were forked."""
    library = environment.get(PRELOAD)
    return (
        list(command[: len(SERVE)]) == SERVE
        and hasattr(os, "pidfd_open")
        and shared(environment) == environment_of_tests()
        and (library is None or preloaded.is_compiled(library))
    )


def start_or_fork(broker: BrokerProcess, start: Callable[[], ChildProcess]) -> ChildProcess:
    """Fork a broker's process if that makes no difference, else call ``start``."""
    command, environment = broker.command(), broker.environment()
    if broker.stdout() != subprocess.PIPE or not can_fork(command, environment):
        return start()
    server = fork_server(environment.get(PRELOAD))
    with broker.log_path.open("ab") as errors:
        return ForkedProcess(server, command[len(SERVE) :], environment, errors.fileno())
