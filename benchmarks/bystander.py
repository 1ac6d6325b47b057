"""Cost of one client's request: the broker's CPU time and memory, and the longest wait of another client.

    python -m benchmarks.bystander [--broker tidelog|kafka] [--only TEXT] [--from TEXT] [--rows FIRST-LAST]

The other client, the bystander, produces one record at a time, each 10 ms after the one before was acknowledged. For
each request of :mod:`benchmarks.hostile_requests` and :mod:`benchmarks.hostile_data` a row: its bytes, the broker's CPU
seconds, the longest turn of its event loop as its metrics say (CPU milliseconds; Tidelog only), the bystander's longest
wait, the growth of the broker's resident memory, and the seconds until the request was answered or refused. The last
column says whether it was answered, refused by closing its connection, or not answered in ANSWER_S seconds. One broker
gets the requests in turn. A broker that does not answer, or does not serve the bystander, is killed, and the next
request goes to a new one. Apache Kafka gets the same requests. The run fails if a broker refuses a record of the
bystander, or if one that answered or refused every request lacks an acknowledged record. ``--from`` begins with the
first row whose name has TEXT. ``--rows`` takes rows by number, from 1, among those that the other options select:
``7-`` continues after six rows.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import socket
import struct
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from benchmarks.beside import Beside
from benchmarks.hostile_data import PARTITIONS, HostileRequest
from benchmarks.hostile_data import ROWS as DATA_ROWS
from benchmarks.hostile_requests import WIDE_PARTITIONS, WIDE_TOPIC, Hostile, hostile_requests
from benchmarks.procfs import cpu_time, parse_rss_bytes
from benchmarks.rivals.apache_kafka import ApacheKafka
from benchmarks.rivals.process import BrokerProcess
from benchmarks.rivals.tidelog_broker import TidelogProcess
from tidelog.commands.running.compaction import admin_address
from tidelog.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
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
ANSWER_S = 60.0
"""Longest time that the request and the bystander wait for an answer."""
CREATE_S = 120.0
LONGEST_TURN = re.compile(r"^tidelog_loop_longest_turn_since_read_cpu_seconds (\S+)", re.M)


CONTINUES = ("answered", "refused")
"""Fates of a request after which the broker gets the next one."""


class Request(Protocol):
    """The request of one row: it creates what it needs, and encodes itself."""

    @property
    def name(self) -> str: ...

    def prepare(self, port: int) -> None: ...

    def frame(self) -> bytes: ...


class Row(NamedTuple):
    """Cost of one request. ``turn_ms`` is None if the broker does not measure its turns."""

    name: str
    request_bytes: int
    cpu_s: float
    turn_ms: float | None
    wait_ms: float
    growth_bytes: int
    seconds: float
    answer: str


class Bystander(Beside):
    """A client on a connection and a thread of its own that produces one record at a time and notes the waits."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._connection = connect(port)
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
        self._frame = Hostile("produce", 7, lambda: request).frame()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._connection.close()
        if self.failure is not None:
            raise self.failure

    def take_longest_s(self) -> float:
        """Return the longest wait since the last call; one that is under way counts as long as it has lasted."""
        with self._lock:
            longest, self._longest_s = self._longest_s, 0.0
            waiting = 0.0 if self._asked_s is None else time.monotonic() - self._asked_s
        return max(longest, waiting)

    def run(self) -> None:
        """Produce until the end."""
        try:
            while not self.is_ended.wait(EVERY_S):
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
    """Open a connection with a timeout of ANSWER_S."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(connection: socket.socket) -> bytes:
    """Receive one response; return it without its length. Raises EOFError when the broker closes, and OSError."""
    (size,) = struct.unpack(">i", receive_exactly(connection, 4))
    return receive_exactly(connection, size)


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Receive ``size`` bytes. Raises EOFError when the broker closes, and OSError."""
    received = bytearray(size)
    view = memoryview(received)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError(f"closed, {len(view)} bytes early")
        view = view[count:]
    return bytes(received)


