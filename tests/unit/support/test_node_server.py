"""The client of the JVM for Kafka's nodes: states and stops of nodes, and how the end of the JVM is reported."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.node_server import NodeServer, NodeThread

PROGRAM = """
import sys
state = {}
for line in sys.stdin:
    verb, _, node = line.strip().partition(" ")
    if verb == "start":
        state[node] = "failed" if "broken" in node else "running"
    elif verb == "stop":
        state[node] = "stopped"
    print(state[node], flush=True)
"""
"""A Python program in place of the JVM; nodes stop at once."""


@pytest.fixture
def server(tmp_path: Path) -> NodeServer:
    return NodeServer(lambda: [sys.executable, "-c", PROGRAM], tmp_path / "log" / "nodes.log")


def test_a_node_runs_until_it_is_stopped(server: NodeServer) -> None:
    node, other = (NodeThread(server, Path(name)) for name in ("one with a space", "other"))
    assert node.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        node.wait(0)
    node.send_signal(signal.SIGTERM)
    assert node.wait(60) == node.wait() == 0
    assert other.poll() is None
    server.kill()


def test_a_node_that_failed_has_an_exit_code(server: NodeServer) -> None:
    assert NodeThread(server, Path("broken")).wait(60) == 1
    server.kill()


def test_a_thread_is_no_process(server: NodeServer) -> None:
    node = NodeThread(server, Path("one"))
    for use in (node.kill, lambda: node.pid, lambda: node.send_signal(signal.SIGKILL)):
        with pytest.raises(AssertionError, match="JVM of its own"):
            use()
    server.kill()


def test_a_jvm_that_has_ended_is_reported(tmp_path: Path) -> None:
    server = NodeServer(lambda: [sys.executable, "-c", "import sys; sys.exit('no memory')"], tmp_path / "nodes.log")
    with pytest.raises((EOFError, BrokenPipeError)):
        NodeThread(server, Path("one"))
    server.kill()
    assert "no memory" in server.log_path.read_text()
