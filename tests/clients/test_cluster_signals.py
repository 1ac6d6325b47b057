"""``tidelog cluster start`` leaves no process when it is ended, in whatever way, while the cluster is still starting.

A program stands in for Java: what it is to do until then is said by ``moment``. That a cluster which serves ends well,
test_cluster_start.py shows with a real controller.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.cluster_clients import WAIT_S
from tests.support.kraft_node import wait_until

pytestmark = pytest.mark.slow
NODES = 1
CTRL_C = b"\x03"
JAVA = """#!/bin/sh
for file; do :; done
case "$*" in
*-version*) echo 'openjdk version "17.0.1"' >&2 ;;
*StorageTool*) {format} ;;
*) exec tail -f "$file" ;;
esac
"""
FORMATS = {
    "formatting": 'exec tail -f "$file"',
    "starting": 'data=$(sed -n "s/^log.dirs=//p" "$file"); mkdir "$data"; >"$data/meta.properties"',
}
IGNORING = ["sh", "-c", 'trap "" "$0"; exec "$@"']
"""Run a command with a signal ignored: a script's shell does so with SIGINT for ``command &``, nohup with SIGHUP."""


class Command(NamedTuple):
    """The running command, its directory, and our end of its terminal."""

    process: subprocess.Popen[bytes]
    directory: Path
    terminal: int

    def processes(self) -> list[str]:
        """Return the command lines of all processes that have to do with the directory."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if f"{self.directory}/" in words:
                found.append(words)
        return found


def begin_session(terminal: int) -> None:
    """Have the terminal and take SIGHUP as any program does, also where the tests run under nohup."""
    os.login_tty(terminal)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def started(directory: Path, moment: str, prefix: list[str]) -> Iterator[Command]:
    """The command at a terminal of its own, at the moment."""
    java, jars = directory / "home/bin/java", directory / "jars"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA.format(format=FORMATS[moment]))
    java.chmod(0o755)
    jars.mkdir()
    (jars / "kafka-clients-4.3.1.jar").touch()
    words = ["cluster", "start", "--nodes", str(NODES), "--port", "0", "--kafka", str(jars)]
    words += ["--data-dir", str(directory / "cluster")]
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [*prefix, sys.executable, "-I", "-m", "tidelog.cli", *words],
        cwd=directory,
        env={**os.environ, "JAVA_HOME": str(directory / "home")},
        preexec_fn=lambda: begin_session(theirs),
    )
    os.close(theirs)
    with closing(open(ours, "rb+", buffering=0)), process:
        command = Command(process, directory, ours)
        expected = {"formatting": ["tail"], "starting": ["tail", *["tidelog.cli serve"] * NODES]}[moment]
        wait_until(lambda: has_all(command, expected), f"{expected} run")
        try:
            yield command
        finally:
            process.kill()


def has_all(command: Command, expected: list[str]) -> bool:
    """Return whether there are as many processes with these words as are expected, or the command has ended."""
    assert command.process.poll() is None, "it ended by itself"
    lines = command.processes()
    return all(sum(word in line for line in lines) >= expected.count(word) for word in expected)


def send(number: signal.Signals) -> Callable[[Command], object]:
    """Return what sends the command a signal."""
    return lambda command: command.process.send_signal(number)


def hang_up(command: Command) -> None:
    """Close the terminal, as a window or a lost connection does."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, command.terminal)
    os.close(null)


WAYS: dict[str, tuple[Callable[[Command], object], list[str]]] = {
    "ctrl-c": (lambda command: os.write(command.terminal, CTRL_C), []),
    "terminal closes": (hang_up, []),
    "SIGTERM": (send(signal.SIGTERM), []),
    "SIGINT, ignored before": (send(signal.SIGINT), [*IGNORING, "INT"]),
    "SIGHUP": (send(signal.SIGHUP), []),
    "SIGKILL": (send(signal.SIGKILL), []),
}


@pytest.mark.parametrize(("way", "moment"), [*((way, "starting") for way in WAYS), ("ctrl-c", "formatting")])
def test_no_process_is_left(tmp_path: Path, way: str, moment: str) -> None:
    end, prefix = WAYS[way]
    with started(tmp_path, moment, prefix) as command:
        end(command)
        code = command.process.wait(WAIT_S)
        wait_until(lambda: command.processes() == [], "no process is left")
    assert code == (-signal.SIGKILL if way == "SIGKILL" else 0)
    logs = [path.read_text() for path in tmp_path.glob("cluster/node-*/node.log")]
    assert not any("Traceback" in text for text in logs)


def test_nohup_keeps_it_running_when_the_terminal_closes(tmp_path: Path) -> None:
    with started(tmp_path, "starting", [*IGNORING, "HUP"]) as command:
        command.process.send_signal(signal.SIGHUP)
        command.process.send_signal(signal.SIGTERM)  # signals come in the order of their numbers
        assert command.process.wait(WAIT_S) == 0
