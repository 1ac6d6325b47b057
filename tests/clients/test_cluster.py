"""A Tidelog member in a cluster of real Apache Kafka controllers, used by Kafka's own tools and clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.rivals.apache_kafka import CLUSTER_ID, STORAGE_TOOL
from tests.support.apache_kafka import CONFIG_COMMAND, CONSOLE_CONSUMER, TOPIC_COMMAND, console_producer, run_tool
from tests.support.kraft_node import KraftNode, ports_of_controllers
from tests.support.member import MemberNode
from tidelog.cli import main

pytestmark = [pytest.mark.java, pytest.mark.slow]
QUORUM_COMMAND = "org.apache.kafka.tools.MetadataQuorumCommand"


def test_kafka_storage_takes_what_was_formatted(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(
        f"process.roles=broker\nnode.id=4\nlog.dirs={tmp_path / 'a'},{tmp_path / 'b'}\n"
        "controller.quorum.bootstrap.servers=localhost:9093\ncontroller.listener.names=CONTROLLER\n"
        "listeners=PLAINTEXT://localhost:9092\n"
    )
    assert main(["format", "-t", CLUSTER_ID, "-c", str(config)]) == 0
    done = run_tool(STORAGE_TOOL, ["info", "-c", str(config)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Found problem" not in done.stdout
    assert f"cluster.id={CLUSTER_ID}, " in done.stdout
    assert "node.id=4, version=1" in done.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KraftNode, MemberNode]]:
    """One controller, one Tidelog member."""
    directory = tmp_path_factory.mktemp("cluster")
    ports = ports_of_controllers(1)
    with KraftNode(directory, 1, ports) as controller, MemberNode(directory, 101, ports) as member:
        yield controller, member


def tool(name: str, member: MemberNode, *arguments: str, stdin: str | None = None) -> str:
    """The output of one of Kafka's tools that is asked of a member."""
    done = run_tool(name, ["--bootstrap-server", member.bootstrap, *arguments], stdin=stdin)
    assert done.returncode == 0, done.stdout + done.stderr + member.output()
    return done.stdout


def test_kafkas_tools_see_a_cluster(cluster: tuple[KraftNode, MemberNode]) -> None:
    controller, member = cluster
    assert "Created topic orders" in tool(
        TOPIC_COMMAND, member, "--create", "--topic", "orders", "--partitions", "3", "--config", "retention.ms=86400000"
    )
    described = tool(TOPIC_COMMAND, member, "--describe", "--topic", "orders")
    assert described.count("Leader: 101\tReplicas: 101\tIsr: 101") == 3
    status = tool(QUORUM_COMMAND, member, "describe", "--status")
    assert f'"CONTROLLER://127.0.0.1:{controller.port}"' in status
    assert '"id": 101' in status
    configs = tool(CONFIG_COMMAND, member, "--describe", "--entity-type", "topics", "--entity-name", "orders")
    assert "retention.ms=86400000" in configs


def test_records_and_a_group_of_a_member(cluster: tuple[KraftNode, MemberNode]) -> None:
    _, member = cluster
    client = AdminClient({"bootstrap.servers": member.bootstrap})
    for future in client.create_topics([NewTopic("lines", 3, 1)]).values():
        future.result()
    tool(console_producer(), member, "--topic", "lines", stdin="".join(f"line {n}\n" for n in range(50)))
    read = tool(
        CONSOLE_CONSUMER, member, "--topic", "lines", "--from-beginning", "--max-messages", "50", "--group", "readers",
        "--timeout-ms", "60000",
    )  # fmt: skip
    assert sorted(read.splitlines()) == sorted(f"line {n}" for n in range(50))


def test_several_replicas_are_refused_in_one_line(cluster: tuple[KraftNode, MemberNode]) -> None:
    _, member = cluster
    client = AdminClient({"bootstrap.servers": member.bootstrap})
    (future,) = client.create_topics([NewTopic("twice", 1, 2)]).values()
    with pytest.raises(KafkaException, match="does not replicate yet"):
        future.result()
