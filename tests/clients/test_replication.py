"""Replicated partitions of two Tidelog members and one broker of Apache Kafka, which take turns as leaders.

``test_replication_follower.py`` has what concerns a member as follower.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]

from benchmarks.rivals.process import BrokerProcess
from tests.support.apache_kafka import run_tool
from tests.support.cluster_clients import WAIT_S, Writer, digests, isr, leader, values
from tests.support.jvm import SHARE_MEMBERS, java_program
from tests.support.kraft_node import SHORT_SESSIONS, KraftNode, ports_of_controllers, wait_until
from tests.support.member import MemberNode
from tidelog.broker.config.keys.member import RACK_AWARE
from tidelog.client import Client
from tidelog.protocol.errors import NotEnoughReplicasError
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.record.record_batch import Record, build_batch

pytestmark = [pytest.mark.java, pytest.mark.slow]
ELECTION_COMMAND = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGN_COMMAND = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
JAVA, MEMBER, SECOND = 2, 101, 102
THROTTLE = "50000000"
ALL = [MEMBER, SECOND, JAVA]
QUICK = {
    "replica.lag.time.max.ms": "3000",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "group.initial.rebalance.delay.ms": "0",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "group.share.max.record.lock.duration.ms": "600000",
    "group.share.record.lock.duration.ms": "600000",  # longer than a test: nothing comes again by time alone
    # A transactional producer of librdkafka waits for the next change of its connection to the group's coordinator. In
    # one run it had missed the last one, and waited until that broker closed the idle connection, 600 s later.
    "connections.max.idle.ms": "10000",
}
TOPIC_RESOURCE, GROUP_RESOURCE = 2, 32


def in_rack(node_id: int) -> dict[str, str]:
    """Return settings of a broker that has a rack of its own, and tells consumers of others' racks."""
    return {**QUICK, "broker.rack": f"rack-{node_id}", "replica.selector.class": RACK_AWARE}


class Cluster:
    """A controller, a Java broker and two members."""

    def __init__(self, directory: Path) -> None:
        ports = ports_of_controllers(1)
        self.controller = KraftNode(directory, 1, ports, overrides=SHORT_SESSIONS, in_shared_jvm=True)
        self.java = KraftNode(directory, JAVA, ports, is_broker=True, overrides=in_rack(JAVA))
        self.member = MemberNode(directory, MEMBER, ports, in_rack(MEMBER))
        self.second = MemberNode(directory, SECOND, ports, in_rack(SECOND))
        self.brokers: dict[int, BrokerProcess] = {MEMBER: self.member, SECOND: self.second, JAVA: self.java}

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers."""
        return ",".join(node.bootstrap for node in self.brokers.values())

    def digests(self, name: str) -> list[dict[str, str]]:
        """Return the segments of partition 0 at each broker."""
        return [digests(Path(node.data_directory) / f"{name}-0") for node in (self.member, self.second, self.java)]

    def change_leader(self, name: str) -> int:
        """Kill the leader of partition 0, wait for another one, start the killed broker again; return its id."""
        killed = leader(self.bootstrap, name)
        others = ",".join(node.bootstrap for number, node in self.brokers.items() if number != killed)
        self.brokers[killed].kill()
        wait_until(lambda: leader(others, name) not in (killed, -1), "another leader", WAIT_S)
        self.brokers[killed].start()
        return killed

    def create(self, name: str, replicas: list[int], **configs: str) -> None:
        """Create a topic of one partition with these replicas, the first of which leads."""
        admin = AdminClient({"bootstrap.servers": self.java.bootstrap})
        (future,) = admin.create_topics([NewTopic(name, 1, replica_assignment=[replicas], config=configs)]).values()
        future.result()
        self.wait_isr(name, replicas)

    def wait_isr(self, name: str, members: list[int], limit_s: float = WAIT_S) -> None:
        """Wait until these are the in-sync replicas, as all brokers tell it."""
        wanted = sorted(members)
        told = partial(isr, name=name)
        wait_until(lambda: all(told(node) == wanted for node in self.brokers.values()), f"{name}: {members}", limit_s)


def produce(node: BrokerProcess, topic: str, count: int, size: int = 100) -> None:
    """Produce records by an idempotent producer, acknowledged by all in-sync replicas."""
    producer = Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": True, "linger.ms": 1})
    errors: list[object] = []
    for number in range(count):
        producer.produce(topic, f"{number:0{size}}", on_delivery=lambda error, _: errors.append(error))
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    assert len(errors) == count
    assert set(errors) == {None}


def produce_code(node: BrokerProcess, topic: str, acks: int) -> int:
    """Send a produce request of one record, and return its error code."""
    data = PartitionProduceData(index=0, records=memoryview(build_batch([Record(0, 0, None, b"one")])))
    with Client(node.bootstrap) as client:
        topic_id = client.call(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), MetadataResponse).topics[0]
        request = ProduceRequest(
            acks=acks,
            timeout_ms=30_000,
            topic_data=[TopicProduceData(name=topic, topic_id=topic_id.topic_id, partition_data=[data])],
        )
        return client.call(request, ProduceResponse).responses[0].partition_responses[0].error_code


def set_config(node: BrokerProcess, kind: int, name: str, config: tuple[str, str]) -> None:
    """Set one config (key, value) of a resource."""
    key, value = config
    resource = AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=[AlterableConfig(name=key, value=value)]
    )
    with Client(node.bootstrap) as client:
        answer = client.call(IncrementalAlterConfigsRequest(resources=[resource]), IncrementalAlterConfigsResponse)
    assert [one.error_code for one in answer.responses] == [0]


def fetched(node: BrokerProcess, topic: str, rack: str) -> tuple[int, int, int]:
    """Fetch as a consumer of a rack from offset 0: error, preferred replica and bytes of the answer."""
    with Client(node.bootstrap) as client:
        named = client.call(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), MetadataResponse).topics[0]
        asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic=topic, topic_id=named.topic_id, partitions=[asked])]
        request = FetchRequest(max_bytes=1 << 20, topics=topics, rack_id=rack, session_epoch=-1)
        data = client.call(request, FetchResponse).responses[0].partitions[0]
        return data.error_code, data.preferred_read_replica, len(cast("bytes", data.records or b""))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running cluster."""
    cluster = Cluster(tmp_path_factory.mktemp("replication"))
    with cluster.controller, cluster.java, cluster.member, cluster.second:
        yield cluster


