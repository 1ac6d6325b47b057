"""The cost of one client's request to others: a bystander produces a record every 10 ms while it is served.

    python -m benchmarks.bystander [--rival none] [--only TEXT]

For each request of :mod:`benchmarks.hostile_requests` a row: its bytes, the broker's CPU seconds, its longest turn by
its own turn clock (CPU milliseconds; Tidelog only), the bystander's longest wait, the growth of the broker's resident
memory, and whether the broker refused the request by closing its connection. Each request goes to a broker that has
answered the ones before. Apache Kafka gets the same ones. The bystander's records are all there at the end, or this
fails.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import socket
import struct
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.hostile_requests import WIDE_PARTITIONS, WIDE_TOPIC, Hostile, hostile_requests
from benchmarks.procfs import cpu_time, parse_rss_bytes
from benchmarks.rivals.apache_kafka import ApacheKafka
from benchmarks.rivals.process import BrokerProcess
from benchmarks.rivals.tidelog_broker import TidelogProcess
from tidelog.commands.compaction import admin_address
from tidelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.protocol.record.record_batch import Record, build_batch

TOPIC = "bystander"
EVERY_S = 0.01
TIMEOUT_S = 300.0
LONGEST_TURN = re.compile(r"^tidelog_loop_longest_turn_since_read_cpu_seconds (\S+)", re.M)


class Row(NamedTuple):
    """Cost of one request. ``turn_ms`` is None when the broker has no turn clock."""

    name: str
    request_bytes: int
    cpu_s: float
    turn_ms: float | None
    wait_ms: float
    growth_bytes: int
    seconds: float
    is_refused: bool


class Bystander:
    """A client on a connection and a thread of its own that produces one record at a time and notes the waits."""

    def __init__(self, port: int) -> None:
        self._connection = connect(port)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bystander")
        self._lock = threading.Lock()
        self._longest_s = 0.0
        self._asked_s: float | None = None
        self.acknowledged = 0
        self.failure: Exception | None = None
        batch = build_batch([Record(0, 1_700_000_000_000, None, b"here", [])])
        part = PartitionProduceData(index=0, records=memoryview(batch))
        request = ProduceRequest(
            acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[part])]
        )
        self._frame = Hostile("produce", 7, request).frame()

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()
        if self.failure is not None:
            raise self.failure

    def take_longest_s(self) -> float:
        """The longest wait since the last call; one that is under way counts as long as it has lasted."""
        with self._lock:
            longest, self._longest_s = self._longest_s, 0.0
            waiting = 0.0 if self._asked_s is None else time.monotonic() - self._asked_s
        return max(longest, waiting)

    def _run(self) -> None:
        try:
            while not self._stop.wait(EVERY_S):
                self._produce()
        except (OSError, EOFError, RuntimeError) as error:  # raised by __exit__
            self.failure = error

    def _produce(self) -> None:
        with self._lock:
            began = self._asked_s = time.monotonic()
        self._connection.sendall(self._frame)
        response = ProduceResponse.decode(memoryview(receive(self._connection))[4:], 7)
        with self._lock:
            self._asked_s = None
            self._longest_s = max(self._longest_s, time.monotonic() - began)
        if response.responses[0].partition_responses[0].error_code:
            raise RuntimeError(f"the bystander's record was refused: {response}")
        self.acknowledged += 1


def connect(port: int) -> socket.socket:
    """A connection whose every wait ends."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(connection: socket.socket) -> bytes:
    """One response without its length. Raises EOFError when the broker closes."""
    (size,) = struct.unpack(">i", receive_exactly(connection, 4))
    return receive_exactly(connection, size)


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """``size`` bytes. Raises EOFError."""
    received = bytearray(size)
    view = memoryview(received)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError(f"closed, {len(view)} bytes early")
        view = view[count:]
    return bytes(received)


def ask(port: int, hostile: Hostile) -> bytes:
    """The response to a request on a connection of its own. Raises EOFError, ConnectionError."""
    with connect(port) as connection:
        connection.sendall(hostile.frame())
        return receive(connection)


