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
        """``tidelog serve`` through this very interpreter, without the environment's Python settings."""
        serve = [sys.executable, "-I", "-m", "tidelog.cli", "serve"]
        pairs = [argument for key, value in self.overrides.items() for argument in ("--override", f"{key}={value}")]
        return [*serve, "--data-dir", str(self.data_directory), "--port", str(self.port), *pairs]

    def environment(self) -> dict[str, str]:
        """The caller's, without KAFKA_* settings: they would configure this broker too."""
        return {key: value for key, value in os.environ.items() if not key.startswith("KAFKA_")}

    def stdout(self) -> int:
        """A pipe: the ready line comes on it."""
        return subprocess.PIPE

    def wait_until_ready(self, deadline: float) -> None:
        """Read the ready line, then ask ApiVersions. Raises BrokerError."""
        line = self._first_line(deadline)
        if not line.startswith(READY):
            raise BrokerError(f"{self.name} said {line!r} instead of that it is ready\n{self.output()}")
        self.port = int(line.rsplit(b":", 1)[1])
        self.answer_or_fail(deadline, ANSWER_POLL_S)

    def _first_line(self, deadline: float) -> bytes:
        assert self.process is not None
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        poller = select.poll()  # not select(): a test process may hold more than 1,024 descriptors
        poller.register(descriptor, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            readable = poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
            piece = os.read(descriptor, 1024) if readable else b""
            if not piece:
                raise BrokerError(f"{self.name} ended or said nothing before it was ready\n{self.output()}")
            line += piece
        return line
