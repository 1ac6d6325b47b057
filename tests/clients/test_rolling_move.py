"""A cluster of Apache Kafka that becomes one of Tidelog broker by broker, in place, and back again, while clients
run."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.cluster_clients import WAIT_S, Writer, digests, leader, repeat_until_answered, values
from tests.support.kafka_python import read_to_end
from tests.support.kraft_node import SHORT_SESSIONS, KraftNode, ports_of_controllers, wait_until
from tests.support.member import TakenOver
from tidelog.broker.metadata.metadata_image import NO_LEADER
from tidelog.protocol.metadata_records.frames import decode_metadata_record
from tidelog.protocol.metadata_records.records import PartitionChangeRecord
from tidelog.protocol.record.batches import iter_batches

pytestmark = [pytest.mark.java, pytest.mark.slow]
TOPIC, PAIRS = "moved", "pairs"
NODES = [2, 3, 4]
MAX_WITHOUT_LEADER_S = 3.0
UNCHANGED = -2
"""The leader in a record that changes other things."""
SETTINGS = {
    # A broker starts and stops by the answers to its heartbeats, and meanwhile all clients run. Kafka's default of two
    # seconds is more than half a session here, which it logs as an error.
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "group.initial.rebalance.delay.ms": "0",
}


Node = KraftNode | TakenOver


class Reader:
    """A member of a group of one protocol that reads and commits until it is told to end."""

    def __init__(self, bootstrap: str, protocol: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"readers-{protocol}",
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
            }
        )
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
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


class Pairs:
    """A transactional producer that writes each number to both partitions of a topic until it is told to end."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "pairs", "linger.ms": 0})
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.committed: list[bytes] = []
        self.fatal: KafkaException | None = None

    def __enter__(self) -> Self:
        self._producer.init_transactions(WAIT_S)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ended.set()
        self._thread.join()

    def wait_for(self, count: int) -> None:
        """Wait until so many more transactions are committed."""
        wanted = len(self.committed) + count
        wait_until(lambda: len(self.committed) >= wanted or self.fatal is not None, f"{wanted} transactions", WAIT_S)
        assert self.fatal is None, self.fatal

    def _write(self) -> None:
        try:
            while not self._is_ended.is_set():
                self._commit(str(len(self.committed)).encode())
        except KafkaException as error:
            self.fatal = error

    def _commit(self, value: bytes) -> None:
        """Commit one transaction. Raises KafkaException where it can neither be committed nor aborted."""
        self._producer.begin_transaction()
        try:
            for partition in (0, 1):
                self._producer.produce(PAIRS, value, partition=partition)
            repeat_until_answered(self._producer.commit_transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            repeat_until_answered(self._producer.abort_transaction)
        else:
            self.committed.append(value)


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftNode]:
    """The only controller, which runs all the time."""
    with KraftNode(
        tmp_path_factory.mktemp("rolling"), 1, ports_of_controllers(1), overrides=SHORT_SESSIONS, in_shared_jvm=True
    ) as node:
        yield node


@pytest.fixture(scope="module")
def brokers(controller: KraftNode) -> Iterator[list[KraftNode]]:
    """Three Java brokers, which the test starts and stops itself."""
    directory, ports = controller.directory.parent, controller.controllers
    nodes = [
        KraftNode(directory, number, ports, is_broker=True, overrides=SETTINGS, in_shared_jvm=True) for number in NODES
    ]
    try:
        for node in nodes:
            node.start()
        yield nodes
    finally:
        for node in nodes:
            node.discard()


def move(running: list[Node], targets: Sequence[Node], writer: Writer, pairs: Pairs) -> None:
    """Put each target into the place of what runs there, one after the other, each when the last one is in sync."""
    for index, new in enumerate(targets):
        running[index].terminate()
        running[index] = new
        new.start()
        wait_for_progress(running, writer, pairs)
    files = [digests(Path(node.data_directory) / f"{TOPIC}-0") for node in running]
    assert set(files[0]) == set(files[1]) == set(files[2])


def lose_leader(running: list[Node], writer: Writer, pairs: Pairs) -> None:
    """Kill the leader, and start it again when another one leads."""
    bootstrap = ",".join(node.bootstrap for node in running)
    killed = next(node for node in running if node.node_id == leader(bootstrap, TOPIC))
    others = ",".join(node.bootstrap for node in running if node is not killed)
    killed.kill()
    wait_until(lambda: leader(others, TOPIC) not in (killed.node_id, -1), "another leader", WAIT_S)
    killed.start()
    wait_for_progress(running, writer, pairs)


