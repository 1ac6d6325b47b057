"""The guide's cluster of three machines, set up by the guide's files and commands; then one machine after the other is
cut off."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.rivals.apache_kafka import STORAGE_TOOL, run_tool
from tests.support.cluster_clients import WAIT_S, digests, isr, leader
from tests.support.faulty_cluster.amount import at_length, cycles
from tests.support.faulty_cluster.clients import Pairs, Reader, Writer, read_all
from tests.support.faulty_cluster.history import History
from tests.support.faulty_cluster.machines import (
    MACHINES,
    Controller,
    Machines,
    Member,
    address,
    require_namespaces,
)
from tests.support.faulty_cluster.report import conclude
from tests.support.kraft_node import wait_until

pytestmark = [pytest.mark.java, pytest.mark.slow]
GUIDE = Path(__file__).resolve().parents[2] / "docs/cluster.md"
TIDELOG = [sys.executable, "-I", "-m", "tidelog.cli"]
TOPICS = {"orders": 3, "pairs": 2}
ID_OF_FIRST = 101
REQUEST_TIMEOUT_MS = 3000
"""For so long a client waits on a connection that has fallen silent."""


def section() -> str:
    """Return the guide's section."""
    _, _, rest = GUIDE.read_text().partition("\n## Three machines\n")
    return rest.partition("\n## ")[0]


def file_of(name: str, machine: int, data: Path) -> str:
    """Return a file of the guide for a machine: the guide shows the first machine's, with a sentence on the others."""
    found = re.search(rf"\$ cat {re.escape(name)}\n(.*?)(?=^\s*\$ )", section(), re.DOTALL | re.MULTILINE)
    assert found is not None
    lines = [line.strip() for line in found[1].splitlines()]
    return "".join(f"{own_line(line, machine, data)}\n" for line in lines)


def own_line(line: str, machine: int, data: Path) -> str:
    """Return a line of the first machine's file as another machine has it."""
    key, _, value = line.partition("=")
    if key == "node.id":
        return f"{key}={int(value) + machine - 1}"
    if key == "listeners":
        return line.replace(address(1), address(machine))
    if key == "broker.rack":
        return line.replace("machine-1", f"machine-{machine}")
    return f"{key}={data}" if key == "log.dirs" else line


def commands() -> list[list[str]]:
    """Return the guide's commands that begin with ``tidelog`` and ask a broker."""
    lines = [line.strip().removeprefix("$ ").split() for line in section().splitlines() if "$ tidelog" in line]
    return [words[1:] for words in lines if "--bootstrap-server" in words]


@contextmanager
def cluster(directory: Path, machines: Machines) -> Iterator[dict[int, Member]]:
    """The three controllers and brokers, formatted and started as the guide says."""
    cluster_id = run_tool(STORAGE_TOOL, ["random-uuid"]).stdout.strip()
    controllers, members = {}, {}
    for machine in MACHINES:
        place = directory / f"machine-{machine}"
        place.mkdir()
        for name in ("controller", "server"):
            text = file_of(f"{name}.properties", machine, place / f"{name}-data")
            (place / f"{name}.properties").write_text(text)
        done = run_tool(STORAGE_TOOL, ["format", "-t", cluster_id, "-c", str(place / "controller.properties")])
        assert done.returncode == 0, done.stderr
        subprocess.run(
            [*TIDELOG, "format", "-t", cluster_id, "-c", place / "server.properties"], check=True, timeout=60
        )
        controllers[machine] = Controller(machines, machine, place / "controller.properties")
        members[machine] = Member(machines, machine, place / "server.properties", TIDELOG)
    with ExitStack() as stack, ThreadPoolExecutor(len(MACHINES)) as threads:
        for nodes in (controllers, members):
            for node in nodes.values():
                stack.callback(node.kill)
            list(threads.map(lambda node: node.start(), nodes.values()))
        yield members


def is_whole(members: dict[int, Member]) -> bool:
    """Return whether all replicas of all topics are in sync, as each broker tells."""
    wanted = [ID_OF_FIRST + machine - 1 for machine in MACHINES]
    return all(isr(member, topic) == wanted for member in members.values() for topic in TOPICS)


def others(members: dict[int, Member], machine: int) -> str:
    """Return the addresses of the brokers of all other machines."""
    return ",".join(member.bootstrap for other, member in members.items() if other != machine)


class Cut(NamedTuple):
    """Seconds from a cut to another leader, and to the first acknowledgement of a record sent later."""

    elected: float
    again: float


def cut_off_leader(machines: Machines, members: dict[int, Member], writer: Writer) -> Cut:
    """Pull the cable of the machine that leads; put it back when records are written again."""
    machine = leader(others(members, 0), "orders") - ID_OF_FIRST + 1
    since = time.monotonic()
    machines.pull(machine)
    asked = others(members, machine)
    wait_until(lambda: leader(asked, "orders") not in (-1, ID_OF_FIRST + machine - 1), "another leader", WAIT_S)
    elected = time.monotonic() - since
    again = writer.wait_resumed(since)
    machines.plug_in(machine)
    wait_until(lambda: is_whole(members), "all replicas in sync", WAIT_S)
    return Cut(elected, again)


@at_length
def test_the_guides_machines_are_cut_off_one_after_the_other(tmp_path: Path) -> None:
    require_namespaces()
    history = History()
    with Machines() as machines, cluster(tmp_path, machines) as members:
        bootstrap = others(members, 0)
        for words in commands():
            done = subprocess.run(machines.command(1, [*TIDELOG, *words]), capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        create = ["topic", "create", "pairs", "--partitions", "2", "--bootstrap-server", bootstrap]
        subprocess.run([*TIDELOG, *create], check=True, timeout=60)
        wait_until(lambda: is_whole(members), "all replicas in sync", WAIT_S)
        with (
            Reader(bootstrap, TOPICS, history) as reader,
            Writer(bootstrap, "orders", history, request_timeout_ms=REQUEST_TIMEOUT_MS) as writer,
            Pairs(bootstrap, "pairs", history) as pairs,
        ):
            cuts = []
            for _ in range(cycles(1)):
                writer.wait_for(50)
                cuts.append(cut_off_leader(machines, members, writer))
                pairs.wait_for(2)
            reader.check()
        assert writer.errors == []
        places = [tmp_path / f"machine-{machine}/server-data/orders-0" for machine in MACHINES]
        wait_until(lambda: len({str(digests(place)) for place in places}) == 1, "equal files", WAIT_S)
        findings = history.findings(read_all(bootstrap, TOPICS))
    figures = {"elected_s": [round(cut.elected, 1) for cut in cuts], "transactions": pairs.committed}
    conclude("machines", "TTT", history, findings, [cut.again for cut in cuts], **figures)
