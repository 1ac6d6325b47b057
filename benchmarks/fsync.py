"""Group fdatasync at 1, 10 and 100 producers, Tidelog and Apache Kafka: ``python -m benchmarks.fsync``.

One topic with one partition and ``flush.messages=1``; each producer has one record of 100 B in flight with acks=all and
sends the next when that one is acknowledged. Tidelog acknowledges after a sync shared by all waiting producers, Apache
Kafka syncs once for each append. The disk alone is measured first: a write and an fdatasync, again and again.
"""

from __future__ import annotations

import argparse
import os
import selectors
import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.histogram import Histogram
from benchmarks.rivals.process import BrokerProcess
from benchmarks.run import launch_kafka, launch_tidelog
from benchmarks.saving import Page, add_save
from benchmarks.topics import Topics
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.protocol.record.record_batch import Record, build_batch

TOPIC = "fsync"
PRODUCERS = (1, 10, 100)
HEADER = b"\x00\x00\x00\x07\x00\x00\x00\x01\x00\x01b"
"""Produce v7, correlation id 1, client id "b"."""
VALUE = b"v" * 100
WARM_UP_SECONDS = 2.0


def request() -> bytes:
    """Encode one Produce request of one record."""
    data = [PartitionProduceData(index=0, records=memoryview(build_batch([Record(0, 1_700_000_000_000, None, VALUE)])))]
    body = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=data)])
    frame = HEADER + body.encode(7)
    return len(frame).to_bytes(4, "big") + frame


def disk_alone(directory: Path, seconds: float) -> tuple[float, Histogram]:
    """Measure syncs a second of one file that grows by a record at a time."""
    latencies, deadline = Histogram(), time.perf_counter() + seconds
    with (directory / "alone").open("wb", buffering=0) as file:
        while (begin := time.perf_counter_ns()) < deadline * 1e9:
            file.write(VALUE)
            os.fdatasync(file.fileno())
            latencies.record(time.perf_counter_ns() - begin)
    return latencies.count / seconds, latencies


def load(broker: BrokerProcess, producers: int, seconds: float) -> tuple[float, Histogram]:
    """Measure acknowledgements a second and their latencies."""
    frame, latencies = request(), Histogram()
    sent: dict[socket.socket, int] = {}
    with selectors.DefaultSelector() as selector:
        for _ in range(producers):
            connection = socket.create_connection((broker.host, broker.port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(connection, selectors.EVENT_READ)
            sent[connection] = time.perf_counter_ns()
            connection.sendall(frame)
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            for key, _ in selector.select(1.0):
                assert isinstance(key.fileobj, socket.socket)
                connection = key.fileobj
                answer = connection.recv(4096)  # small enough to arrive in one piece
                now = time.perf_counter_ns()
                assert answer[8 + 4 + 2 + len(TOPIC) + 8 :][:2] == b"\0\0", f"not acknowledged: {answer!r}"
                latencies.record(now - sent[connection])
                sent[connection] = now
                connection.sendall(frame)
    for connection in sent:
        connection.close()
    return latencies.count / seconds, latencies


def show(page: Page, words: Sequence[object], rate: float, latencies: Histogram) -> None:
    """Write one line of the table."""
    figures = [f"{rate:,.0f}", f"{latencies.percentile_us(50) / 1000:.2f}", f"{latencies.percentile_us(99) / 1000:.2f}"]
    page.print_line("| " + " | ".join([*map(str, words), *figures]) + " |")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.fsync", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10, help="seconds of each measurement (default 10)")
    parser.add_argument("--no-kafka", action="store_true", help="measure Tidelog alone")
    add_save(parser)
    asked = parser.parse_args()
    with Page("Group fdatasync", "fsync", save=asked.save) as page:
        measure(page, asked)


def measure(page: Page, asked: argparse.Namespace) -> None:
    """Write the table."""
    root = Path(tempfile.mkdtemp(prefix="fsync-"))
    page.print_line("| who | producers | acknowledged/s | p50 ms | p99 ms |")
    page.print_line("|---|---:|---:|---:|---:|")
    show(page, ("the disk alone", "-"), *disk_alone(root, asked.seconds))
    for launch in (launch_tidelog,) if asked.no_kafka else (launch_tidelog, launch_kafka):
        with launch(root / launch.__name__) as broker:
            Topics(broker.bootstrap).create(TOPIC, 1, {"flush.messages": "1"})
            load(broker, 10, WARM_UP_SECONDS)
            for producers in PRODUCERS:
                show(page, (broker.name, producers), *load(broker, producers, asked.seconds))
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
