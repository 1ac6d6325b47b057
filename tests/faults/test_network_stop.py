"""SIGTERM while clients produce and wait (fault F23 of docs/internals/faults.md): acknowledged records are kept, the
exit is clean and quick."""

from __future__ import annotations

import json
import struct
import threading
import time
from pathlib import Path

import pytest

from benchmarks.bystander import ask
from benchmarks.hostile_requests import Hostile
from tests.support import raw_client
from tests.support.broker import TidelogProcess
from tidelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse

STOP_LIMIT_S = 30.0
TOPICS = {f"topic-{number}" for number in range(600)}


def create_topic(port: int, name: bytes) -> None:
    with raw_client.connect(port) as connection:
        connection.sendall(raw_client.frame(3, 1, 1, struct.pack(">ih", 1, len(name)) + name))
        raw_client.receive_frame(connection)


def fetch(topic: str, offset: int, max_wait_ms: int) -> bytes:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1_000_000)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )
    return raw_client.frame(1, 7, 1, request.encode(7))


class Producer(threading.Thread):
    """Produces one record after the other until the broker is gone; remembers the last acknowledged offset."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.acknowledged = -1

    def run(self) -> None:
        with raw_client.connect(self.port) as connection:
            try:
                while True:
                    connection.sendall(raw_client.produce("stop", b"value"))
                    _, error, offset = raw_client.receive_produced(connection)
                    assert error == 0
                    self.acknowledged = offset
            except (EOFError, ConnectionError):
                return


def test_records_acknowledged_before_sigterm_are_kept(tmp_path: Path) -> None:
    broker = TidelogProcess(tmp_path).start()
    create_topic(broker.port, b"stop")
    producers = [Producer(broker.port) for _ in range(3)]
    for producer in producers:
        producer.start()
    while min(producer.acknowledged for producer in producers) < 0:
        assert all(producer.is_alive() for producer in producers)
        time.sleep(0.01)
    started = time.monotonic()
    broker.terminate()
    assert time.monotonic() - started < STOP_LIMIT_S
    for producer in producers:
        producer.join()
    acknowledged = max(producer.acknowledged for producer in producers)
    assert acknowledged > 0
    assert (broker.data_directory / ".kafka_cleanshutdown").exists()
    with broker, raw_client.connect(broker.port) as connection:
        connection.sendall(raw_client.produce("stop", b"after"))
        assert raw_client.receive_produced(connection)[2] > acknowledged
        connection.sendall(fetch("stop", acknowledged, 0))
        response = FetchResponse.decode(memoryview(raw_client.receive_frame(connection))[4:], 7)
        assert response.responses[0].partitions[0].error_code == 0
        assert response.responses[0].partitions[0].records


def test_a_waiting_fetch_is_answered_at_once(tmp_path: Path) -> None:
    broker = TidelogProcess(tmp_path).start()
    create_topic(broker.port, b"stop")
    with raw_client.connect(broker.port) as connection:
        connection.sendall(fetch("stop", 0, 60_000))
        time.sleep(0.3)
        started = time.monotonic()
        broker.terminate()
        assert time.monotonic() - started < STOP_LIMIT_S
        response = FetchResponse.decode(memoryview(raw_client.receive_frame(connection))[4:], 7)
        assert response.responses[0].partitions[0].error_code == 0


def test_a_client_that_takes_nothing_does_not_hold_the_stop(tmp_path: Path) -> None:
    broker = TidelogProcess(tmp_path).start()
    create_topic(broker.port, b"stop")
    with raw_client.connect(broker.port) as connection:
        for _ in range(30):
            connection.sendall(raw_client.produce("stop", b"x" * 900_000))
            raw_client.receive_produced(connection)
        for _ in range(30):
            connection.sendall(fetch("stop", 0, 0))
        time.sleep(0.3)
        started = time.monotonic()
        broker.terminate()
        assert time.monotonic() - started < STOP_LIMIT_S


@pytest.mark.parametrize("wait_s", [0.05, 0.1, 0.2])
def test_each_deletion_of_a_client_that_has_gone_has_its_audit_line(tmp_path: Path, wait_s: float) -> None:
    """The broker stops while changes that the client began are not durable."""
    creation = CreateTopicsRequest(
        timeout_ms=60_000, topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in TOPICS]
    )
    deletion = DeleteTopicsRequest(timeout_ms=60_000, topics=[DeleteTopicState(name=name) for name in TOPICS])
    broker = TidelogProcess(tmp_path).start()
    ask(broker.port, Hostile("creation", 5, lambda: creation))
    with raw_client.connect(broker.port) as connection:
        connection.sendall(Hostile("deletion", 6, lambda: deletion).frame())
        time.sleep(wait_s)
    broker.terminate()
    lines = [line for line in broker.log_path.read_text().splitlines() if '"topic deleted"' in line]
    with broker:
        deleted = sorted(TOPICS - topics_of(broker))
    assert sorted(json.loads(line[line.index("{") :])["name"] for line in lines) == deleted


def topics_of(broker: TidelogProcess) -> set[str]:
    answer = ask(broker.port, Hostile("topics", 8, lambda: MetadataRequest(topics=None)))
    return {topic.name or "" for topic in MetadataResponse.decode(memoryview(answer)[4:], 8).topics}
