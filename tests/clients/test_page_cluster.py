"""The guide of clusters, run unchanged: a controller of Apache Kafka and a broker, by its files and commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.rivals.process import free_port
from tests.support.examples import read_examples
from tests.support.kafka_scripts import write_scripts
from tests.support.kraft_node import wait_until
from tests.support.page_shell import PageShell

pytestmark = [pytest.mark.java, pytest.mark.slow]


def make_shell(directory: Path) -> PageShell:
    """Make a shell with Kafka's tools, in which the page's hosts are ports of this machine."""
    changes = {
        "kafka-1:9093": f"127.0.0.1:{free_port()}",
        "tidelog-101:9092": f"127.0.0.1:{free_port()}",
        "/var/lib/kafka": str(directory / "kafka"),
        "/var/lib/tidelog": str(directory / "tidelog"),
    }
    shell = PageShell(directory, changes, write_scripts(directory / "scripts"))
    shell.environment["TIDELOG_BOOTSTRAP"] = changes["tidelog-101:9092"]
    return shell


def take_files(shell: PageShell, text: str) -> list[str]:
    """Write the files that a block shows by ``cat``; return its other commands."""
    for name, content in re.findall(r"^\$ cat (\S+)\n((?:[^$].*\n)+)", text, re.MULTILINE):
        (shell.directory / name).write_text(shell.place(content))
    commands = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    return [command for command in commands if not command.startswith("cat ")]


def test_a_controller_and_a_broker_start_by_the_guide(tmp_path: Path) -> None:
    """docs/cluster.md: the first two blocks, then a topic over the broker."""
    shell = make_shell(tmp_path)
    controller, broker = (each.text for each in read_examples("docs/cluster.md")[:2])
    identify, format_kafka, start_kafka = take_files(shell, controller)
    cluster_id = shell.run(identify.removeprefix("ID=$(").removesuffix(")")).strip()
    shell.run(f"ID={cluster_id}; {format_kafka}")
    format_tidelog, serve = take_files(shell, broker)
    shell.run(f"ID={cluster_id}; {format_tidelog}")
    ready = broker.splitlines()[-1]
    with shell.running(start_kafka), shell.running(serve) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == shell.place(ready)
        shell.run("tidelog topic create orders")
        wait_until(lambda: "orders" in shell.run("tidelog topic list"), "the topic is not listed")


def test_a_directory_for_an_older_kafka_is_made_by_the_guide(tmp_path: Path) -> None:
    """docs/moving-from-kafka.md: a format for a release, and a directory in use that is lowered."""
    shell = make_shell(tmp_path)
    (tmp_path / "server.properties").write_text(f"node.id=1\nlog.dirs={tmp_path}/data\n")
    blocks = read_examples("docs/moving-from-kafka.md")
    (formatted,) = (each.commands for each in blocks if each.title.startswith("tidelog format"))
    (lowered,) = (each.commands for each in blocks if each.title.startswith("kafka-features.sh version-mapping"))
    shell.run(formatted[0])
    assert "metadata.version=" in shell.run(lowered[0])
    port = free_port()
    shell.changes["localhost:9092"] = f"127.0.0.1:{port}"
    with shell.running(f"tidelog serve --data-dir other --port {port}") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("tidelog ready on ")
        shell.run(lowered[1])