def prepare(port: int, partitions: int = WIDE_PARTITIONS) -> None:
    """Make the topics, the wide one with so many partitions."""
    topics = [
        CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1),
        CreatableTopic(name=WIDE_TOPIC, num_partitions=partitions - 1, replication_factor=1),
    ]
    ask(port, Hostile("topics", 5, CreateTopicsRequest(topics=topics, timeout_ms=120_000)))


def measure(broker: BrokerProcess, bystander: Bystander, hostile: Hostile, turn_ms: Callable[[], float | None]) -> Row:
    """Send one request beside the bystander."""
    frame = hostile.frame()
    turn_ms()
    bystander.take_longest_s()
    cpu, rss, began = cpu_time(broker.pid).total_s, resident_bytes(broker.pid), time.monotonic()
    is_refused = False
    with connect(broker.port) as connection:
        try:
            connection.sendall(frame)
            receive(connection)
        except (EOFError, ConnectionError):
            is_refused = True
    seconds = time.monotonic() - began
    time.sleep(2 * EVERY_S)
    return Row(
        hostile.name, len(frame), cpu_time(broker.pid).total_s - cpu, turn_ms(), bystander.take_longest_s() * 1000,
        resident_bytes(broker.pid) - rss, seconds, is_refused,
    )  # fmt: skip


def resident_bytes(pid: int) -> int:
    """The broker's resident memory."""
    return parse_rss_bytes(Path(f"/proc/{pid}/status").read_text())


def longest_turn_ms(bootstrap: str) -> float:
    """The broker's longest turn since this was last asked, in milliseconds of CPU time."""
    host, port = admin_address(bootstrap)
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=TIMEOUT_S) as page:
        found = LONGEST_TURN.search(page.read().decode())
    assert found is not None
    return float(found.group(1)) * 1000


def check_records(port: int, expected: int) -> None:
    """Raises RuntimeError unless the bystander's records are all there."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[partition])])
    response = ListOffsetsResponse.decode(memoryview(ask(port, Hostile("end", 1, request)))[4:], 1)
    end = response.topics[0].partitions[0].offset
    if end != expected:
        raise RuntimeError(f"{expected} records were acknowledged, the log ends at {end}")


def rows(broker: BrokerProcess, turn_ms: Callable[[], float | None], only: str) -> Iterator[Row]:
    """All requests, one after the other, beside one bystander."""
    prepare(broker.port)
    with Bystander(broker.port) as bystander:
        for hostile in hostile_requests(node_id=1):
            if only.lower() in hostile.name.lower():
                yield measure(broker, bystander, hostile, turn_ms)
    check_records(broker.port, bystander.acknowledged)


def format_row(row: Row) -> str:
    """One line of the table."""
    turn = "-" if row.turn_ms is None else f"{row.turn_ms:.1f}"
    return (
        f"| {row.name} | {row.request_bytes / 1e6:.2f} | {row.cpu_s:.2f} | {turn} | {row.wait_ms:.0f} "
        f"| {row.growth_bytes / 1e6:.0f} | {row.seconds:.2f} | {'refused' if row.is_refused else 'answered'} |"
    )


def print_table(name: str, found: Iterator[Row]) -> None:
    """Print each row as it comes."""
    print(
        f"\n{name}\n\n| request | MB | CPU s | longest turn, ms CPU | bystander waits, ms | RSS + MB | s | |",
        flush=True,
    )
    print("|---|---:|---:|---:|---:|---:|---:|---|", flush=True)
    for row in found:
        print(format_row(row), flush=True)


def main(arguments: list[str]) -> None:
    """Measure Tidelog, then Apache Kafka unless told otherwise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rival", choices=("kafka", "none"), default="kafka")
    parser.add_argument("--only", default="", help="only requests whose name has this text")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bystander-") as directory:
        with TidelogProcess(Path(directory, "tidelog")) as broker:
            print_table("Tidelog", rows(broker, lambda: longest_turn_ms(broker.bootstrap), options.only))
        if options.rival == "kafka":
            with ApacheKafka(Path(directory, "kafka")) as kafka:
                print_table("Apache Kafka", rows(kafka, lambda: None, options.only))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1:])
