"""Tidelog as a user starts it: ``tidelog serve`` in an isolated interpreter, ready once it prints its ready line and
answers.
"""

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
        """Return the command line of ``tidelog serve`` in this process's interpreter, isolated from PYTHON*
        variables.
        """
        serve = [sys.executable, "-I", "-m", "tidelog.cli", "serve"]
        pairs = [argument for key, value in self.overrides.items() for argument in ("--override", f"{key}={value}")]
        return [*serve, "--data-dir", str(self.data_directory), "--port", str(self.port), *pairs]

    def environment(self) -> dict[str, str]:
        """Return the caller's environment, without KAFKA_* settings, which would configure this broker."""
        return {key: value for key, value in os.environ.items() if not key.startswith("KAFKA_")}

    def stdout(self) -> int:
        """Return a pipe: the ready line comes on it."""
        return subprocess.PIPE

    def wait_until_ready(self, deadline: float) -> None:
        """Read the ready line, then ask ApiVersions. Raises BrokerError."""
        self.port = read_ready_line(self, deadline)
        self.answer_or_fail(deadline, ANSWER_POLL_S)


def read_ready_line(broker: BrokerProcess, deadline: float) -> int:
    """Wait for the broker's ready line; return the port that it names. Raises BrokerError."""
    line = _first_line(broker, deadline)
    if not line.startswith(READY):
        raise BrokerError(f"{broker.name} printed {line!r} instead of its ready line\n{broker.output()}")
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
            raise BrokerError(f"{broker.name} ended, or printed no ready line in time\n{broker.output()}")
        line += piece
    return line.partition(b"\n")[0]  # the console's address may follow it
