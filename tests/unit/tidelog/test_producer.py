"""Partitions that ``tidelog produce`` is told to write to."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.client.cluster import Address, Cluster
from tidelog.client.records.producer import AppendedRecords, OutgoingRecord, Producer
from tidelog.protocol.errors import UnknownTopicOrPartitionError
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse


class ElectingCluster(Cluster):
    """A cluster of one broker, whose topic's second partition has a leader from the third look on."""

    bootstrap = "model"

    def __init__(self) -> None:
        self._timeout_s = 10.0
        self._leaders = {}
        self.looks = 0

    def _ask_leaders(self, topic: str, create: bool) -> list[Address | None]:
        self.looks += 1
        return [("one", 9092), ("one", 9092) if self.looks >= 3 else None]

    def any_client(self) -> Any:
        return self

    def client_for(self, address: Address) -> Any:
        return self

    def api_versions(self) -> dict[int, tuple[int, int]]:
        return dict.fromkeys(range(100), (0, 99))

    def send(self, request: Any, response_type: type, version: int) -> Any:
        if isinstance(request, InitProducerIdRequest):
            return InitProducerIdResponse(producer_id=1, producer_epoch=0)
        (topic,) = request.topic_data
        parts = [PartitionProduceResponse(index=one.index, base_offset=7) for one in topic.partition_data]
        return ProduceResponse(responses=[TopicProduceResponse(name=topic.name, partition_responses=parts)])


def test_a_named_partition_without_a_leader_is_waited_for() -> None:
    cluster = ElectingCluster()
    producer = Producer(cluster, "orders", 10.0)
    producer.send(OutgoingRecord(b"value", partition=1))
    producer.flush()
    assert producer.appended == {1: AppendedRecords(7, 7, 1)}
    assert cluster.looks >= 3


def test_a_partition_that_the_topic_does_not_have_is_refused_at_once() -> None:
    cluster = ElectingCluster()
    with pytest.raises(UnknownTopicOrPartitionError, match="topic orders has 2 partitions, there is no 2"):
        Producer(cluster, "orders", 10.0).send(OutgoingRecord(b"value", partition=2))
    assert cluster.looks == 1