def test_followers_have_the_same_files(cluster: Cluster) -> None:
    cluster.create("copied", ALL, **{"segment.bytes": "1048576", "min.insync.replicas": "3"})
    produce(cluster.java, "copied", 5000, 1000)
    cluster.wait_isr("copied", ALL)
    own, second, java = cluster.digests("copied")
    assert len(own) > 3
    wait_until(lambda: cluster.digests("copied") == [own] * 3, f"equal files: {own}, {second}, {java}", WAIT_S)
    assert len(values(cluster.bootstrap, "copied")) == 5000
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (deleted,) = admin.delete_records([TopicPartition("copied", 0, 3000)]).values()
    assert deleted.result().low_watermark == 3000, "all three let go of the others"


def test_a_follower_that_is_gone_leaves_and_comes_back(cluster: Cluster) -> None:
    """Meanwhile acks=all goes on, unless min.insync.replicas asks for both."""
    cluster.create("free", [MEMBER, JAVA])
    cluster.create("careful", [MEMBER, JAVA], **{"min.insync.replicas": "2"})
    assert produce_code(cluster.member, "careful", -1) == 0
    with Writer(cluster.member.bootstrap, "free") as writer:
        writer.wait_for(50)
        cluster.java.kill()
        wait_until(lambda: isr(cluster.member, "free") == [MEMBER], "the follower left", WAIT_S)
        writer.wait_for(50)
        wait_until(lambda: isr(cluster.member, "careful") == [MEMBER], "the follower left", WAIT_S)
        assert produce_code(cluster.member, "careful", -1) == NotEnoughReplicasError.code
        assert produce_code(cluster.member, "careful", 1) == 0
        cluster.java.start()
        cluster.wait_isr("free", [MEMBER, JAVA])
        writer.wait_for(50)
    assert writer.errors == []
    cluster.wait_isr("careful", [MEMBER, JAVA])
    assert produce_code(cluster.member, "careful", -1) == 0
    assert values(cluster.bootstrap, "free") == writer.acknowledged


