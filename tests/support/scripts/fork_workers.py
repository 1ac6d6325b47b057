"""Forks workers of pytest-xdist, which then need not import the tests: this process has imported them.

The arguments are the descriptor of a listening socket, then those of pytest. Each connection (`forked_worker.py`) is
one worker: it brings the worker's standard input, output and error, and is sent the worker's exit code. A connection
that is closed before that kills its worker. This process ends when its standard input is closed.

Imports start threads of Polars and of allocators of memory. A fork does not have them; the allocators prepare for that,
and Polars starts the threads that it needs with its first query.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import sys
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[3]
STANDARD = 3
"""Descriptors of standard input, output and error."""
MAX_MESSAGE = 16


class Worker(NamedTuple):
    """A forked process: its id, the descriptor that tells its end, and the connection that waits for it."""

    pid: int
    end: int
    connection: socket.socket


def import_tests(arguments: list[str]) -> None:
    """Import the test modules as pytest does, and compile those that have changed."""
    sys.path.insert(0, str(ROOT))  # tests/conftest.py removes it
    import_module("tests")  # from here, not by the link in src
    pytest.main([*arguments, "-qq", "--capture=no", "-p", "no:cacheprovider", "-p", "tests.support.compiling"])


def run_worker(descriptors: list[int]) -> None:
    """Run as a worker: do what ``python -c`` does with the line that execnet gives it."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv[:] = ["-c"]
    sys.modules["__main__"] = ModuleType("__main__")
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, 1, closefd=False) for number, mode in enumerate(("r", "w", "w"))
    )
    exec(eval(sys.stdin.readline()), sys.modules["__main__"].__dict__)


class WorkerServer:
    """The workers of a listening socket. For one thread."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ, self.start)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, None)

    def serve(self) -> list[int] | None:
        """Start and end workers until standard input is closed. In a new worker, return its descriptors."""
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return None
                descriptors: list[int] | None = key.data()
                if descriptors:
                    return descriptors

    def start(self) -> list[int] | None:
        """Fork a worker for the next connection. In the worker, return its descriptors."""
        connection, _ = self._listening.accept()
        _, descriptors, _, _ = socket.recv_fds(connection, MAX_MESSAGE, STANDARD)
        if len(descriptors) < STANDARD:
            connection.close()
            return None
        pid = os.fork()
        if pid == 0:
            self._listening.close()
            self._selector.close()
            connection.close()
            return descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        worker = Worker(pid, os.pidfd_open(pid), connection)
        self._selector.register(worker.end, selectors.EVENT_READ, lambda: self.end(worker))
        self._selector.register(connection, selectors.EVENT_READ, lambda: self.kill(worker))
        return None

    def end(self, worker: Worker) -> None:
        """Send the exit code of a worker that has ended."""
        _, status = os.waitpid(worker.pid, 0)
        self._selector.unregister(worker.end)
        os.close(worker.end)
        if worker.connection.fileno() >= 0:  # not closed by `kill`
            self._selector.unregister(worker.connection)
            worker.connection.send(str(os.waitstatus_to_exitcode(status)).encode())
            worker.connection.close()

    def kill(self, worker: Worker) -> None:
        """Kill a worker whose connection was closed."""
        self._selector.unregister(worker.connection)
        worker.connection.close()
        os.kill(worker.pid, signal.SIGKILL)


def main() -> None:
    """Import the tests, and serve."""
    descriptor, *arguments = sys.argv[1:]
    import_tests(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the workers, and for the process that prints
    gc.freeze()
    with socket.socket(fileno=int(descriptor)) as listening, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on warns of forks beside any thread
        descriptors = WorkerServer(listening).serve()
    if descriptors is not None:
        run_worker(descriptors)


if __name__ == "__main__":
    main()
