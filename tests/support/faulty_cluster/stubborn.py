"""A client that produces to one broker only, and records what it acknowledges, even when another broker leads."""

from __future__ import annotations

import time
from typing import NamedTuple

from tests.support.faulty_cluster.clients import Worker
from tests.support.faulty_cluster.history import Position
from tidelog.client import Client, ClientError
from tidelog.protocol.errors import KafkaError
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.record.record_batch import Record, build_batch


class Answer(NamedTuple):
    """An acknowledgement with acks=all, and when its request was sent, by the monotonic clock."""

    sent_at: float
    position: Position


class Stubborn(Worker):
    """A client in a thread, which produces with acks=all to one broker only, whatever the broker answers."""

    def __init__(self, bootstrap: str, topic: str, name: str) -> None:
        self._bootstrap, self._topic, self._name = bootstrap, topic, name
        super().__init__()
        self.answers: list[Answer] = []

    def _run(self) -> None:
        number = 0
        while not self._is_ended.is_set():
            try:
                with Client(self._bootstrap) as client:
                    asked = MetadataRequest(topics=[MetadataRequestTopic(name=self._topic)])
                    metadata = client.call(asked, MetadataResponse)
                    while not self._is_ended.is_set():
                        self._produce(client, metadata.topics[0].topic_id, f"{self._name}-{number}".encode())
                        number += 1
                        self._is_ended.wait(0.02)
            except (ClientError, KafkaError, OSError):
                self._is_ended.wait(0.1)
                number += 1

    def _produce(self, client: Client, topic_id: bytes, value: bytes) -> None:
        batch = memoryview(build_batch([Record(0, 0, None, value)]))
        topic = TopicProduceData(
            name=self._topic, topic_id=topic_id, partition_data=[PartitionProduceData(index=0, records=batch)]
        )
        request = ProduceRequest(acks=-1, timeout_ms=2000, topic_data=[topic])
        sent_at = time.monotonic()
        answer = client.call(request, ProduceResponse).responses[0].partition_responses[0]
        if answer.error_code == 0:
            self.answers.append(Answer(sent_at, Position(self._topic, 0, answer.base_offset, value)))