def test_a_follower_comes_back_after_fewer_replicas_were_asked_for(cluster: Cluster) -> None:
    """The controller then removes the follower from the eligible replicas, by a ClearElrRecord."""
    cluster.create("lowered", [MEMBER, JAVA], **{"min.insync.replicas": "2"})
    cluster.java.kill()
    wait_until(lambda: isr(cluster.member, "lowered") == [MEMBER], "the follower left", WAIT_S)
    set_config(cluster.member, TOPIC_RESOURCE, "lowered", ("min.insync.replicas", "1"))
    cluster.java.start()
    cluster.wait_isr("lowered", [MEMBER, JAVA])


@pytest.mark.parametrize(("leads", "near"), [(MEMBER, SECOND), (MEMBER, JAVA), (JAVA, MEMBER)])
def test_consumers_read_from_the_replica_of_their_rack(cluster: Cluster, leads: int, near: int) -> None:
    name, rack = f"near-{leads}-{near}", f"rack-{near}"
    cluster.create(name, [leads, *(one for one in ALL if one != leads)])
    produce(cluster.java, name, 100)
    wait_until(lambda: fetched(cluster.brokers[leads], name, rack)[1] == near, "the follower has all", WAIT_S)
    wait_until(lambda: fetched(cluster.brokers[near], name, rack)[2] > 100 * 100, "what it knows as committed", WAIT_S)
    assert fetched(cluster.brokers[near], name, rack)[:2] == (0, -1)
    assert fetched(cluster.brokers[leads], name, f"rack-{leads}")[:2] == (0, -1)
    settings = {"bootstrap.servers": cluster.bootstrap, "client.rack": rack, "group.id": name}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(name, 0, 0)])
    read: list[bytes | None] = []

    def has_all() -> bool:
        read.extend(one.value() for one in consumer.consume(100, 0.1))
        return len(read) >= 100

    wait_until(has_all, "all records", WAIT_S)
    consumer.close()
    assert read == [b"%0100d" % number for number in range(100)]


def test_leaders_are_killed_one_after_the_other(cluster: Cluster) -> None:
    """Each broker loses and gets leadership; at the end the preferred leader gets it back by Kafka's tool."""
    cluster.create("turns", ALL, **{"min.insync.replicas": "2"})
    killed = set()
    with Writer(cluster.bootstrap, "turns") as writer:
        for _ in ALL:
            writer.wait_for(100)
            killed.add(cluster.change_leader("turns"))
            cluster.wait_isr("turns", ALL)
        writer.wait_for(100)
        elected = run_tool(
            ELECTION_COMMAND,
            ["--bootstrap-server", cluster.second.bootstrap, "--election-type", "preferred", "--topic", "turns",
             "--partition", "0"],
        )  # fmt: skip
        assert elected.returncode == 0, elected.stdout + elected.stderr
        wait_until(lambda: leader(cluster.bootstrap, "turns") == MEMBER, "the preferred leader", WAIT_S)
        writer.wait_for(100)
    assert len(killed) > 1
    assert writer.errors == []
    assert values(cluster.bootstrap, "turns") == writer.acknowledged
    wait_until(lambda: len(set(map(str, cluster.digests("turns")))) == 1, "equal files", WAIT_S)