def ask(port: int, hostile: Hostile) -> bytes:
    """Send a request on a connection of its own; return the response. Raises EOFError, OSError."""
    with connect(port) as connection:
        connection.sendall(hostile.frame())
        return receive(connection)


def prepare(port: int, partitions: int = WIDE_PARTITIONS) -> None:
    """Create the bystander's topic and the wide topic, ``partitions`` partitions in all."""
    topics = [
        CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1),
        CreatableTopic(name=WIDE_TOPIC, num_partitions=partitions - 1, replication_factor=1),
    ]
    for topic in topics:  # Kafka refuses a request that makes more than 10,000 metadata records
        create(port, [topic])


def create(port: int, topics: list[CreatableTopic]) -> None:
    """Create topics, and wait until the first partition of each answers with its end offset.

    Raises RuntimeError if one does not in CREATE_S seconds, EOFError, OSError.
    """
    with connect(port) as connection:
        connection.settimeout(CREATE_S)
        create = CreateTopicsRequest(topics=topics, timeout_ms=120_000)
        connection.sendall(Hostile("topics", 5, lambda: create).frame())
        receive(connection)
    deadline = time.monotonic() + CREATE_S
    while any(end_offset(port, topic.name) < 0 for topic in topics):
        if time.monotonic() > deadline:
            raise RuntimeError("the topics are not there")
        time.sleep(EVERY_S)


def measure(broker: BrokerProcess, bystander: Bystander, hostile: Request, turn_ms: Callable[[], float | None]) -> Row:
    """Send one request beside the bystander."""
    hostile.prepare(broker.port)
    frame = hostile.frame()
    turn_ms()
    bystander.take_longest_s()
    cpu, rss, began = cpu_time(broker.pid).total_s, resident_bytes(broker.pid), time.monotonic()
    answer = answer_to(broker.port, frame)
    seconds = time.monotonic() - began
    time.sleep(2 * EVERY_S)
    wait_ms = bystander.take_longest_s() * 1000
    if bystander.failure is not None:
        answer = f"{answer}; the bystander: {type(bystander.failure).__name__}"
    return Row(
        hostile.name, len(frame), cpu_time(broker.pid).total_s - cpu, turn_ms(), wait_ms,
        resident_bytes(broker.pid) - rss, seconds, answer,
    )  # fmt: skip


def answer_to(port: int, frame: bytes, answer_s: float = ANSWER_S) -> str:
    """Send a request and return its fate within ``answer_s``: answered, refused (the broker closed) or no answer."""
    with connect(port) as connection:
        connection.settimeout(answer_s)
        try:
            connection.sendall(frame)
            receive(connection)
        except TimeoutError:
            return f"no answer in {answer_s:.0f} s"
        except (EOFError, ConnectionError):
            return "refused"
    return "answered"


def resident_bytes(pid: int) -> int:
    """Read the broker's resident memory."""
    return parse_rss_bytes(Path(f"/proc/{pid}/status").read_text())


def longest_turn_ms(bootstrap: str) -> float:
    """Read the broker's longest turn since this was last asked, in milliseconds of CPU time."""
    host, port = admin_address(bootstrap)
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=ANSWER_S) as page:
        found = LONGEST_TURN.search(page.read().decode())
    assert found is not None
    return float(found.group(1)) * 1000


def end_offset(port: int, topic: str) -> int:
    """Ask for the end offset of a topic's first partition; -1 until the partition answers."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])])
    response = ListOffsetsResponse.decode(memoryview(ask(port, Hostile("end", 1, lambda: request)))[4:], 1)
    found = response.topics[0].partitions[0]
    return -1 if found.error_code else found.offset


def check_records(port: int, expected: int) -> None:
    """Raise RuntimeError unless the bystander's records are all there."""
    end = end_offset(port, TOPIC)
    if end != expected:
        raise RuntimeError(f"{expected} records were acknowledged, the log ends at {end}")


