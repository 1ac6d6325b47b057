"""Imports of a broker before it listens: they count in its start-up time and in its idle memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HEAVY = {"numpy", "lz4", "zstandard", "cramjam", "http", "aiohttp", "email", "xml", "unittest"}
#: These took 5 MB of an idle broker: the command line, a database, OpenSSL's hashes, tables of international names,
#: what finds resources of packages, generators of random numbers, a codec.
UNUSED = HEAVY | {"click", "sqlite3", "hashlib", "hmac", "shutil", "tempfile", "datetime", "platform", "uuid",
                  "random", "zlib"}  # fmt: skip
UNUSED_MODULES = {
    "encodings.idna",
    "importlib.resources",
    "tidelog.client",
    "tidelog.broker.loop.thread_rule",
    "tidelog.broker.laboratory",
    "tidelog.log.recovery.scan",
    "tidelog.protocol.record.message_set",
}


def test_nothing_heavy_is_imported_before_the_listener_opens() -> None:
    modules = "tidelog.commands.running.serve, tidelog.broker.server, tidelog.broker.startup"
    program = f"import sys, uvloop, {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & HEAVY


SERVE = """
import signal, sys
from tidelog.cli import main
from tidelog.commands.running import serve_process

def stop(server):
    print(*sys.modules)
    signal.raise_signal(signal.SIGTERM)

serve_process.announce = stop
sys.exit(main(sys.argv[1:]))
"""


def test_an_idle_broker_has_imported_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    words = ["serve", "--data-dir", str(tmp_path), "--port=0", "--override", "num.partitions=2"]
    environment = {name: value for name, value in os.environ.items() if name != "TIDELOG_DEBUG"}
    command = [sys.executable, "-I", "-c", SERVE, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "tidelog.broker.server" in loaded
    assert not {name.partition(".")[0] for name in loaded} & UNUSED
    assert not loaded & UNUSED_MODULES


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
