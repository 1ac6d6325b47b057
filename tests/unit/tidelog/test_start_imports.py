"""Imports of a broker before it listens: they count in its start-up time and in its idle memory."""

from __future__ import annotations

import subprocess
import sys

FORBIDDEN = {"numpy", "lz4", "zstandard", "cramjam", "http", "aiohttp", "email", "xml", "unittest"}


def test_nothing_heavy_is_imported_before_the_listener_opens() -> None:
    program = (
        "import sys, uvloop, tidelog.commands.serve, tidelog.broker.server, tidelog.broker.startup; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & FORBIDDEN


def test_no_message_is_declared_before_its_api_is_used() -> None:
    program = "import sys, tidelog.broker.server, tidelog.broker.startup; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    messages = {name for name in done.stdout.split() if name.startswith("tidelog.protocol.messages.")}
    assert messages <= {"tidelog.protocol.messages.fetch"}, "the session cache alone is made of message structures"


def test_a_lone_node_imports_nothing_of_a_cluster() -> None:
    program = (
        "import importlib, pkgutil, sys, tidelog.broker.server, tidelog.broker.startup, tidelog.broker.handlers as h\n"
        "[importlib.import_module(f'tidelog.broker.handlers.{one.name}') for one in pkgutil.iter_modules(h.__path__)]\n"
        "import tidelog.broker.coordinator.coordinators\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    rooms = ("tidelog.broker.cluster.", "tidelog.broker.member.", "tidelog.broker.member")
    assert [name for name in done.stdout.split() if name.startswith(rooms)] == []
