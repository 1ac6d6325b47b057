"""Open work while its broker becomes Tidelog in place, and Kafka again: a transaction, and acquired records of a share
group."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support.cluster_clients import WAIT_S, repeat_until_answered
from tests.support.faulty_cluster.amount import MIXES, at_length
from tests.support.faulty_cluster.clients import read_all
from tests.support.faulty_cluster.cluster import FaultyCluster, Node
from tests.support.kraft_node import KraftNode, wait_until
from tests.support.member import TakenOver
from tests.support.share_client import ACCEPT, RELEASE, ShareClient, read_from_earliest
from tidelog.client import Client
from tidelog.client.cluster import Cluster
from tidelog.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

pytestmark = [pytest.mark.java, pytest.mark.slow, at_length]
MOVED = 3
"""The broker that is Java's at first."""
SHARED = {
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "1000",
}
RECORDS = 30
mixes = pytest.mark.parametrize("mix", [mix for mix in MIXES if mix.endswith("J")])


def create_topics(cluster: FaultyCluster) -> KraftNode:
    """Create topics that the moved broker leads; return it, as it is Java's."""
    for topic in ("open", "shared"):
        cluster.create(topic, [MOVED, 1, 2])
    java = cluster.brokers[MOVED]
    assert isinstance(java, KraftNode)
    return java


def move(cluster: FaultyCluster, new: Node, topics: tuple[str, ...]) -> None:
    """Put another broker into the place of the moved one, and have it lead where it is preferred."""
    cluster.stop(MOVED)
    cluster.brokers[MOVED] = new
    cluster.start(MOVED)
    lead(cluster, topics)


def lead(cluster: FaultyCluster, topics: tuple[str, ...]) -> None:
    """Have the preferred leaders lead, once all replicas are in sync."""
    for topic in topics:
        cluster.wait_isr(topic)
    with Client(cluster.brokers[1].bootstrap) as client:
        client.call(ElectLeadersRequest(election_type=0, topic_partitions=None), ElectLeadersResponse)
    wait_until(lambda: cluster.leader("open") == MOVED == cluster.leader("shared"), "the moved broker leads", WAIT_S)


def write(producer: Producer, word: str) -> None:
    """Write three values into the open transaction, and wait until they are acknowledged."""
    for number in range(3):
        producer.produce("open", f"{word}-{number}", partition=0)
    assert producer.flush(WAIT_S) == 0


def committed(cluster: FaultyCluster) -> list[bytes]:
    """Return what a reader of committed records is given."""
    return [one.value for one in read_all(cluster.bootstrap, {"open": 1})]


@mixes
@pytest.mark.parametrize("is_kept", [True, False], ids=["committed", "aborted"])
def test_a_transaction_stays_open_over_moves(mix: str, is_kept: bool, tmp_path: Path) -> None:
    """Records from before, between and after the moves are shown at the commit, and not before; or never."""
    with FaultyCluster(tmp_path, mix, broker=SHARED) as cluster:
        java = create_topics(cluster)
        producer = Producer({"bootstrap.servers": cluster.brokers[1].bootstrap, "transactional.id": "x"})
        repeat_until_answered(producer.init_transactions)
        producer.begin_transaction()
        write(producer, "before")
        for word, new in (("member", TakenOver(java)), ("java", java)):
            move(cluster, new, ("open", "shared", "__transaction_state"))
            write(producer, word)
            assert committed(cluster) == []
        repeat_until_answered(producer.commit_transaction if is_kept else producer.abort_transaction)
        told = [f"{word}-{number}".encode() for word in ("before", "member", "java") for number in range(3)]
        wanted = told if is_kept else []
        wait_until(lambda: committed(cluster) == wanted, "the end of the transaction", WAIT_S)
        cluster.wait_equal_files("open", "__transaction_state")


class Sharers:
    """Members of one share group, one after the other, and what they have accepted and given back."""

    def __init__(self, topic_id: bytes) -> None:
        self._topic = ("shared", topic_id)
        self.accepted: set[int] = set()
        self.deliveries: Counter[int] = Counter()

    def work(self, client: Client, turn: int) -> None:
        """Take all records but the accepted ones, accept a fifth of them, and give the others back."""
        sharer = ShareClient(client, "sharers", self._topic, f"member-{turn}")
        with Cluster(client.bootstrap, timeout_s=WAIT_S) as finder:
            sharer.join(finder.retry_until_settled(lambda: finder.coordinator("sharers", 0)))
        taken: set[int] = set()
        deadline = time.monotonic() + WAIT_S
        while len(taken) + len(self.accepted) < RECORDS:
            assert time.monotonic() < deadline, f"{len(taken)} records, and {len(self.accepted)} are accepted"
            for run in sharer.fetch(max_wait_ms=200):
                offsets = range(run.first, run.last + 1)
                self.deliveries.update(offsets)
                taken.update(offsets)
                assert {self.deliveries[offset] for offset in offsets} == {run.delivery_count}
        assert not taken & self.accepted, "accepted, and here again"
        for offset in sorted(taken):
            is_done = offset % 5 == turn
            assert sharer.acknowledge(offset, offset, ACCEPT if is_done else RELEASE) == 0
            self.accepted |= {offset} if is_done else set()


@mixes
def test_a_share_group_continues_over_moves(mix: str, tmp_path: Path) -> None:
    """Accepted records do not come again at the next broker; those that were given back come, counted as before."""
    with FaultyCluster(tmp_path, mix, broker=SHARED) as cluster:
        java = create_topics(cluster)
        producer = Producer({"bootstrap.servers": cluster.brokers[1].bootstrap, "linger.ms": 100, "batch.size": 100})
        for number in range(RECORDS):
            producer.produce("shared", f"{number}".ljust(90).encode(), partition=0)
        assert producer.flush(WAIT_S) == 0
        with Client(cluster.brokers[1].bootstrap) as client:
            asked = MetadataRequest(topics=[MetadataRequestTopic(name="shared")])
            sharers = Sharers(client.call(asked, MetadataResponse).topics[0].topic_id)
            read_from_earliest(client, "sharers")
        for turn, new in enumerate((None, TakenOver(java), java, TakenOver(java))):
            if new is not None:
                move(cluster, new, ("open", "shared", "__share_group_state"))
            with Client(cluster.brokers[MOVED].bootstrap) as client:
                sharers.work(client, turn)
        assert len(sharers.accepted) == RECORDS * 4 // 5
        cluster.wait_equal_files("shared", "__share_group_state")
