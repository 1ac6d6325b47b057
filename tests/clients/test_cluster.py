"""A Tidelog member in a cluster of real Apache Kafka controllers, alone and beside a Java broker.

Kafka's own tools take seconds each: they are asked where only they tell something, other clients do the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]

from benchmarks.rivals.apache_kafka import CLUSTER_ID, STORAGE_TOOL
from benchmarks.rivals.process import BrokerError, BrokerProcess
from tests.support.apache_kafka import CONFIG_COMMAND, PRODUCER_PERFORMANCE, TOPIC_COMMAND, run_tool
from tests.support.kraft_node import SHORT_SESSIONS, KraftNode, ports_of_controllers, wait_until
from tests.support.member import MemberNode
from tidelog.cli import main
from tidelog.client import Client
from tidelog.log.files.checkpoints import read_clean_shutdown_epoch
from tidelog.log.system.file_system import OsFileSystem
from tidelog.protocol.errors import InvalidProducerEpochError
from tidelog.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from tidelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

pytestmark = [pytest.mark.java, pytest.mark.slow]
QUORUM_COMMAND = "org.apache.kafka.tools.MetadataQuorumCommand"
MEMBER = 101
PARTITIONS = 6
WAIT_S = 60
CREATION_S = (20, 21, 60)
UNANSWERED = (KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT)
ONE_REPLICA = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "6",
    "offsets.topic.num.partitions": "6",
    "group.initial.rebalance.delay.ms": "0",
}


class Cluster(NamedTuple):
    """One controller, one Tidelog member, and a Java broker where there is one."""

    controller: KraftNode
    member: MemberNode
    java: KraftNode | None = None


def admin_of(node: BrokerProcess) -> AdminClient:
    """Build a client of a broker; hold on to it as long as to its futures."""
    return AdminClient({"bootstrap.servers": node.bootstrap})


def create(node: BrokerProcess, name: str, partitions: int = PARTITIONS) -> None:
    """Create a topic with one replica of each partition. A member that the controller does not know yet names no
    controller; a client then waits until it times out, and another client tries again."""
    fine: tuple[int, ...] = ()
    for limit_s in CREATION_S:
        admin = admin_of(node)
        (future,) = admin.create_topics([NewTopic(name, partitions, 1)], request_timeout=limit_s).values()
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() in fine:
                return
            if error.args[0].code() not in UNANSWERED or limit_s == CREATION_S[-1]:
                raise
            fine = (KafkaError.TOPIC_ALREADY_EXISTS,)
        else:
            return


def leaders(node: BrokerProcess, name: str) -> list[int]:
    """Return the leaders of a topic's partitions, as a broker tells them."""
    admin = admin_of(node)
    topic = admin.list_topics(name, timeout=WAIT_S).topics[name]
    return [topic.partitions[index].leader for index in sorted(topic.partitions)]


def produce(node: BrokerProcess, topic: str, values: Iterable[str]) -> None:
    """Produce records over all partitions, each acknowledged."""
    producer = Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": True})
    errors: list[object] = []

    def note(error: object, _message: object) -> None:
        errors.append(error)

    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=note)
    assert producer.flush(WAIT_S) == 0
    assert set(errors) == {None}


def read(node: BrokerProcess, topic: str, count: int, group: str, **options: str) -> list[str]:
    """Read the values of so many records with a group, and commit its offsets."""
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": group, "auto.offset.reset": "earliest", **options}
    )
    consumer.subscribe([topic])
    found: list[str] = []

    def has_all() -> bool:
        messages = consumer.consume(1000, 0.1)
        found.extend((message.value() or b"").decode() for message in messages if message.error() is None)
        return len(found) >= count

    wait_until(has_all, f"{count} records of {topic}", WAIT_S)
    consumer.commit(asynchronous=False)
    consumer.close()
    return sorted(found)


def tool(name: str, node: BrokerProcess, *arguments: str) -> str:
    """Run one of Kafka's tools against a broker, and return its output."""
    done = run_tool(name, ["--bootstrap-server", node.bootstrap, *arguments])
    assert done.returncode == 0, done.stdout + done.stderr + node.output()
    return done.stdout


