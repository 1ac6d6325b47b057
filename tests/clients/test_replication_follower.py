"""A Tidelog member that follows a broker of Apache Kafka: its segments are equal to the leader's, whichever broker
stops in the meantime."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.rivals.process import BrokerProcess
from tests.support.apache_kafka import TOPIC_COMMAND, run_tool
from tests.support.kraft_node import SHORT_SESSIONS, KraftNode, ports_of_controllers, wait_until
from tests.support.logs import batch
from tests.support.member import MemberNode
from tidelog.log.config import LogConfig
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.recovery.loader import LoadRequest, load_log
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import SystemTime

pytestmark = [pytest.mark.java, pytest.mark.slow]
REASSIGN_COMMAND = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
JAVA, MEMBER = 2, 101
WAIT_S = 60
BROKER = {
    "replica.lag.time.max.ms": "3000",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
}


class Cluster:
    """A controller, a Java broker that leads, and a member that follows."""

    def __init__(self, directory: Path) -> None:
        ports = ports_of_controllers(1)
        self.controller = KraftNode(directory, 1, ports, overrides=SHORT_SESSIONS, in_shared_jvm=True)
        self.java = KraftNode(directory, JAVA, ports, is_broker=True, overrides=BROKER, in_shared_jvm=True)
        self.member = MemberNode(directory, MEMBER, ports, BROKER)

    def create(self, name: str, replicas: list[int], **configs: str) -> None:
        """Create a topic of one partition with these replicas, the first of which leads."""
        admin = AdminClient({"bootstrap.servers": self.java.bootstrap})
        new = NewTopic(name, 1, replica_assignment=[replicas], config=configs)
        (future,) = admin.create_topics([new]).values()
        future.result()
        self.wait_in_sync(name, *replicas)

    def wait_in_sync(self, name: str, *members: int) -> None:
        """Wait until these are the in-sync replicas, as the Java broker tells it."""
        wait_until(lambda: in_sync(self.java, name) == sorted(members), f"{name}: {members} in sync", WAIT_S)

    def wait_equal(self, name: str) -> dict[str, str]:
        """Wait until both have the same segments; return them."""
        leader, follower = (node.data_directory / f"{name}-0" for node in (self.java, self.member))
        wait_until(
            lambda: digests(leader) == digests(follower), f"{name}: {digests(leader)}, {digests(follower)}", WAIT_S
        )
        return digests(leader)


def in_sync(node: BrokerProcess, name: str) -> list[int]:
    """Return the in-sync replicas of partition 0."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    found = admin.list_topics(name, timeout=WAIT_S).topics[name].partitions.get(0)
    return [] if found is None else sorted(found.isrs)


def digests(directory: Path) -> dict[str, str]:
    """Name -> SHA-256 of the segments of a partition."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.glob("*.log"))}


def produce(node: BrokerProcess, topic: str, count: int, **options: str) -> None:
    """Produce records of a kilobyte, acknowledged; with an id in transactions, of which every other is aborted."""
    producer = Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": True, **options})
    is_transactional = "transactional.id" in options
    errors: list[object] = []

    def note(error: object, _message: object) -> None:
        errors.append(error)

    if is_transactional:
        producer.init_transactions(WAIT_S)
    for turn in range(4 if is_transactional else 1):
        if is_transactional:
            producer.begin_transaction()
        for number in range(count):
            producer.produce(topic, f"{turn}-{number}-" + "x" * 1000, on_delivery=note)
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0
        if is_transactional and turn % 2:
            producer.abort_transaction(WAIT_S)
        elif is_transactional:
            producer.commit_transaction(WAIT_S)
    assert set(errors) == {None}


def append_offline(member: MemberNode, topic: str, count: int) -> None:
    """Append a tail in epoch 0 that no leader has, to the log of a member that is not running."""
    file_system = OsFileSystem()
    log = load_log(
        LoadRequest(
            TopicPartition(topic, 0),
            str(member.data_directory / f"{topic}-0"),
            LogConfig({}),
            LogEnvironment(file_system, SystemTime()),
            DirectoryState(str(member.data_directory)),
        )
    )
    for _ in range(count):
        log.append_as_leader(memoryview(batch(1, value=b"lost")), leader_epoch=0)
    log.flush()
    log.close()


def tool(name: str, node: BrokerProcess, *arguments: str) -> str:
    """Run one of Kafka's tools, and return its output."""
    done = run_tool(name, ["--bootstrap-server", node.bootstrap, *arguments])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running cluster."""
    cluster = Cluster(tmp_path_factory.mktemp("follower"))
    with cluster.controller, cluster.java, cluster.member:
        yield cluster


def test_batches_of_all_kinds_of_producers_are_copied(cluster: Cluster) -> None:
    """Idempotent, compressed and transactional batches, over several segments."""
    cluster.create("copied", [JAVA, MEMBER], **{"segment.bytes": "1048576"})
    produce(cluster.java, "copied", 3000)
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        produce(cluster.java, "copied", 200, **{"compression.type": codec})
    produce(cluster.java, "copied", 100, **{"transactional.id": "copied"})
    assert len(cluster.wait_equal("copied")) > 3
    cluster.wait_in_sync("copied", JAVA, MEMBER)


def test_a_partition_that_is_reassigned_to_it(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create("moved", [JAVA])
    produce(cluster.java, "moved", 2000)
    plan = {"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": [JAVA, MEMBER]}]}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    tool(REASSIGN_COMMAND, cluster.java, "--reassignment-json-file", str(path), "--execute")
    cluster.wait_in_sync("moved", JAVA, MEMBER)
    cluster.wait_equal("moved")
    described = tool(TOPIC_COMMAND, cluster.java, "--describe", "--topic", "moved")
    assert re.search(r"Leader: 2\tReplicas: 2,101\tIsr: 2,101\t", described), described


def test_a_kill_and_a_tail_that_no_leader_has(cluster: Cluster) -> None:
    """The follower is killed and its log gets records that its leader never had; the leader goes and comes, and writes
    on in another epoch: the tail is cut where its epoch ends, and what was acknowledged is there."""
    cluster.create("diverged", [JAVA, MEMBER])
    produce(cluster.java, "diverged", 10)
    cluster.wait_equal("diverged")
    cluster.member.kill()
    append_offline(cluster.member, "diverged", 50)
    cluster.wait_in_sync("diverged", JAVA)
    cluster.java.terminate()
    cluster.java.start()
    cluster.wait_in_sync("diverged", JAVA)
    produce(cluster.java, "diverged", 10)
    cluster.member.start()
    cluster.wait_equal("diverged")
    cluster.wait_in_sync("diverged", JAVA, MEMBER)
    assert "diverged-0 is cut from 60 to 10" in cluster.member.output()
