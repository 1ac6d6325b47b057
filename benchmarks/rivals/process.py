"""A broker as a child process: start it, wait until it answers, measure it, stop it.

`BrokerProcess` starts, stops, kills and restarts one command, and keeps its standard error in a file. So no full pipe
stops a broker, and errors show what the broker printed. The child class decides what "ready" means: Tidelog prints a
line, Apache Kafka is asked.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self

API_VERSIONS_V0 = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""The smallest request that every broker answers: ApiVersions v0, correlation id 1, no client id."""
OUTPUT_TAIL_BYTES = 6000
_PORTS = range(12_000, 32_000)
"""Below the ports of outgoing connections: from 32,768 on in Linux, from 49,152 on in macOS."""
_CHANCE = random.SystemRandom()


class BrokerError(RuntimeError):
    """A broker did not start or did not stop as it should; the message ends with what it printed last."""


def free_port() -> int:
    """Choose a TCP port of 127.0.0.1 that was free a moment ago, and that the system gives to no outgoing connection.

    The broker may bind the port a minute later. The choice is the system's random one, because test processes that
    choose at the same time may have given ``random`` the same seed.
    """
    while True:
        port = _CHANCE.choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def ask_api_versions(host: str, port: int, timeout_s: float) -> bool:
    """Return whether a broker answered an ApiVersions request within ``timeout_s``."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=timeout_s) as connection:
        connection.settimeout(timeout_s)
        connection.sendall(API_VERSIONS_V0)
        return len(connection.recv(4)) == 4
    return False


class ChildProcess(Protocol):
    """The part of `subprocess.Popen` that a broker's process needs."""

    stdout: IO[bytes] | None

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


class BrokerProcess:
    """One broker process on 127.0.0.1. Not for use by several threads.

    A child class sets ``name`` and provides `command` and `wait_until_ready`.
    """

    name = "broker"
    start_timeout_s = 60.0
    stop_timeout_s = 30.0

    def __init__(self, directory: Path, port: int = 0) -> None:
        self.directory = directory
        self.host = "127.0.0.1"
        self.port = port
        self.process: ChildProcess | None = None
        self.log_path = directory / f"{self.name}.out"
        self.start_seconds = 0.0
        """Seconds from the last start of the process until `wait_until_ready` returned: to its first answered request,
        or to the ready line of a Tidelog member."""

    def command(self) -> list[str]:
        """Return the command line to run."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Return the environment of the process."""
        return dict(os.environ)

    def wait_until_ready(self, deadline: float) -> None:
        """Return once the broker answers; ``deadline`` is a time of `time.monotonic`. Sets ``port`` if it was 0."""
        raise NotImplementedError

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for clients."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The running process."""
        assert self.process is not None, "not started"
        return self.process.pid

    def start(self) -> Self:
        """Start the process and wait until it answers. Raises BrokerError, OSError, and as `command`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        self.process = self.start_process()
        try:
            self.wait_until_ready(begin + self.start_timeout_s)
        except BaseException:
            self.discard()
            raise
        self.start_seconds = time.monotonic() - begin
        return self

    def start_process(self) -> ChildProcess:
        """Start the command, with standard error at the end of ``log_path``. Raises OSError, and as `command`."""
        with self.log_path.open("ab") as output:
            return subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=self.stdout(),
                stderr=output,
                env=self.environment(),
                start_new_session=True,
            )

    def stdout(self) -> int:
        """Return the ``stdout`` argument of the process."""
        return subprocess.DEVNULL

    def answer_or_fail(self, deadline: float, pause_s: float) -> None:
        """Ask ApiVersions until it is answered. Raises BrokerError when the process ends or the deadline passes."""
        while not (self.port and ask_api_versions(self.host, self.port, timeout_s=5)):
            if self.process is None or self.process.poll() is not None:
                raise BrokerError(f"{self.name} ended while it started\n{self.output()}")
            if time.monotonic() > deadline:
                raise BrokerError(f"{self.name} did not answer in {self.start_timeout_s:.0f} s\n{self.output()}")
            time.sleep(pause_s)

    def output(self) -> str:
        """Return the last lines the process printed on standard error, over all its starts."""
        if not self.log_path.exists():
            return ""
        return self.log_path.read_bytes()[-OUTPUT_TAIL_BYTES:].decode(errors="replace")

    def terminate(self) -> None:
        """Send SIGTERM and wait; the process must end cleanly. Raises BrokerError."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(self.stop_timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerError(f"{self.name} did not stop in {self.stop_timeout_s:.0f} s\n{self.output()}") from None
        self._forget()
        if code not in self.clean_exit_codes():
            raise BrokerError(f"{self.name} ended with {code} on SIGTERM\n{self.output()}")

    def clean_exit_codes(self) -> tuple[int, ...]:
        """Return the exit codes of a clean stop on SIGTERM."""
        return (0,)

    def kill(self) -> None:
        """Kill a running process with -9 and wait until it ends."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        self._forget()

    def discard(self) -> None:
        """End a process that is of no more use, if it runs: the quickest way, without a look at its exit code."""
        self.kill()

    def _forget(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None

    def restart(self) -> Self:
        """Stop a running process cleanly, and start it again on the same port."""
        self.terminate()
        return self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.terminate()
        else:
            self.discard()
