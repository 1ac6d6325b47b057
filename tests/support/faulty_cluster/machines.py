"""Machines of a cluster as network namespaces of this machine, with addresses of their own and links that can be cut.

The addresses are those that RFC 5737 reserves for documentation, so that the commands of a guide run unchanged. Clients
in this process reach all machines. Needs root and the program ``ip`` of iproute2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from benchmarks.rivals.apache_kafka import SIGTERM_EXIT, java_command
from benchmarks.rivals.kafka_jars import KAFKA_4
from benchmarks.rivals.process import BrokerProcess
from benchmarks.rivals.tidelog_broker import read_ready_line
from tests.support.jvm import SMALL_HEAP, broker_options

NETWORK = "198.51.100."
OWN = f"{NETWORK}254/24"
MACHINES = (1, 2, 3)
INSTALL = "apt-get install iproute2"


def address(machine: int) -> str:
    """Return a machine's address."""
    return f"{NETWORK}{machine}"


def require_namespaces() -> None:
    """Skip the test if no network namespace can be created."""
    if shutil.which("ip") is None:
        pytest.skip(f"ip is missing; install it with: {INSTALL}")
    if os.geteuid() != 0:
        pytest.skip("only root makes network namespaces")
    known = subprocess.run(["ip", "-oneline", "address"], capture_output=True, text=True, check=True).stdout
    if f" {NETWORK}" in known:
        pytest.skip(f"an interface of this machine has an address of {NETWORK}0/24 already")
    name = f"tidelog-{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no network namespaces here: {tried.stderr.strip()}")
    ip("netns", "delete", name)


def ip(*words: str) -> None:
    """Run ``ip``. Raises subprocess.CalledProcessError."""
    subprocess.run(["ip", *words], check=True, timeout=60)


class Machines:
    """The namespaces of the machines, and the bridge that connects them, in a namespace of its own."""

    def __init__(self) -> None:
        self._switch = self.namespace(0)
        self._stack = ExitStack()

    def namespace(self, machine: int) -> str:
        """Return the name of a machine's namespace."""
        return f"tidelog-{os.getpid()}-{machine}"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for machine in (0, *MACHINES):
                ip("netns", "add", self.namespace(machine))
                stack.callback(ip, "netns", "delete", self.namespace(machine))
            ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
            ip("-n", self._switch, "link", "set", "bridge", "up")
            for machine in MACHINES:
                self._plug(machine)
            self._plug_own()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _plug(self, machine: int) -> None:
        name = self.namespace(machine)
        self._cable(f"port{machine}", "eth0", name)
        ip("-n", name, "address", "add", f"{address(machine)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", name, "link", "set", device, "up")

    def _plug_own(self) -> None:
        """Connect this process's network; its end of the link is removed with the bridge's end."""
        device = f"tide{os.getpid()}"
        self._cable("own", device, str(os.getpid()))
        ip("address", "add", OWN, "dev", device)
        ip("link", "set", device, "up")

    def _cable(self, port: str, device: str, namespace: str) -> None:
        """Create a link (veth) from the bridge to a namespace."""
        ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", device, "netns", namespace)
        ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")

    def pull(self, machine: int) -> None:
        """Cut a machine's link."""
        ip("-n", self._switch, "link", "set", f"port{machine}", "down")

    def plug_in(self, machine: int) -> None:
        """Restore a machine's link."""
        ip("-n", self._switch, "link", "set", f"port{machine}", "up")

    def command(self, machine: int, words: Iterable[str]) -> list[str]:
        """Return the command that runs ``words`` on a machine, with the same process id."""
        return ["ip", "netns", "exec", self.namespace(machine), *words]


class Controller(BrokerProcess):
    """A controller of Apache Kafka on a machine."""

    name = "controller"
    start_timeout_s = 120.0

    def __init__(self, machines: Machines, machine: int, config: Path) -> None:
        super().__init__(config.parent, 9093)
        self.host = address(machine)
        words = [*java_command(KAFKA_4, (*SMALL_HEAP, *broker_options(KAFKA_4))), "kafka.Kafka"]
        self._command = machines.command(machine, [*words, str(config)])

    def command(self) -> list[str]:
        """Return the command line that ``kafka-server-start.sh`` would run."""
        return self._command

    def wait_until_ready(self, deadline: float) -> None:
        """Send ApiVersions until the controller answers."""
        self.answer_or_fail(deadline, 0.05)

    def clean_exit_codes(self) -> tuple[int, ...]:
        """Return the exit codes of a JVM that SIGTERM has stopped."""
        return (0, SIGTERM_EXIT)


class Member(BrokerProcess):
    """A Tidelog broker on a machine."""

    name = "member"
    start_timeout_s = 120.0
    stop_timeout_s = 120.0

    def __init__(self, machines: Machines, machine: int, config: Path, tidelog: list[str]) -> None:
        super().__init__(config.parent, 9092)
        self.host = address(machine)
        self._command = machines.command(machine, [*tidelog, "serve", "--config", str(config)])

    def command(self) -> list[str]:
        """Return the command line of ``tidelog serve``."""
        return self._command

    def stdout(self) -> int:
        """Return PIPE, because the broker prints the ready line on standard output."""
        return subprocess.PIPE

    def wait_until_ready(self, deadline: float) -> None:
        """Read the ready line. Raises BrokerError."""
        read_ready_line(self, deadline)