class DataRequest:
    """A row of :mod:`benchmarks.hostile_data` on a topic of its own."""

    def __init__(self, row: HostileRequest, topic: str) -> None:
        self.name = row.name
        self._row = row
        self._topic = topic

    def prepare(self, port: int) -> None:
        """Create the topic and send what the request needs."""
        configs = [CreatableTopicConfig(name=name, value=value) for name, value in self._row.configs.items()]
        create(
            port,
            [CreatableTopic(name=self._topic, num_partitions=PARTITIONS, replication_factor=1, configs=configs)],
        )
        for frame in self._row.prepare(self._topic):
            answer_to(port, frame)

    def frame(self) -> bytes:
        """Encode the request as it is sent."""
        return self._row.frame(self._topic)


def requests(only: str, first: str) -> list[Request]:
    """Select the rows whose name has ``only`` in it, from the first one on that has ``first`` in it."""
    data = [DataRequest(row, f"data-{number}") for number, row in enumerate(DATA_ROWS)]
    found: list[Request] = [*hostile_requests(node_id=1), *data]
    begin = next(number for number, request in enumerate(found) if first.lower() in request.name.lower())
    return [request for request in found[begin:] if only.lower() in request.name.lower()]


def row_range(text: str) -> slice:
    """Return the rows of ``3``, ``3-7`` or ``3-``, the first being number 1. Raises ValueError."""
    first, dash, last = text.partition("-")
    begin = int(first) - 1
    if begin < 0:
        raise ValueError(text)
    return slice(begin, int(last) if last else None if dash else begin + 1)


def rows(
    new_broker: Callable[[], BrokerProcess], turn_ms: Callable[[BrokerProcess], float | None], left: list[Request]
) -> Iterator[Row]:
    """Send all requests in turn beside a bystander; a broker that does not serve them is replaced by a new one."""
    while left:
        broker = new_broker().start()
        is_serving = True
        try:
            prepare(broker.port)
            bystander, read_turn = Bystander(broker.port), partial(turn_ms, broker)
            with contextlib.suppress(OSError, EOFError), bystander:
                while left and is_serving:
                    request = left.pop(0)
                    try:
                        row = measure(broker, bystander, request, read_turn)
                    except (OSError, EOFError) as error:
                        print(f"{request.name}: not measured: {error}", file=sys.stderr)
                        raise
                    is_serving = row.answer in CONTINUES
                    yield row
            if is_serving:
                check_records(broker.port, bystander.acknowledged)
        finally:
            broker.kill()


def format_row(row: Row) -> str:
    """Write one line of the table."""
    turn = "-" if row.turn_ms is None else f"{row.turn_ms:.1f}"
    return (
        f"| {row.name} | {row.request_bytes / 1e6:.2f} | {row.cpu_s:.2f} | {turn} | {row.wait_ms:.0f} "
        f"| {row.growth_bytes / 1e6:.0f} | {row.seconds:.2f} | {row.answer} |"
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
    parser.add_argument("--broker", choices=("tidelog", "kafka", "both"), default="both")
    parser.add_argument("--only", default="", help="only requests whose name has this text")
    parser.add_argument("--from", dest="first", default="", help="from the first request on whose name has this text")
    parser.add_argument("--rows", type=row_range, default=slice(None), help="of those, these by number: 3, 3-7 or 3-")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bystander-") as directory:
        numbers = itertools.count()

        def next_directory() -> Path:
            return Path(directory, str(next(numbers)))

        if options.broker != "kafka":
            asked = requests(options.only, options.first)[options.rows]
            print_table(
                "Tidelog",
                rows(lambda: TidelogProcess(next_directory()), lambda one: longest_turn_ms(one.bootstrap), asked),
            )
        if options.broker != "tidelog":
            asked = requests(options.only, options.first)[options.rows]
            print_table("Apache Kafka", rows(lambda: ApacheKafka(next_directory()), lambda _: None, asked))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1:])
