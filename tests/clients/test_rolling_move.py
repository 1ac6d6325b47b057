"""A cluster of Apache Kafka that becomes one of Tidelog broker by broker, in place, and back, while clients run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.cluster_clients import WAIT_S, Writer, digests, isr, values
from tests.support.kraft_node import KraftNode, ports_of_controllers, wait_until
from tests.support.member import MemberNode

pytestmark = [pytest.mark.java, pytest.mark.slow]
TOPIC = "moved"
NODES = [2, 3, 4]
SETTINGS = {
    "replica.lag.time.max.ms": "3000",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
}


class TakenOver(MemberNode):
    """Tidelog on the directory, the address and the id of a Java broker."""

    def __init__(self, java: KraftNode) -> None:
        super().__init__(java.directory, java.node_id, java.controllers, SETTINGS)
        self.directory, self.port, self._data_directory = java.directory, java.port, java.data_directory
        self.log_path = java.directory / "member.out"

    @property
    def data_directory(self) -> Path:
        """log.dirs, as the Java broker has it."""
        return self._data_directory

    @property
    def properties_path(self) -> Path:
        """A file of its own beside the Java broker's."""
        return self.directory / "tidelog.properties"


Node = KraftNode | TakenOver


class Reader:
    """A member of a group that reads and commits until it is told to end."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
            }
        )
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.values: list[bytes] = []

    def __enter__(self) -> Self:
        self._consumer.subscribe([TOPIC])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ended.set()
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        while not self._is_ended.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.values.append(message.value() or b"")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[KraftNode]]:
    """Three Java brokers, which the test starts and stops itself."""
    directory = tmp_path_factory.mktemp("rolling")
    ports = ports_of_controllers(1)
    with KraftNode(directory, 1, ports, overrides={"broker.session.timeout.ms": "3000"}):
        nodes = [KraftNode(directory, number, ports, is_broker=True, overrides=SETTINGS) for number in NODES]
        try:
            for node in nodes:
                node.start()
            yield nodes
        finally:
            for node in nodes:
                node.kill()


def change(old: Node, new: Node, others: list[Node]) -> None:
    """Stop one process, start the other in its place, and wait until it is in sync again."""
    old.terminate()
    new.start()
    for node in (new, *others):
        wait_until(lambda node=node: isr(node, TOPIC) == NODES, f"{new.name} {new.port} is in sync", WAIT_S)  # type: ignore[misc]


def test_broker_by_broker_and_back(brokers: list[KraftNode]) -> None:
    bootstrap = ",".join(node.bootstrap for node in brokers)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(TOPIC, 1, replica_assignment=[NODES], config={"min.insync.replicas": "2"})
    (created,) = admin.create_topics([topic]).values()
    created.result()
    members = [TakenOver(node) for node in brokers]
    running: list[Node] = list(brokers)
    sides: list[list[Node]] = [list(members), list(brokers)]
    try:
        with Reader(bootstrap) as reader, Writer(bootstrap, TOPIC) as writer:
            writer.wait_for(100)
            for side in sides:
                for index, new in enumerate(side):
                    old, running[index] = running[index], new
                    change(old, new, [node for node in running if node is not new])
                    writer.wait_for(100)
                files = [digests(Path(node.data_directory) / f"{TOPIC}-0") for node in running]
                assert set(files[0]) == set(files[1]) == set(files[2])
            assert writer.errors == []
            wanted = list(writer.acknowledged)
            wait_until(lambda: len(set(reader.values)) >= len(wanted), "all is read", WAIT_S)
        assert values(bootstrap, TOPIC) == writer.acknowledged
        assert list(dict.fromkeys(reader.values))[: len(wanted)] == wanted
    finally:
        for node in members:
            node.kill()
