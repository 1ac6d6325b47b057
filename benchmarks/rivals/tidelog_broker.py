"""Tidelog as a user starts it: ``tidelog serve`` in an isolated interpreter, ready when it says so and answers."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.rivals.process import BrokerError, BrokerProcess

READY = b"tidelog ready on "
ANSWER_POLL_S = 0.001


class TidelogProcess(BrokerProcess):
    """One Tidelog broker. ``directory`` holds ``data/`` and what the process printed; ``overrides`` are Kafka keys.

    With port 0 the broker picks one on its first start and keeps it over restarts.
    """

    name = "tidelog"
    start_timeout_s = 30.0
    stop_timeout_s = 20.0

    def __init__(self, directory: Path, overrides: Mapping[str, str] | None = None, *, port: int = 0) -> None:
        super().__init__(directory, port)
        self.overrides = dict(overrides or {})
        self.data_directory = directory / "data"

    def command(self) -> list[str]:
        """Return the command line of ``tidelog serve`` through this very interpreter, without the environment's Python
        settings.
        """
        serve = [sys.executable, "-I", "-m", "tidelog.cli", "serve"]
        pairs = [argument for key, value in self.overrides.items() for argument in ("--override", f"{key}={value}")]
        return [*serve, "--data-dir", str(self.data_directory), "--port", str(self.port), *pairs]

    def environment(self) -> dict[str, str]:
        """Return the caller's environment, without KAFKA_* settings: they would configure this broker too."""
        return {key: value for key, value in os.environ.items() if not key.startswith("KAFKA_")}

    def stdout(self) -> int:
        """Return a pipe: the ready line comes on it."""
        return subprocess.PIPE

    def wait_until_ready(self, deadline: float) -> None:
        """Read the ready line, then ask ApiVersions. Raises BrokerError."""
        self.port = read_ready_line(self, deadline)
        self.answer_or_fail(deadline, ANSWER_POLL_S)


def read_ready_line(broker: BrokerProcess, deadline: float) -> int:
    """Wait for the line that says where the broker is ready; return the port. Raises BrokerError."""
    line = _first_line(broker, deadline)
    if not line.startswith(READY):
        raise BrokerError(f"{broker.name} said {line!r} instead of that it is ready\n{broker.output()}")
    return int(line.rsplit(b":", 1)[1])


def _first_line(broker: BrokerProcess, deadline: float) -> bytes:
    assert broker.process is not None
    assert broker.process.stdout is not None
    descriptor = broker.process.stdout.fileno()
    poller = select.poll()  # not select(): a test process may hold more than 1,024 descriptors
    poller.register(descriptor, select.POLLIN)
    line = b""
    while b"\n" not in line:
        readable = poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
        piece = os.read(descriptor, 1024) if readable else b""
        if not piece:
            raise BrokerError(f"{broker.name} ended or said nothing before it was ready\n{broker.output()}")
        line += piece
    return line.partition(b"\n")[0]  # what follows may have come with it: the address of the console
