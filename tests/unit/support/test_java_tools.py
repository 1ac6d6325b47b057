"""The client of the JVM for Kafka's tools: what its timeout covers, and how the end of the JVM is reported."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.support import java_tools, lasting_jvm
from tests.support.java_tools import ToolServer

ANSWER = "import struct, sys; sys.stdout.buffer.write(struct.pack('>ii2si', 0, 2, b'ok', 0))"
SILENCE = "import time; time.sleep(60)"
COMPILATION_S = 1000.0


def make_server(patched: pytest.MonkeyPatch, program: str) -> ToolServer:
    """Make a server whose JVM is a Python program; by the clock of the test its compilation takes COMPILATION_S."""
    now = [0.0]

    def make_command() -> list[str]:
        now[0] += COMPILATION_S
        return [sys.executable, "-c", program]

    patched.setattr(java_tools, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return ToolServer(make_command)


def test_the_timeout_does_not_cover_the_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server(monkeypatch, ANSWER)
    done = server.run("tool", [], None, COMPILATION_S / 2)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok", "")
    server.kill()


def test_a_tool_that_does_not_answer_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        make_server(monkeypatch, SILENCE).run("tool", [], None, 0.01)


def test_a_jvm_that_has_ended_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((EOFError, BrokenPipeError)):
        make_server(monkeypatch, "").run("tool", [], None, 30.0)


@pytest.mark.skipif(sys.platform != "linux", reason="names of threads are read from /proc")
@pytest.mark.parametrize(("name", "is_killed"), [("kafka-admin-client-thread | adminclient-1", True), ("java", False)])
def test_a_jvm_with_a_client_that_a_tool_left_ends_with_the_module(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, name: str, is_killed: bool
) -> None:
    naming = f"import ctypes; ctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)"
    server = make_server(monkeypatch, f"{naming}; {ANSWER}; sys.stdout.flush(); sys.stdin.read()")
    monkeypatch.setattr(lasting_jvm, "_lasting", {server})
    server.run("tool", [], None, 2 * COMPILATION_S)
    process = server.running()
    lasting_jvm.pytest_runtest_teardown(request.node, request.node)
    assert process.poll() is None
    lasting_jvm.pytest_runtest_teardown(request.node, None)
    assert (process.poll() is not None) is is_killed
    server.kill()