def throttle_at(node: BrokerProcess, node_id: int) -> set[str | None]:
    """Return both rates of throttled replicas that a broker has."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    (future,) = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, str(node_id))]).values()
    found = future.result()
    return {found[f"{role}.replication.throttled.rate"].value for role in ("leader", "follower")}


def test_a_partition_moves_by_kafkas_tool(cluster: Cluster, tmp_path: Path) -> None:
    """The moves are throttled (KIP-73), by a rate that they do not reach."""
    cluster.create("moved", [MEMBER])
    plan = tmp_path / "plan.json"
    for replicas in ([SECOND, JAVA], [JAVA, MEMBER]):
        with Writer(cluster.bootstrap, "moved") as writer:
            writer.wait_for(50)
            moves = [{"topic": "moved", "partition": 0, "replicas": replicas}]
            plan.write_text(json.dumps({"version": 1, "partitions": moves}))
            options = ["--bootstrap-server", cluster.member.bootstrap, "--reassignment-json-file", str(plan)]
            moved = run_tool(REASSIGN_COMMAND, [*options, "--execute", "--throttle", THROTTLE])
            assert moved.returncode == 0, moved.stdout + moved.stderr
            wait_until(lambda: throttle_at(cluster.member, MEMBER) == {THROTTLE}, "the throttle", WAIT_S)
            wait_until(lambda: isr(cluster.java, "moved") == sorted(replicas), f"on {replicas}", WAIT_S)  # noqa: B023
            writer.wait_for(50)
        assert writer.errors == []
    wait_until(lambda: not (cluster.second.data_directory / "moved-0").exists(), "the old replica is gone", WAIT_S)


def committed(consumer: Consumer, partitions: list[TopicPartition]) -> list[int]:
    """Return the committed offsets, none where the coordinator of before was asked: librdkafka tells its answer."""
    try:
        return [one.offset for one in consumer.committed(partitions, WAIT_S)]
    except KafkaException as error:
        if error.args[0].code() != KafkaError.NOT_COORDINATOR:
            raise
        return []


def test_groups_and_transactions_outlive_their_coordinators(cluster: Cluster) -> None:
    """The leaders of both internal topics are killed while a transaction is open."""
    cluster.create("sums", ALL, **{"min.insync.replicas": "2"})
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "sums"})
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "sums"})
    producer.init_transactions(WAIT_S)
    for turn in range(2):
        producer.begin_transaction()
        producer.produce("sums", str(turn))
        assert producer.flush(WAIT_S) == 0
        if turn:
            for topic in ("__transaction_state", "__consumer_offsets"):
                cluster.change_leader(topic)
                cluster.wait_isr(topic, ALL)
        offsets = [TopicPartition("sums", 0, turn + 1)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), WAIT_S)
        producer.commit_transaction(WAIT_S)
        wait_until(lambda: committed(consumer, offsets) == [turn + 1], "the committed offset", WAIT_S)  # noqa: B023
    consumer.close()
    assert values(cluster.bootstrap, "sums") == [b"0", b"1"]


def test_share_groups_outlive_the_coordinator_of_their_states(cluster: Cluster) -> None:
    """Each broker leads a partition, and one of them keeps the states: it is killed, and another one goes on."""
    admin = AdminClient({"bootstrap.servers": cluster.java.bootstrap})
    turns = [ALL, [SECOND, JAVA, MEMBER], [JAVA, MEMBER, SECOND]]
    (made,) = admin.create_topics([NewTopic("shared", 3, replica_assignment=turns)]).values()
    made.result()
    set_config(cluster.member, GROUP_RESOURCE, "sharing", ("share.auto.offset.reset", "earliest"))
    words = {"bootstrap": cluster.bootstrap, "group": "sharing", "topic": "shared", "members": 2, "count": 120,
             "idle_ms": 1000, "limit_ms": 200_000}  # fmt: skip
    program = [*java_program(SHARE_MEMBERS), *(f"{key}={value}" for key, value in words.items())]
    events: list[list[str]] = []
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as members:
        assert members.stdout is not None
        for half in (1, 2):
            produce_to_each(cluster.bootstrap, "shared", ["accept", "again"] * 10)
            while sum(event[0] == "done" and event[4] == "accept" for event in events) < 60 * half:
                line = members.stdout.readline()
                assert line, events
                events += [line.split()] if line.startswith(("got ", "done ")) else []
            if half == 1:
                cluster.change_leader("__share_group_state")
        events += [line.split() for line in members.stdout if line.startswith(("got ", "done "))]
    accepted: set[tuple[str, str]] = set()
    for what, _, partition, offset, more in events:
        # A member may learn that its release was stored after another member has accepted the record.
        if what == "got":
            told = [event for event in events if event[2:4] == [partition, offset]]
            assert (partition, offset) not in accepted, f"what was acknowledged does not come again: {told}"
        elif more == "accept":
            accepted.add((partition, offset))
    assert len(accepted) == 120


def produce_to_each(bootstrap: str, topic: str, texts: list[str]) -> None:
    """Produce these records to each of three partitions, acknowledged by all in-sync replicas."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for partition in range(3):
        for text in texts:
            producer.produce(topic, text, partition=partition)
    assert producer.flush(WAIT_S) == 0
