"""Workers of pytest-xdist that are forked, not started: each would import all test modules, 5 s of CPU time.

One process imports them (``scripts/fork_workers.py``), and is forked for each worker. A worker is a process of its own
that collects its tests and can end or be killed as any other; another one is then forked in its place.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

SCRIPTS = Path(__file__).with_name("scripts")
SERVER, WORKER = SCRIPTS / "fork_workers.py", SCRIPTS / "forked_worker.py"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Let each worker on this machine be forked, where the system can."""
    if not hasattr(os, "pidfd_open"):
        return
    directory = TemporaryDirectory(prefix="workers-")
    config.add_cleanup(directory.cleanup)
    address = Path(directory.name) / "socket"
    words = [*config.args, "--rootdir", str(config.rootpath)]
    if config.inipath is not None:
        words += ["-c", str(config.inipath)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(address))
        listening.listen(len(specs))
        server = subprocess.Popen(
            [sys.executable, "-I", str(SERVER), str(listening.fileno()), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
        )
    config.add_cleanup(lambda: end(server))
    for spec in specs:
        if spec.popen and not spec.python:
            spec.python = shlex.join([sys.executable, "-I", "-S", str(WORKER), str(address)])


def end(server: subprocess.Popen[bytes]) -> None:
    """Close the standard input of the process that forks, and wait for its end."""
    assert server.stdin is not None
    server.stdin.close()
    server.wait()
