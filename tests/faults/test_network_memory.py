"""Requests that are received in part, over all connections (fault F13 of docs/internals/faults.md): bounded memory,
every request is received in the end, small ones never wait."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from benchmarks.procfs import rss_bytes
from tests.support import raw_client
from tests.support.broker import TidelogProcess
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

LARGE = 95_000_000
CLIENTS = 20
GROWTH = 256 * 1024 * 1024
STALL_MS = 2_000
VERSION = 7


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogProcess]:
    overrides = {"connections.max.idle.ms": str(STALL_MS)}
    with TidelogProcess(tmp_path_factory.mktemp("memory"), overrides) as process:
        yield process
        assert "Traceback" not in process.output()


def large_request(size: int, correlation_id: int) -> bytes:
    """Encode a produce of so many bytes into a topic that is not there: it is answered without a look at them."""
    partition = PartitionProduceData(index=0, records=memoryview(bytes(size)))
    topic = TopicProduceData(name="missing", partition_data=[partition])
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])
    return raw_client.frame(0, VERSION, correlation_id, request.encode(VERSION))


def send_what_is_taken(connection: socket.socket, data: memoryview) -> memoryview:
    """Send, and return the rest once the broker takes nothing for a while."""
    connection.settimeout(0.2)
    with suppress(TimeoutError):
        while data:
            data = data[connection.send(data[:1_000_000]) :]
    connection.settimeout(60)
    return data


def assert_is_served(broker: TidelogProcess) -> None:
    with raw_client.connect(broker.port) as bystander:
        for number in range(3):
            bystander.sendall(large_request(20_000 * number, number))
            assert raw_client.receive_frame(bystander)[:4] == struct.pack(">i", number)


def test_half_received_frames_are_bounded_and_closed(broker: TidelogProcess) -> None:
    before = rss_bytes(broker.pid)
    half = memoryview(large_request(LARGE, 1))[: LARGE - 1000]
    with ExitStack() as stack:
        connections = [stack.enter_context(raw_client.connect(broker.port)) for _ in range(CLIENTS)]
        largest_growth = 0
        for connection in connections:
            with suppress(ConnectionError):
                send_what_is_taken(connection, half)
            largest_growth = max(largest_growth, rss_bytes(broker.pid) - before)
            assert_is_served(broker)
        assert largest_growth < GROWTH
        for connection in connections:
            connection.settimeout(120)
            with suppress(ConnectionError):
                assert connection.recv(1) == b""
    assert_is_served(broker)


def test_large_requests_of_many_clients_are_all_answered(tmp_path: Path) -> None:
    with TidelogProcess(tmp_path) as broker:
        ask_all(broker)


def ask_all(broker: TidelogProcess) -> None:
    before = rss_bytes(broker.pid)
    answered: list[int] = []

    def ask(number: int) -> None:
        with raw_client.connect(broker.port) as connection:
            connection.settimeout(120)
            for round_number in range(2):
                connection.sendall(large_request(40_000_000, number))
                if raw_client.receive_frame(connection)[:4] == struct.pack(">i", number):
                    answered.append(number * 10 + round_number)

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(12)]
    for thread in threads:
        thread.start()
    largest_growth = 0
    while any(thread.is_alive() for thread in threads):
        largest_growth = max(largest_growth, rss_bytes(broker.pid) - before)
        time.sleep(0.01)
    assert len(answered) == 2 * len(threads)
    assert largest_growth < GROWTH
