"""Nodes of Kafka as threads of one JVM that stays: a node's life then takes 0.7 s of CPU time in place of 3.1.

Most of the time of a JVM that runs for seconds is spent on the compilation of code that the next JVM compiles again.
``tests/support/java/NodeServer.java`` starts and stops nodes. There is one JVM for the nodes of each version of Kafka
in each process of the tests; it is killed when that process ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

from benchmarks.rivals.kafka_jars import BUILD
from tests.support.jvm import NODE_SERVER, java_program
from tests.support.lasting_jvm import LastingJvm

HEAP = ("-Xmx2G",)
"""Several nodes run at the same time; a log cleaner has a buffer of 128 MiB by Kafka's default."""
STOPPED, FAILED = "stopped", "failed"
POLL_S = 0.02


class NodeServer(LastingJvm):
    """A JVM that runs nodes. ``log_path`` is the file for its standard error: what all its nodes log."""

    def __init__(self, make_command: Callable[[], list[str]], log_path: Path) -> None:
        super().__init__(make_command, log_path)
        self.log_path = log_path

    def ask(self, verb: str, properties: Path) -> str:
        """Send a request about the node with this file server.properties, and return its state. Any thread.

        Raises EOFError or BrokenPipeError if the JVM has ended.
        """
        with self.lock:
            process = self.running()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{verb} {properties}\n".encode())
            process.stdin.flush()
            state = process.stdout.readline().decode().strip()
        if not state:
            raise EOFError(f"the JVM of the nodes ended; see {self.log_path}")
        return state

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The time in which no thread of the JVM runs, and no node of it."""
        with self.lock:
            pid = self.running().pid
            os.kill(pid, signal.SIGSTOP)
            try:
                os.waitid(os.P_PID, pid, os.WSTOPPED)
                yield
            finally:
                os.kill(pid, signal.SIGCONT)


class NodeThread:
    """A node in a `NodeServer`, with the methods of its process (`benchmarks.rivals.process.ChildProcess`)."""

    stdout: IO[bytes] | None = None

    def __init__(self, server: NodeServer, properties: Path) -> None:
        self._server = server
        self._properties = properties
        self._server.ask("start", properties)

    @property
    def pid(self) -> int:
        """None: the process is that of other nodes, too. Raises AssertionError."""
        raise AssertionError("a node with a process id needs a JVM of its own")

    def poll(self) -> int | None:
        """Return 0 after an orderly end, 1 after a failure; None while the node runs."""
        return {STOPPED: 0, FAILED: 1}.get(self._server.ask("state", self._properties))

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the node has ended, and return as `poll`. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired([str(self._properties)], timeout or 0)
            time.sleep(POLL_S)
        return code

    def send_signal(self, sig: int) -> None:
        """Begin an orderly stop; SIGTERM is the only signal."""
        assert sig == signal.SIGTERM, "a node that gets other signals needs a JVM of its own"
        self._server.ask("stop", self._properties)

    def kill(self) -> None:
        """Refuse: a thread cannot be killed. Raises AssertionError."""
        raise AssertionError("a node that is killed needs a JVM of its own")


@cache
def node_server(version: str) -> NodeServer:
    """Return the server for the nodes of a version."""

    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    return NodeServer(
        lambda: java_program(NODE_SERVER, version, log_level="WARN", heap=HEAP),
        BUILD / "nodes" / f"{version}-{worker}.log",
    )
