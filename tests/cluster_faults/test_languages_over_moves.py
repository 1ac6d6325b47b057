"""Clients in six languages while three Java brokers become Tidelog in place, and Java again (M1 of
docs/internals/faults.md).

Clients in C, Java, Python, Rust, Go and JavaScript write meanwhile, in transactions, too. Groups of both protocols and
a share group read."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.clients.test_java_group_tools import VERIFIABLE_PRODUCER
from tests.clients.test_share_groups import VERIFIABLE_SHARE_CONSUMER
from tests.support.cluster_clients import WAIT_S
from tests.support.faulty_cluster.amount import at_length
from tests.support.faulty_cluster.clients import Pairs, Writer, read_all
from tests.support.faulty_cluster.cluster import IDS, FaultyCluster, Node
from tests.support.faulty_cluster.history import History
from tests.support.faulty_cluster.report import conclude
from tests.support.kafka_python import read_to_end
from tests.support.kraft_node import KraftNode, wait_until
from tests.support.member import TakenOver
from tests.support.moving_clients import PARTITIONS, JavaTool, Program, PythonReader, PythonWriter
from tests.support.toolchains import go_program, node_program, rust_program

pytestmark = [pytest.mark.java, pytest.mark.slow, at_length]
SHARED = {
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}
NOTED = {"c": 1, "pairs": 2, "python": 1}
"""Topics whose writers note in the history what they were told."""
TOPICS = {**NOTED, "java": 1, "go": PARTITIONS, "javascript": PARTITIONS, "rust": PARTITIONS}
READER = "kafka-python's group"
ROUNDS = 1


def under_replicated(node: Node) -> list[str]:
    """Return the partitions that a broker shows with fewer in-sync replicas than replicas; topics that it lacks."""
    topics = AdminClient({"bootstrap.servers": node.bootstrap}).list_topics(timeout=WAIT_S).topics
    partitions = [(topic, *one) for topic, found in topics.items() for one in found.partitions.items()]
    under = [f"{topic}-{number}" for topic, number, state in partitions if len(state.isrs) < len(state.replicas)]
    return under + [topic for topic in TOPICS if topic not in topics]


def replace(cluster: FaultyCluster, node_id: int, new: Node) -> None:
    """Stop a broker and start another one in its place; wait until nothing is under-replicated."""
    cluster.stop(node_id)
    cluster.brokers[node_id] = new
    cluster.start(node_id)
    for node in cluster.brokers.values():
        wait_until(lambda node=node: not under_replicated(node), f"{node.name} {node.port}", 2 * WAIT_S)  # type: ignore[misc]


def java_tools(directory: Path, bootstrap: str) -> tuple[JavaTool, JavaTool]:
    """Return Kafka's verifiable producer, which always tries again, and a share consumer of what it writes."""
    at_java = ("--bootstrap-server", bootstrap, "--topic", "java")
    retrying = directory / "producer.properties"
    retrying.write_text("retries=2147483647\n")  # the tool itself never tries again
    endless = ("--max-messages", "-1", "--throughput", "50", "--acks", "-1", "--command-config", str(retrying))
    words = ("--group-id", "shared", "--offset-reset-strategy", "earliest", "--verbose")
    return (
        JavaTool(directory, VERIFIABLE_PRODUCER, *at_java, *endless),
        JavaTool(directory, VERIFIABLE_SHARE_CONSUMER, *at_java, *words),
    )


def programs_of(bootstrap: str) -> list[Program]:
    """Return the clients that have a program, each with the protocol of its groups."""
    return [
        Program("go", go_program("franz"), bootstrap, "consumer"),
        Program("javascript", node_program("kafkajs"), bootstrap, "classic"),
        Program("rust", rust_program("confluent"), bootstrap, "consumer"),
    ]


def test_clients_work_on_while_brokers_become_tidelog_and_kafka_again(tmp_path: Path) -> None:
    history = History()
    with FaultyCluster(tmp_path, "JJJ", broker=SHARED) as cluster:
        for topic, partitions in TOPICS.items():
            cluster.create(topic, partitions=partitions)
        java, share = java_tools(tmp_path, cluster.bootstrap)
        writer, pairs = Writer(cluster.bootstrap, "c", history), Pairs(cluster.bootstrap, "pairs", history)
        programs = programs_of(cluster.bootstrap)
        python = PythonWriter(cluster.bootstrap, "python", history)
        reader = PythonReader(cluster.bootstrap, ["python"], history, READER, group="python")
        javas = {node_id: node for node_id, node in cluster.brokers.items() if isinstance(node, KraftNode)}
        with share, reader:
            with ExitStack() as clients:
                workers: list[AbstractContextManager[object]] = [java, writer, pairs, python, *programs]
                for worker in workers:
                    clients.enter_context(worker)
                steps: list[tuple[int, Node]] = [(node_id, TakenOver(javas[node_id])) for node_id in IDS]
                for node_id, new in (*steps, *javas.items()):
                    replace(cluster, node_id, new)
                    writer.wait_for(50)
                    pairs.wait_for(2)
                    python.wait_for(20)
                    for program in programs:
                        program.wait_for(ROUNDS)
                    java.wait_for("producer_send_success", 20)
                    share.wait_for("offsets_acknowledged", 1)
            sent = [event["value"] for event in java.events("producer_send_success")]
            wait_until(lambda: shared_values(share) >= set(sent), "the share group has all", WAIT_S)
            wait_until(lambda: len(values_read(history)) == python.count, "kafka-python's group has all", WAIT_S)
            reader.check()
        assert writer.errors == [] == java.events("producer_send_error")
        assert [record.value.decode() for record in read_to_end(cluster.bootstrap, "java")] == sent
        for program in programs:
            assert program.failure is None, program.failure
            found = sorted(record.value for record in read_to_end(cluster.bootstrap, program.name))
            assert found == sorted(program.written)
        cluster.wait_equal_files("c", "pairs")
        findings = history.findings(read_all(cluster.bootstrap, NOTED))
    counts = {program.name: len(program.written) for program in programs}
    counts |= {"python": python.count, "java": len(sent), "shared": len(share.events("record_data"))}
    conclude("M1", "JJJ", history, findings, [], transactions=pairs.committed, **counts)


def values_read(history: History) -> set[bytes]:
    """Return the values that the group of kafka-python has read."""
    return {one.value for one in list(history.reads[READER])}


def shared_values(share: JavaTool) -> set[str]:
    """Return the values that a share consumer has been given."""
    return {event["value"] for event in share.events("record_data")}
