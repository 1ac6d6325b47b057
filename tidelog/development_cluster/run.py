"""``tidelog cluster start``: runs a controller of Apache Kafka and Tidelog brokers until a signal, or until one ends.

The controller runs in a JVM; its jars come from ``--kafka DIR``, or are downloaded once.

Ctrl-C, SIGTERM and a terminal that closes (SIGHUP) stop all nodes cleanly. SIGINT also does if it was ignored at the
start, as in a command that a script runs in the background (``&``). After ``nohup`` SIGHUP stays ignored.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tidelog.commands.frame.exit_codes import EXIT_FAILED
from tidelog.commands.frame.output import print_json, print_rows
from tidelog.development_cluster.kafka_jars import (
    KAFKA_VERSION,
    MAVEN_CENTRAL,
    JarsError,
    class_path_of,
    default_cache,
    download,
)
from tidelog.development_cluster.layout import HOST, Layout, choose_ports, taken_port
from tidelog.development_cluster.nodes import NodeError, Nodes

WATCH_S = 0.5
"""Interval at which the processes are checked."""
MIN_JAVA = 17
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StartOptions(NamedTuple):
    """The options of ``tidelog cluster start``."""

    nodes: int
    directory: Path
    port: int
    kafka: Path | None
    maven: str | None
    overrides: Mapping[str, str]
    as_json: bool


class Interrupted(BaseException):
    """A signal to stop was received."""


def run(options: StartOptions) -> int:
    """Run a cluster until a signal or the end of a node. Returns the exit code."""
    before = take_signals()
    nodes: Nodes | None = None
    try:
        java = find_java()
        layout = Layout(options.directory, *choose_ports(options.port, options.nodes), options.overrides)
        check_ports(layout)
        nodes = Nodes(layout, java, class_path(options))
        nodes.start()
        announce(layout, nodes, as_json=options.as_json)
        watch(nodes)
    except (NodeError, JarsError) as error:
        print(f"tidelog cluster start: {error}", file=sys.stderr)
        return EXIT_FAILED
    except Interrupted:
        return 0
    finally:
        ignore_signals()
        if nodes is not None:
            nodes.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def take_signals() -> dict[signal.Signals, Any]:
    """Make the signals of STOPPING raise Interrupted, SIGHUP unless it is ignored; return the old handlers."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    for number, handler in before.items():
        if number != signal.SIGHUP or handler != signal.SIG_IGN:
            signal.signal(number, _interrupt)
    return before


def ignore_signals() -> None:
    """Ignore further signals, so that none leaves half of the nodes running."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: object) -> None:
    ignore_signals()
    raise Interrupted


def find_java() -> str:
    """Return the path of a Java that can run the controller. Raises NodeError."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME, {home}" if home else "on the path: apt-get install default-jre-headless"
        raise NodeError(f"the controller needs Java {MIN_JAVA} or later, and there is no java {where}")
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = java_version(done.stderr)
    if version < MIN_JAVA:
        found = f"Java {version}" if version else "of an unknown version"
        raise NodeError(f"the controller needs Java {MIN_JAVA} or later, and {java} is {found}")
    return java


def java_version(output: str) -> int:
    """Return the major version in the output of ``java -version``; 1.8 is 8, and 0 stands for an unknown one."""
    _, _, rest = output.partition('version "')
    parts = rest.partition('"')[0].replace("-", ".").split(".")
    number = parts[1] if parts[0] == "1" and len(parts) > 1 else parts[0]
    return int(number) if number.isascii() and number.isdigit() else 0


def check_ports(layout: Layout) -> None:
    """Raise NodeError if a port is taken."""
    port = taken_port(layout)
    if port is not None:
        raise NodeError(f"port {port} of {HOST} is taken: --port N chooses others, --port 0 takes free ones")


def class_path(options: StartOptions) -> str:
    """Return the class path of the controller; without ``--kafka``, download the jars that the cache lacks first.

    Raises JarsError, OSError.
    """
    if options.kafka is not None:
        return class_path_of(options.kafka)
    cache = default_cache(os.environ)
    repository = options.maven or MAVEN_CENTRAL
    downloaded = download(cache, repository)
    if downloaded:
        print(
            f"{len(downloaded)} jars of Apache Kafka {KAFKA_VERSION} downloaded from {repository} into {cache}",
            file=sys.stderr,
        )
    return class_path_of(cache)


def announce(layout: Layout, nodes: Nodes, *, as_json: bool) -> None:
    """Print the addresses of a cluster that is ready."""
    members = [
        {
            "id": node_id,
            "address": layout.address(node_id),
            "console": node.console,
            "pid": node.process.pid,
            "log": str(node.log),
        }
        for node_id, node in zip(layout.node_ids, nodes.running[1:], strict=True)
    ]
    controller = nodes.running[0]
    if as_json:
        found = {
            "pid": controller.process.pid,
            "address": f"{HOST}:{layout.controller_port}",
            "log": str(controller.log),
        }
        print_json({"bootstrap": layout.bootstrap, "brokers": members, "controller": found})
    else:
        print_rows(["id", "address", "console", "pid", "log"], members)
        print(f"cluster ready on {layout.bootstrap}; Ctrl-C stops it")
    sys.stdout.flush()


def watch(nodes: Nodes) -> None:
    """Wait for a signal. Raises NodeError when a node ends first."""
    while True:
        for node in nodes.find_ended():
            raise node.failure(f"ended with {node.process.returncode}")
        threading.Event().wait(WATCH_S)