def test_kafka_storage_accepts_formatted_directories(tmp_path: Path) -> None:
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
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A controller, a Java broker and a member, for all tests that stop none of them."""
    directory = tmp_path_factory.mktemp("cluster")
    ports = ports_of_controllers(1)
    java = KraftNode(directory, 2, ports, is_broker=True, overrides=ONE_REPLICA, in_shared_jvm=True)
    member = MemberNode(directory, MEMBER, ports, ONE_REPLICA)
    with KraftNode(directory, 1, ports, in_shared_jvm=True) as controller, java, member:
        yield Cluster(controller, member, java)


def test_kafkas_tools_see_a_cluster(cluster: Cluster) -> None:
    member = cluster.member
    tool(
        TOPIC_COMMAND, member, "--create", "--topic", "orders", "--partitions", "6", "--config", "retention.ms=86400000"
    )
    described = tool(TOPIC_COMMAND, member, "--describe", "--topic", "orders")
    assert sorted(re.findall(r"Leader: (\d+)\tReplicas: \1\tIsr: \1\t", described)) == ["101"] * 3 + ["2"] * 3
    assert "retention.ms=86400000" in described
    status = tool(QUORUM_COMMAND, member, "describe", "--status")
    assert f'"CONTROLLER://127.0.0.1:{cluster.controller.port}"' in status
    assert re.search(r'CurrentObservers: .*"id": 101', status)


def test_records_and_groups_are_served_by_both_brokers(cluster: Cluster) -> None:
    assert cluster.java is not None
    brokers = (cluster.java, cluster.member)
    create(cluster.member, "lines")
    for broker in brokers:
        wait_until(lambda broker=broker: set(leaders(broker, "lines")) == {2, MEMBER}, "leaders on both")  # type: ignore[misc]
    values = [f"line {number}" for number in range(60)]
    produce(cluster.java, "lines", values[:30])
    produce(cluster.member, "lines", values[30:])
    for number in range(6):
        assert read(brokers[number % 2], "lines", 60, f"readers-{number}") == sorted(values)
    assert set(leaders(cluster.member, "__consumer_offsets")) == {2, MEMBER}, "both have coordinated groups"


def test_a_deleted_topic_of_the_same_name_is_another_one(cluster: Cluster) -> None:
    assert cluster.java is not None
    create(cluster.member, "again")
    produce(cluster.member, "again", [f"old {number}" for number in range(12)])
    admin = admin_of(cluster.java)
    (future,) = admin.delete_topics(["again"]).values()
    future.result()
    create(cluster.java, "again")
    wait_until(lambda: set(leaders(cluster.member, "again")) == {2, MEMBER}, "the new topic")
    new = sorted(f"new {number}" for number in range(12))
    produce(cluster.member, "again", new)
    assert read(cluster.member, "again", 12, "again") == new


def test_transactions_over_both_brokers_are_whole_or_aborted(cluster: Cluster) -> None:
    """Coordinators, partitions and group offsets on either broker; one in three transactions is aborted."""
    create(cluster.member, "out")
    wait_until(lambda: set(leaders(cluster.member, "out")) == {2, MEMBER}, "leaders on both")
    expected = []
    for number in range(4):
        producer = Producer({"bootstrap.servers": cluster.member.bootstrap, "transactional.id": f"writer-{number}"})
        producer.init_transactions(WAIT_S)
        for turn in range(3):
            producer.begin_transaction()
            values = [f"{number}-{turn}-{partition}" for partition in range(PARTITIONS)]
            for partition, value in enumerate(values):
                producer.produce("out", value, partition=partition)
            offsets = [TopicPartition("out", partition, turn) for partition in range(PARTITIONS)]
            consumer = Consumer({"bootstrap.servers": cluster.member.bootstrap, "group.id": f"sums-{number}"})
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), WAIT_S)
            producer.flush(WAIT_S)
            if turn == 1:
                producer.abort_transaction(WAIT_S)
            else:
                producer.commit_transaction(WAIT_S)
                expected += values
            if turn == 2:
                committed = consumer.committed(offsets, WAIT_S)
                assert [one.offset for one in committed] == [2] * PARTITIONS
            consumer.close()
    assert set(leaders(cluster.member, "__transaction_state")) == {2, MEMBER}, "both have coordinated transactions"
    found = read(cluster.member, "out", len(expected), "committed", **{"isolation.level": "read_committed"})
    assert found == sorted(expected)


def test_transactions_of_a_java_producer_are_committed(cluster: Cluster) -> None:
    """Its transactions have version 2: partitions are added by the brokers that lead them (KIP-890)."""
    create(cluster.member, "java-out")
    done = run_tool(
        PRODUCER_PERFORMANCE,
        [
            "--topic", "java-out", "--num-records", "3000", "--record-size", "100", "--throughput", "3000",
            "--transactional-id", "performance", "--transaction-duration-ms", "100", "--bootstrap-server",
            cluster.member.bootstrap,
        ],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3000 records sent" in done.stdout, done.stdout + done.stderr
    found = read(cluster.member, "java-out", 3000, "java", **{"isolation.level": "read_committed"})
    assert len(found) == 3000


def end_transaction(client: Client, partition: int, producer_id: int, epoch: int) -> int:
    """Send a marker in version 2 that commits, and return its error code."""
    topics = [WritableTxnMarkerTopic(name="ends", partition_indexes=[partition])]
    marker = WritableTxnMarker(
        producer_id=producer_id, producer_epoch=epoch, transaction_result=True, topics=topics, transaction_version=2
    )
    answer = client.call(WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse)
    return answer.markers[0].topics[0].partitions[0].error_code


def codes_of_markers(node: BrokerProcess, partition: int) -> list[int]:
    """Return the codes of version 2 markers for an open transaction: a late one, its own, that again, a late one."""
    topic = TopicRequest(name="ends", partition_indexes=[partition])
    with Client(node.bootstrap) as client:
        found = client.call(DescribeProducersRequest(topics=[topic]), DescribeProducersResponse)
        (open_one,) = found.topics[0].partitions[0].active_producers
        epoch = open_one.producer_epoch
        return [
            end_transaction(client, partition, open_one.producer_id, marker_epoch)
            for marker_epoch in (epoch, epoch + 1, epoch + 1, epoch)
        ]


def test_markers_in_version_2_count_as_at_a_java_broker(cluster: Cluster) -> None:
    """Each transaction has an epoch of its own: what comes late does not end the next one (KIP-1228)."""
    create(cluster.member, "ends")
    assert cluster.java is not None
    wait_until(lambda: set(leaders(cluster.member, "ends")) == {2, MEMBER}, "leaders on both")
    led = leaders(cluster.member, "ends")
    ends = {2: led.index(2), MEMBER: led.index(MEMBER)}
    producer = Producer({"bootstrap.servers": cluster.member.bootstrap, "transactional.id": "ended from outside"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for partition in ends.values():
        producer.produce("ends", "open", partition=partition)
    assert producer.flush(WAIT_S) == 0
    expected = [InvalidProducerEpochError.code, 0, 0, InvalidProducerEpochError.code]
    assert codes_of_markers(cluster.java, ends[2]) == expected
    assert codes_of_markers(cluster.member, ends[MEMBER]) == expected


def test_configs_go_to_the_controller_and_come_back(cluster: Cluster) -> None:
    create(cluster.member, "kept", 1)
    change = ("--alter", "--entity-type", "topics", "--entity-name", "kept", "--add-config", "segment.bytes=1048576")
    tool(CONFIG_COMMAND, cluster.member, *change)
    admin = admin_of(cluster.member)
    kept = ConfigResource(ConfigResource.Type.TOPIC, "kept")

    def is_taken_over() -> bool:
        (future,) = admin.describe_configs([kept]).values()
        return bool(future.result()["segment.bytes"].value == "1048576")

    wait_until(is_taken_over, "the new value")


def test_acknowledged_records_survive_stops_kills_and_a_lost_controller(tmp_path: Path) -> None:
    """A member is killed, stopped, and its controller stopped under it: what was acknowledged is there, in order."""
    ports = ports_of_controllers(1)
    controller = KraftNode(tmp_path, 1, ports, overrides=SHORT_SESSIONS, in_shared_jvm=True)
    member = MemberNode(tmp_path, MEMBER, ports)
    member.overrides["broker.heartbeat.interval.ms"] = "500"  # several in a session, also beside much other work
    with controller, member:
        create(member, "kept")
        written = [f"{number:04}" for number in range(4 * PARTITIONS)]
        batches = [written[start : start + PARTITIONS] for start in range(0, len(written), PARTITIONS)]
        produce(member, "kept", batches[0])
        member.kill()
        member.start()
        produce(member, "kept", batches[1])
        controller.terminate()
        produce(member, "kept", batches[2])
        controller.start()
        create(member, "later")
        member.terminate()
        epoch = read_clean_shutdown_epoch(OsFileSystem(), str(member.data_directory))
        assert epoch is not None
        assert epoch > 0
        member.start()
        produce(member, "kept", batches[3])
        assert read(member, "kept", len(written), "all") == written
        assert "recovering" in member.output(), "after the kill"
        assert member.output().count("registered as broker 101") == 3


def test_the_second_process_of_one_id_is_refused(tmp_path: Path) -> None:
    """The second waits for the first one's session, and is told so when its time is over."""
    ports = ports_of_controllers(1)
    first = MemberNode(tmp_path / "first", MEMBER, ports)
    second = MemberNode(tmp_path / "second", MEMBER, ports, {"initial.broker.registration.timeout.ms": "2500"})
    with KraftNode(tmp_path, 1, ports, in_shared_jvm=True), first:
        with pytest.raises(BrokerError, match="DuplicateBrokerRegistration"):
            second.start()
        create(first, "served")
