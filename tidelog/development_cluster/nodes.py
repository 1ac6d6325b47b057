"""Processes of a cluster on one machine, which are started, watched and stopped together.

The members end when this process ends in any way, because their standard input closes. The kernel ends the controller
(PR_SET_PDEATHSIG), but only on Linux: elsewhere a ``kill -9`` of the command leaves the controller running.
"""

from __future__ import annotations

import contextlib
import ctypes
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tidelog.client.cluster import Cluster, Trouble
from tidelog.development_cluster.layout import (
    Layout,
    cluster_id_of,
    controller_properties,
    member_properties,
)
from tidelog.private_files import write_properties

PR_SET_PDEATHSIG = 1
START_LIMIT_S = 120.0
STOP_LIMIT_S = 60.0
FORMAT_LIMIT_S = 120.0
TAIL_BYTES = 1500
READY = b"tidelog ready on "
CONSOLE = b"console "
CONSOLE_LIMIT_S = 2.0
"""Timeout of the console's line after the ready line; a member without a console prints none."""
ASK_LIMIT_S = 10.0
ASK_AGAIN_S = 0.02
HEAP = ("-Xmx256M", "-XX:+UseSerialGC", "-Dlog4j2.level=WARN")


class NodeError(Exception):
    """A node could not be started, or ended; the message has the reason, or the end of its log."""


class Node:
    """One process and its log."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        before_exec: Callable[[], None] | None = None,
        logs_stdout: bool = False,
    ) -> None:
        """Standard error goes into the log. Standard output does too with ``logs_stdout``; otherwise it is a pipe, of
        which ``wait_ready`` and ``find_console`` read the first lines."""
        self.name = name
        self.log = log
        self.console: str | None = None
        """Address of a member's console, once it is ready; None if it has none."""
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output if logs_stdout else subprocess.PIPE,
                stderr=output,
                bufsize=0,  # with a buffer, poll would not see a line that is in it
                start_new_session=True,  # only this process gets Ctrl-C, and stops the nodes in order
                preexec_fn=before_exec,
            )

    @property
    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self.process.poll() is not None

    def failure(self, what: str) -> NodeError:
        """Return the error of this node, with the end of its log."""
        tail = self.log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
        return NodeError(f"{self.name} {what}; the end of {self.log}:\n{tail}")

    def wait_ready(self, deadline: float) -> None:
        """Wait for the ready line. Raises NodeError."""
        line = self._read_line(deadline)
        if line is None:
            raise self.failure(f"is not ready after {START_LIMIT_S:.0f} s")
        if not line.startswith(READY):
            self.process.wait()
            raise self.failure(f"ended with {self.process.returncode} before it was ready")

    def find_console(self, deadline: float) -> None:
        """Read the address of the console from the next line, if it comes in time."""
        line = self._read_line(deadline)
        if line is not None and line.startswith(CONSOLE):
            self.console = line.removeprefix(CONSOLE).decode().strip()

    def _read_line(self, deadline: float) -> bytes | None:
        """Return the next line of standard output, None if there is none in time."""
        output = self.process.stdout
        assert output is not None
        poll = select.poll()
        poll.register(output, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return None
        return output.readline()

    def stop(self) -> None:
        """Stop the process with SIGTERM; SIGKILL when that takes too long."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def ask_brokers(address: str) -> Iterable[int]:
    """Ask a member for the ids of the brokers that clients learn from it. Raises ClientError, KafkaError."""
    with Cluster(address, ASK_LIMIT_S) as cluster:
        return cluster.brokers()


def wait_until_known(ask: Callable[[], Iterable[int]], node_ids: Iterable[int], deadline: float) -> bool:
    """Wait until a member, which is ready, tells clients of all nodes; return False if it does not in time.

    A member is ready before others have learned that it is. One that needs another protocol than ours is not asked.
    """
    while True:
        try:
            known = ask()
        except Trouble:
            return True
        if set(node_ids) <= set(known):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(ASK_AGAIN_S)


class Nodes:
    """The controller and the members of a layout."""

    def __init__(self, layout: Layout, java: str, class_path: str) -> None:
        self._layout = layout
        self._java = [java, *HEAP, "-cp", class_path]
        self.running: list[Node] = []

    def start(self) -> None:
        """Format new directories, start all nodes, and wait until they are ready. Raises NodeError, OSError."""
        layout = self._layout
        cluster_id = cluster_id_of(layout.directory)
        self._start_controller(cluster_id)
        members = [self._start_member(node_id, cluster_id) for node_id in layout.node_ids]
        deadline = time.monotonic() + START_LIMIT_S
        for member in members:
            self._wait(member, deadline)
        for node_id, member in zip(layout.node_ids, members, strict=True):
            if not wait_until_known(partial(ask_brokers, layout.address(node_id)), layout.node_ids, deadline):
                raise member.failure(f"does not know all nodes after {START_LIMIT_S:.0f} s")
        for member in members if layout.overrides.get("admin.listener", "default") else ():
            member.find_console(time.monotonic() + CONSOLE_LIMIT_S)

    def _start_controller(self, cluster_id: str) -> None:
        directory = self._layout.controller
        directory.mkdir(exist_ok=True)
        path = directory / "controller.properties"
        write_properties(path, controller_properties(self._layout))
        if not (directory / "data" / "meta.properties").exists():
            self._format(path, cluster_id)
        command = [*self._java, "kafka.Kafka", str(path)]
        log = directory / "controller.log"
        self.running.append(Node("the controller", command, log, before_exec=_end_with_parent, logs_stdout=True))

    def _format(self, path: Path, cluster_id: str) -> None:
        command = [*self._java, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FORMAT_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            raise NodeError(f"the controller's directory was not formatted in {FORMAT_LIMIT_S:.0f} s") from None
        if done.returncode != 0:
            raise NodeError(f"the controller's directory cannot be formatted:\n{(done.stdout + done.stderr).strip()}")

    def _start_member(self, node_id: int, cluster_id: str) -> Node:
        directory = self._layout.node(node_id)
        directory.mkdir(exist_ok=True)
        path = directory / "server.properties"
        write_properties(path, member_properties(self._layout, node_id))
        tidelog = [sys.executable, "-I", "-m", "tidelog.cli"]
        format_command = [*tidelog, "format", "-t", cluster_id, "-c", str(path), "--ignore-formatted"]
        done = subprocess.run(format_command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NodeError(f"node {node_id} cannot be formatted: {done.stderr.strip()}")
        command = [*tidelog, "serve", "--config", str(path), "--until-stdin-closes"]
        member = Node(f"node {node_id}", command, directory / "node.log")
        self.running.append(member)
        return member

    def _wait(self, member: Node, deadline: float) -> None:
        """Wait until a member is ready. Raises NodeError: the controller's if it has ended, otherwise the member's."""
        controller = self.running[0]
        try:
            member.wait_ready(deadline)
        except NodeError:
            if controller.has_ended:
                raise controller.failure(f"ended with {controller.process.returncode}") from None
            raise

    def find_ended(self) -> Iterator[Node]:
        """Yield the nodes whose processes have ended."""
        return (node for node in self.running if node.has_ended)

    def stop(self) -> None:
        """Stop the members, whose partitions get other leaders, then the controller."""
        for node in reversed(self.running):
            node.stop()
        self.running.clear()