def wait_for_progress(running: list[Node], writer: Writer, pairs: Pairs) -> None:
    """Wait until nothing is under-replicated, the topics of groups and transactions as well, and both producers have
    written more."""
    for node in running:
        wait_until(lambda node=node: not under_replicated(node), f"{node.name} {node.port}", WAIT_S)  # type: ignore[misc]
    writer.wait_for(100)
    pairs.wait_for(10)


def under_replicated(node: Node) -> list[str]:
    """Return the partitions that a broker shows with fewer in-sync replicas than replicas; topics that it lacks."""
    topics = AdminClient({"bootstrap.servers": node.bootstrap}).list_topics(timeout=WAIT_S).topics
    partitions = [(topic, *one) for topic, found in topics.items() for one in found.partitions.items()]
    under = [f"{topic}-{number}" for topic, number, state in partitions if len(state.isrs) < len(state.replicas)]
    return under + [topic for topic in (TOPIC, PAIRS) if topic not in topics]


def longest_without_leader_s(controller: KraftNode) -> float:
    """Return the longest time that a partition had no leader, by the controller's records."""
    since: dict[tuple[bytes, int], float] = {}
    gaps: list[float] = []
    for now, change in leader_changes(controller):
        key = (change.topic_id, change.partition_id)
        if change.leader == NO_LEADER:
            since.setdefault(key, now)
        else:
            gaps.append(now - since.pop(key, now))
    assert gaps, "no leader was elected"
    assert not since, "a partition has no leader"
    return max(gaps)


def leader_changes(controller: KraftNode) -> Iterator[tuple[float, PartitionChangeRecord]]:
    """Yield the changes of leaders that a controller has decided, each with its time."""
    for path in sorted(controller.metadata_directory.glob("*.log")):
        batches = [one for one in iter_batches(memoryview(path.read_bytes())) if not one.is_control]
        for record in (record for batch in batches for record in batch.records()):
            change = decode_metadata_record(record.value or b"")
            if isinstance(change, PartitionChangeRecord) and change.leader != UNCHANGED:
                yield record.timestamp / 1000, change


def create_topics(brokers: Sequence[KraftNode]) -> None:
    """Create topics with a replica on each broker, and wait until all brokers know them.

    A consumer of the new protocol that is assigned a topic which its broker does not know yet may never read it.
    """
    bootstrap = ",".join(node.bootstrap for node in brokers)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"min.insync.replicas": "2"}
    topics = [
        NewTopic(TOPIC, 1, replica_assignment=[NODES], config=config),
        NewTopic(PAIRS, 2, replica_assignment=[NODES, NODES[::-1]], config=config),
    ]
    for created in admin.create_topics(topics).values():
        created.result()
    for node in brokers:
        wait_until(lambda node=node: not under_replicated(node), f"topics on {node.name}", WAIT_S)  # type: ignore[misc]


def test_clients_continue_while_a_cluster_moves_broker_by_broker_and_back(
    controller: KraftNode, brokers: list[KraftNode]
) -> None:
    bootstrap = ",".join(node.bootstrap for node in brokers)
    create_topics(brokers)
    members = [TakenOver(node, SETTINGS) for node in brokers]
    running: list[Node] = list(brokers)
    try:
        with (
            Reader(bootstrap, "classic") as old,
            Reader(bootstrap, "consumer") as new,
            Writer(bootstrap, TOPIC) as writer,
            Pairs(bootstrap) as pairs,
        ):
            writer.wait_for(100)
            wait_until(lambda: bool(old.values and new.values), "both readers read", WAIT_S)
            move(running, members, writer, pairs)
            lose_leader(running, writer, pairs)
            move(running, brokers, writer, pairs)
            assert writer.errors == []
            wanted = list(writer.acknowledged)
            for reader in (old, new):
                wait_until(lambda reader=reader: len(set(reader.values)) >= len(wanted), "all is read", WAIT_S)  # type: ignore[misc]
        assert values(bootstrap, TOPIC) == writer.acknowledged
        both = read_to_end(bootstrap, PAIRS)
        for partition in (0, 1):
            assert [record.value for record in both if record.partition == partition] == pairs.committed
        for reader in (old, new):
            assert list(dict.fromkeys(reader.values))[: len(wanted)] == wanted
        gap = longest_without_leader_s(controller)
        print(f"\n{len(wanted)} acknowledged, {len(pairs.committed)} transactions, {gap:.2f} s without a leader")
        assert gap < MAX_WITHOUT_LEADER_S
    finally:
        for node in members:
            node.kill()
