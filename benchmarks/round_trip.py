"""Round trips of a record to Tidelog and to Apache Kafka, by two clients: ``python -m benchmarks.round_trip``.

One Produce request of one record of 100 B with acks=all is in flight; the next is sent after its acknowledgement. The
clients are a blocking socket in plain Python, and librdkafka with ``linger.ms=0``, whose ``flush`` waits for the
acknowledgement. Both brokers run all the time and are warmed up. They take turns, and in each round the other one is
first. The table has the medians of the rounds. ``python -m benchmarks.run --only round-trip`` measures round trips of a
client in C.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

from confluent_kafka import Producer

from benchmarks.fsync import TOPIC, VALUE, request
from benchmarks.histogram import Histogram
from benchmarks.procfs import cpu_time
from benchmarks.rivals.process import BrokerProcess
from benchmarks.run import launch_kafka, launch_tidelog
from benchmarks.saving import Page, add_save
from benchmarks.topics import Topics

PERCENTS = (50, 99)
FLUSH_S = 30.0

Client = Callable[[BrokerProcess, float], Histogram]


def measure_socket(broker: BrokerProcess, seconds: float) -> Histogram:
    """Measure latencies of a blocking socket in plain Python."""
    frame = request()
    with socket.create_connection((broker.host, broker.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send() -> None:
            connection.sendall(frame)
            if not connection.recv(4096):  # the response is small enough to arrive in one piece
                raise ConnectionResetError

        return repeat(send, seconds)


def measure_librdkafka(broker: BrokerProcess, seconds: float) -> Histogram:
    """Measure latencies of librdkafka, from ``produce`` to the end of ``flush``."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "socket.nagle.disable": True})

    def send() -> None:
        producer.produce(TOPIC, VALUE)
        if producer.flush(FLUSH_S):
            raise TimeoutError

    send()  # connects to the broker
    with closing(producer):
        return repeat(send, seconds)


def repeat(send: Callable[[], None], seconds: float) -> Histogram:
    """Measure latencies of one call after the other."""
    latencies, deadline = Histogram(), time.perf_counter() + seconds
    while (begin := time.perf_counter()) < deadline:
        send()
        latencies.record(int((time.perf_counter() - begin) * 1e9))
    return latencies


CLIENTS: Mapping[str, Client] = {"a socket in plain Python": measure_socket, "librdkafka": measure_librdkafka}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.round_trip", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5, help="seconds of each measurement (default 5)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-kafka", action="store_true", help="measure Tidelog alone")
    add_save(parser)
    asked = parser.parse_args()
    with Page("Round trips by client", "round_trip", save=asked.save) as page:
        measure(page, asked)


def measure(page: Page, asked: argparse.Namespace) -> None:
    """Start the brokers and print the table."""
    root = Path(tempfile.mkdtemp(prefix="round-trip-"))
    launches = (launch_tidelog,) if asked.no_kafka else (launch_tidelog, launch_kafka)
    page.print_line("| client | who | p50 µs | p99 µs | CPU of the broker, µs |")
    page.print_line("|---|---|---:|---:|---:|")
    with ExitStack() as running:
        brokers = [running.enter_context(launch(root / launch.__name__)) for launch in launches]
        for broker in brokers:
            Topics(broker.bootstrap).create(TOPIC)
        for title, client in CLIENTS.items():
            compare(page, title, client, brokers, asked)
    shutil.rmtree(root)


def compare(page: Page, title: str, client: Client, brokers: list[BrokerProcess], asked: argparse.Namespace) -> None:
    """Write the rows of one client: medians of the rounds."""
    found: dict[str, list[list[float]]] = {broker.name: [] for broker in brokers}
    for broker in brokers:
        client(broker, asked.seconds)  # lets the JVM compile
    for number in range(asked.rounds):
        for broker in brokers if number % 2 == 0 else reversed(brokers):
            before = cpu_time(broker.pid)
            latencies = client(broker, asked.seconds)
            spent = (cpu_time(broker.pid) - before).total_s / latencies.count * 1e6
            found[broker.name].append([*map(latencies.percentile_us, PERCENTS), spent])
    for name, rounds in found.items():
        figures = [f"{statistics.median(values):,.0f}" for values in zip(*rounds, strict=True)]
        page.print_line(f"| {title} | {name} | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
