"""Nodes of Kafka as threads of one JVM that stays: a node's life then takes 0.7 s of CPU time in place of 3.1.

Most of the time of a JVM that runs for seconds is spent on the compilation of code that the next JVM compiles again.
``tests/support/java/NodeServer.java`` starts and stops nodes. There is one JVM for the nodes of each version of Kafka
in each process of the tests; it is killed when that process ends.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO

from benchmarks.rivals.kafka_jars import BUILD
from tests.support.jvm import NODE_SERVER, java_program

HEAP = ("-Xmx2G",)
"""The log cleaner of each node has a buffer of 128 MiB."""
RUNNING, STOPPED, FAILED = "running", "stopped", "failed"
POLL_S = 0.02


class NodeServer:
    """A JVM that runs nodes, started by the first one. ``make_command`` returns its command line."""

    def __init__(self, make_command: Callable[[], list[str]], log_path: Path) -> None:
        self._make_command = make_command
        self.log_path = log_path
        """Standard error of the JVM: what all its nodes log."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.kill)

    def kill(self) -> None:
        """Kill the JVM and all its nodes; the next node starts another one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def ask(self, verb: str, properties: Path) -> str:
        """Send a request about the node with this file server.properties, and return its state. Any thread.

        Raises EOFError or BrokenPipeError if the JVM has ended.
        """
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{verb} {properties}\n".encode())
            process.stdin.flush()
            state = process.stdout.readline().decode().strip()
        if not state:
            raise EOFError(f"the JVM of the nodes ended; see {self.log_path}")
        return state

    def _running(self) -> subprocess.Popen[bytes]:
        """Return the JVM; the first time, or after a kill, compile the server if needed, and start it."""
        if self._process is None:
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            with self.log_path.open("wb") as log:
                self._process = subprocess.Popen(
                    self._make_command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
                )
        return self._process


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
