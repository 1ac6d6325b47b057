"""Consumers near a follower: the replica that the leader recommends, and what the follower serves (KIP-392,
KIP-951)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.replicated import LED, ReplicatedBroker
from tests.support.slices import content_of
from tests.support.stand_in import StandIn
from tests.support.topics import create_topic
from tests.unit.broker.data_broker import batch
from tidelog.broker.config.keys.member import RACK_AWARE
from tidelog.broker.handlers.fetch import handle as fetch
from tidelog.broker.handlers.produce import handle as produce
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.requests.nodes import Node
from tidelog.protocol import errors
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

RACKS = {1: "a", 2: "b", 3: "b"}
FOLLOWED = LED._replace(leader=2, leader_epoch=6, partition_epoch=8)


class Nodes:
    """The brokers 1 to 3 with their racks, those that are alive."""

    def __init__(self) -> None:
        self.dead: set[int] = set()

    def find(self, _: object, node_id: int) -> Node | None:
        if node_id in self.dead or node_id not in RACKS:
            return None
        return Node(node_id, f"host-{node_id}", 9092, RACKS[node_id], False)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ReplicatedBroker]:
    node = ReplicatedBroker(tmp_path)
    settings = {"replica.selector.class": RACK_AWARE, "broker.rack": "a"}
    config = StandIn(node.broker.config, get=settings.get)
    node.broker = StandIn(node.broker, nodes=Nodes(), config=config, peers=object())  # type: ignore[assignment]
    for value in (b"one", b"two", b"three"):
        node.append("t", value)
    yield node
    node.close()


def begin(
    node: ReplicatedBroker, rack: str, offset: int, version: int = 18, wait_ms: int = 0
) -> FetchResponse | Deferred[FetchResponse]:
    """Return the answer to a consumer, or what it waits for."""
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic="t", topic_id=node.partition.topic_id, partitions=[asked])
    request = FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, topics=[topic], rack_id=rack, session_epoch=-1
    )
    answer = fetch(node.broker, node.context(version), request)
    assert isinstance(answer, FetchResponse | Deferred)
    return answer


def ask(node: ReplicatedBroker, rack: str, offset: int = 0, version: int = 18) -> PartitionData:
    """Return the answer about t-0 to a consumer that does not wait."""
    answer = begin(node, rack, offset, version)
    assert isinstance(answer, FetchResponse)
    return data_of(answer)


def data_of(answer: FetchResponse) -> PartitionData:
    return answer.responses[0].partitions[0]


def commit(node: ReplicatedBroker, *ends: tuple[int, int]) -> None:
    """Have followers fetch up to these offsets."""
    for replica, end in ends:
        node.fetch(replica, end)


def test_the_replica_of_the_rack_that_is_furthest_is_named(node: ReplicatedBroker) -> None:
    commit(node, (2, 2), (3, 3))
    data = ask(node, "b")
    assert (data.preferred_read_replica, data.records, data.error_code) == (3, b"", 0)
    assert data.high_watermark == node.partition.high_watermark


@pytest.mark.parametrize("rack", ["", "a", "elsewhere"])
def test_consumers_without_a_replica_in_their_rack_are_served_by_the_leader(node: ReplicatedBroker, rack: str) -> None:
    commit(node, (2, 3), (3, 3))
    data = ask(node, rack)
    assert data.preferred_read_replica == -1
    assert content_of(data.records)


def test_a_replica_is_named_that_has_the_offset_and_is_alive(node: ReplicatedBroker) -> None:
    commit(node, (2, 3), (3, 1))
    nodes = node.broker.nodes
    assert ask(node, "b", 2).preferred_read_replica == 2
    nodes.dead.add(2)  # type: ignore[attr-defined]
    assert ask(node, "b", 1).preferred_read_replica == 3
    assert ask(node, "b", 2).preferred_read_replica == -1


def test_a_follower_serves_committed_records(node: ReplicatedBroker) -> None:
    commit(node, (2, 2), (3, 2))
    node.partition.take_over(FOLLOWED)
    assert len(content_of(ask(node, "b").records)) > 0
    data = ask(node, "b", 2)
    assert (data.error_code, data.records, data.high_watermark) == (0, b"", 2), "the third is not committed"
    assert ask(node, "b", 9).error_code == errors.OffsetOutOfRangeError.code
    assert ask(node, "b", version=10).error_code == errors.NotLeaderOrFollowerError.code, "it knows no followers"


def test_the_limit_of_the_response_holds_for_all_that_a_follower_serves(node: ReplicatedBroker) -> None:
    create_topic(node, "u", 1)
    for value in (b"four", b"five"):
        node.append("u", value)
    topics = []
    for name in ("t", "u"):
        partition = node.replica_manager.partition(name, 0)
        partition.take_over(FOLLOWED)
        partition.local_log.update_high_watermark(2)
        asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics.append(FetchTopic(topic=name, topic_id=partition.topic_id, partitions=[asked]))
    request = FetchRequest(max_bytes=1, topics=topics, rack_id="b", session_epoch=-1)
    answer = fetch(node.broker, node.context(18), request)
    assert isinstance(answer, FetchResponse)
    served = [bool(content_of(topic.partitions[0].records)) for topic in answer.responses]
    assert served == [True, False], "one message is given beyond the limit, not one of each partition"


def test_a_consumer_that_waits_at_a_follower_is_answered_when_its_log_moves(node: ReplicatedBroker) -> None:
    commit(node, (2, 2), (3, 2))
    node.partition.take_over(FOLLOWED)
    waiting = begin(node, "b", 2, wait_ms=500)
    assert isinstance(waiting, Deferred)
    node.partition.local_log.update_high_watermark(3)
    node.partition.offsets_moved()
    node.loop.run_soon()
    assert content_of(data_of(waiting.result()).records)


@pytest.mark.parametrize("version", [9, 13])
def test_produce_names_the_leader_that_was_missed(node: ReplicatedBroker, version: int) -> None:
    node.partition.take_over(FOLLOWED)
    node.broker.metadata.put(node.topic._replace(partitions=(FOLLOWED,)))
    data = PartitionProduceData(index=0, records=memoryview(batch(b"v")))
    topic = TopicProduceData(name="t", topic_id=node.partition.topic_id, partition_data=[data])
    answer = produce(node.broker, node.context(version), ProduceRequest(acks=1, topic_data=[topic]))
    assert isinstance(answer, ProduceResponse)
    response = ProduceResponse.decode(memoryview(answer.encode(version)), version)
    (one,) = response.responses[0].partition_responses
    assert one.error_code == errors.NotLeaderOrFollowerError.code
    expected = [(2, "host-2")] if version >= 10 else []
    assert [(each.node_id, each.host) for each in response.node_endpoints] == expected
    assert (one.current_leader.leader_id, one.current_leader.leader_epoch) == ((2, 6) if version >= 10 else (-1, -1))


def test_an_acknowledgement_that_is_lost_with_the_lead_names_the_next_leader(node: ReplicatedBroker) -> None:
    data = PartitionProduceData(index=0, records=memoryview(batch(b"v")))
    topic = TopicProduceData(name="t", topic_id=node.partition.topic_id, partition_data=[data])
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
    waiting = produce(node.broker, node.context(13), request)
    assert isinstance(waiting, Deferred)
    node.broker.metadata.put(node.topic._replace(partitions=(FOLLOWED,)))
    node.partition.take_over(FOLLOWED)
    node.loop.run_soon()
    (one,) = waiting.result().responses[0].partition_responses
    assert one.error_code == errors.NotLeaderOrFollowerError.code
    assert one.current_leader.leader_id == 2
    assert [each.node_id for each in waiting.result().node_endpoints] == [2]


def test_fetch_names_the_leader_of_a_partition_that_has_no_replica_here(node: ReplicatedBroker) -> None:
    node.broker.metadata.put(node.topic._replace(partitions=(FOLLOWED._replace(replicas=(2, 3), isr=(2, 3)),)))
    node.replica_manager.remove_replicas(node.broker.metadata.topics["t"], [0])
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic="t", topic_id=node.topic.topic_id, partitions=[asked])
    answer = fetch(node.broker, node.context(18), FetchRequest(topics=[topic], max_bytes=1 << 20, session_epoch=-1))
    assert isinstance(answer, FetchResponse)
    data = data_of(answer)
    assert (data.error_code, data.current_leader.leader_id) == (errors.NotLeaderOrFollowerError.code, 2)
    assert [(each.node_id, each.host) for each in answer.node_endpoints] == [(2, "host-2")]
