"""Clients that know only one broker, the only one of its cluster, while Apache Kafka and Tidelog replace each other
there."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.rivals.apache_kafka import java_command
from tests.support.apache_kafka import VERIFIABLE_PRODUCER
from tests.support.cluster_clients import WAIT_S
from tests.support.faulty_cluster.amount import at_length
from tests.support.faulty_cluster.clients import QUICK, ConsumerWorker, Reader, Worker, Writer, read_all
from tests.support.faulty_cluster.history import History, Position
from tests.support.faulty_cluster.report import conclude
from tests.support.jvm import SMALL_HEAP
from tests.support.kafka_jars import KAFKA_4
from tests.support.kraft_node import KraftNode, ports_of_controllers, wait_until
from tests.support.member import TakenOver
from tests.support.moving_clients import PythonReader, PythonWriter

pytestmark = [pytest.mark.java, pytest.mark.slow, at_length]
BROKER = 101
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "broker.heartbeat.interval.ms": "500",
}
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
TOPICS = {"c": 1, "java": 1, "python": 1}
"""A topic for the producer of each library."""
READERS = ("librdkafka", "librdkafka's group", "kafka-python", "Java's group")
STEP = 100
"""Records of each producer between two moves."""


class JavaClient:
    """One of Kafka's verifiable clients in a process of its own; it prints each acknowledgement, or record, as JSON."""

    def __init__(self, note: Callable[[Position], None], event: str, tool: str, *words: str) -> None:
        self._command = [*java_command(KAFKA_4, SMALL_HEAP), tool, *words]
        self._note, self._event = note, event
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._thread.join()
        self._process.wait(WAIT_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if not line.startswith("{"):
                    continue
                event: dict[str, Any] = json.loads(line)
                if event["name"] == self._event:
                    self._note(Position(event["topic"], event["partition"], event["offset"], event["value"].encode()))
                elif event["name"].endswith("_error"):
                    self.failures.append(line)


class GroupReader(ConsumerWorker):
    """A member of a group, by librdkafka, that commits what it has read."""

    def __init__(self, bootstrap: str, topics: Sequence[str], history: History, name: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": name, "auto.offset.reset": "earliest"}
        super().__init__(Consumer({**QUICK, **settings, "auto.commit.interval.ms": 200}), history, name)
        self._consumer.subscribe(list(topics))


def create_topics(bootstrap: str) -> None:
    """Create the topics. Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([*map(NewTopic, TOPICS)]).values():
        created.result()


def java_writer(bootstrap: str, history: History, directory: Path) -> JavaClient:
    """Return Kafka's verifiable producer, with the retries of an ordinary one."""
    settings = directory / "producer.properties"
    settings.write_text("retries=2147483647\nenable.idempotence=true\n")
    words = ("--bootstrap-server", bootstrap, "--topic", "java", "--throughput", "50", "--acks", "-1")
    more = ("--command-config", str(settings))
    return JavaClient(history.acknowledge, "producer_send_success", VERIFIABLE_PRODUCER, *words, *more)


def java_reader(bootstrap: str, history: History, name: str) -> JavaClient:
    """Return Kafka's verifiable consumer, a member of a group that commits what it has read."""
    words = ("--bootstrap-server", bootstrap, "--topic", "java", "--group-id", "java", "--reset-policy", "earliest")
    return JavaClient(
        lambda position: history.read(name, position), "record_data", VERIFIABLE_CONSUMER, *words, "--verbose"
    )


def written(history: History, topic: str) -> int:
    """Count the acknowledged values of a topic."""
    return sum(one.topic == topic for one in list(history.acknowledged))


def wait_for_all(history: History) -> None:
    """Wait until each producer has got on, and each reader has read what was acknowledged before."""
    wanted = {topic: written(history, topic) + STEP for topic in TOPICS}
    for topic, count in wanted.items():
        wait_until(lambda topic=topic, count=count: written(history, topic) >= count, f"writes: {topic}", WAIT_S)  # type: ignore[misc]
    wait_read(history)


def wait_read(history: History) -> None:
    """Wait until each reader has read what is acknowledged now, of each topic that it reads."""
    ends = {topic: max(one.offset for one in list(history.acknowledged) if one.topic == topic) for topic in TOPICS}
    for name, reads in list(history.reads.items()):
        for topic in {one.topic for one in list(reads)}:
            wait_until(
                lambda topic=topic, reads=reads: any(  # type: ignore[misc]
                    one.topic == topic and one.offset >= ends[topic] for one in reversed(list(reads))
                ),
                f"{name} reads {topic}",
                WAIT_S,
            )


def again(history: History) -> list[str]:
    """Return what a reader was given twice, or after a later record."""
    found = []
    for name, reads in history.reads.items():
        for topic in TOPICS:
            offsets = [one.offset for one in reads if one.topic == topic]
            found += [f"{name}: {topic} {later} after {one}" for one, later in pairwise(offsets) if later <= one]
    return found


def test_clients_that_know_only_this_broker_continue(tmp_path: Path) -> None:
    """Each reader gets each record once, in order; nothing that Apache Kafka leaves after a clean stop is damage."""
    ports = ports_of_controllers(1)
    history = History()
    java = KraftNode(tmp_path, BROKER, ports, is_broker=True, overrides=SETTINGS, in_shared_jvm=True)
    member = TakenOver(java)
    with KraftNode(tmp_path, 1, ports, in_shared_jvm=True), ExitStack() as nodes, ExitStack() as clients:
        for node in (java, member):
            nodes.callback(node.discard)
        java.start()
        server = java.bootstrap
        create_topics(server)
        writer = Writer(server, "c", history)
        java_clients = [java_writer(server, history, tmp_path), java_reader(server, history, READERS[3])]
        workers: list[Worker] = [
            Reader(server, TOPICS, history, READERS[0]),
            GroupReader(server, list(TOPICS), history, READERS[1]),
            PythonReader(server, list(TOPICS), history, READERS[2]),
            PythonWriter(server, "python", history),
            writer,
        ]
        for worker in workers:
            clients.enter_context(worker)
        for java_client in java_clients:
            clients.enter_context(java_client)
        for name in READERS:
            wait_until(lambda name=name: name in history.reads, f"{name} begins to read")  # type: ignore[misc]
        wait_for_all(history)
        for before, node in ((java, member), (member, java), (java, member)):
            before.terminate()
            node.start()
            wait_for_all(history)
        clients.close()
        for worker in workers:
            worker.check()
        final = read_all(server, TOPICS)
        log_text = member.log_path.read_text()
    assert writer.errors == [failure for one in java_clients for failure in one.failures] == []
    assert again(history) == []
    assert re.findall(".*rebuilding.*|.*recovering.*", log_text) == []
    conclude("pinned", "JTJT", history, history.findings(final), [])
