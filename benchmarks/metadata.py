"""Writing metadata, Tidelog and Apache Kafka: ``python -m benchmarks.metadata``.

Config changes: each of 1, 10 or 50 clients has one IncrementalAlterConfigs in flight, for a topic of its own, and sends
the next when that one is answered. Both brokers sync a change before they answer. Topics: the time until one
CreateTopics request for 1, 100 or 300 topics is answered. Snapshot: the image of 10,000 partitions is written in a
thread, beside an event loop that only reads the clock; the loop's longest turn shows how long a snapshot delays
other work. Start: the time from a start after a clean stop, on 10,000 partitions of one record each, to the first
answer. The CPU time for reading the metadata is measured in this process, before each start.
"""

from __future__ import annotations

import argparse
import asyncio
import selectors
import shutil
import socket
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.histogram import Histogram
from benchmarks.machine import require_compiled
from benchmarks.process_rows import PARTITIONS_PER_TOPIC, produce_to_all
from benchmarks.procfs import cpu_time, rss_bytes
from benchmarks.rivals.process import BrokerProcess
from benchmarks.run import launch_kafka, launch_tidelog
from benchmarks.saving import Page, add_save
from benchmarks.topics import Topics
from tidelog.broker.controller.embedded import EmbeddedController, open_controller
from tidelog.broker.controller.features import first_levels
from tidelog.broker.metadata.image import single_replica_states
from tidelog.broker.metadata.image_records import records_of_topic
from tidelog.broker.metadata.log_reader import METADATA_DIRECTORY, read_metadata_log
from tidelog.broker.metadata.metadata_image import TopicState
from tidelog.broker.metadata.metadata_log import MetadataLocation
from tidelog.client import Client
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import SystemTime
from tidelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

CLIENTS = (1, 10, 50)
TOPIC_COUNTS = (1, 100, 300)
HEADER = b"\x00\x2c\x00\x00\x00\x00\x00\x01\x00\x01b"
"""IncrementalAlterConfigs v0, correlation id 1, client id "b"."""
WARM_UP_SECONDS = 2.0
TIMEOUT_S = 120.0
SNAPSHOTS = 5
STARTS = 5
MB = 1e6


def change(topic: str, number: int) -> bytes:
    """Encode one request that changes one config of one topic."""
    config = AlterableConfig(name="retention.ms", config_operation=0, value=str(86_400_000 + number % 1000))
    resource = AlterConfigsResource(resource_type=2, resource_name=topic, configs=[config])
    frame = HEADER + IncrementalAlterConfigsRequest(resources=[resource]).encode(0)
    return len(frame).to_bytes(4, "big") + frame


def alter_configs(broker: BrokerProcess, clients: int, seconds: float) -> tuple[float, Histogram]:
    """Measure answered changes a second and their latencies."""
    latencies, number = Histogram(), 0
    sent: dict[socket.socket, tuple[int, str]] = {}
    with selectors.DefaultSelector() as selector:
        for client in range(clients):
            connection = socket.create_connection((broker.host, broker.port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(connection, selectors.EVENT_READ)
            sent[connection] = time.perf_counter_ns(), f"t{client}"
            connection.sendall(change(f"t{client}", number))
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            for key, _ in selector.select(1.0):
                assert isinstance(key.fileobj, socket.socket)
                answer = key.fileobj.recv(4096)  # small enough to arrive in one piece
                assert answer[16:18] == b"\0\0", f"not changed: {answer!r}"
                now, (since, topic), number = time.perf_counter_ns(), sent[key.fileobj], number + 1
                latencies.record(now - since)
                sent[key.fileobj] = now, topic
                key.fileobj.sendall(change(topic, number))
    for connection in sent:
        connection.close()
    return latencies.count / seconds, latencies


def create_topics(broker: BrokerProcess, count: int) -> float:
    """Measure the seconds until one request for ``count`` topics is answered."""
    topics = [CreatableTopic(name=f"made-{count}-{n}", num_partitions=1, replication_factor=1) for n in range(count)]
    with Client(broker.bootstrap, timeout_s=TIMEOUT_S) as client:
        began = time.perf_counter()
        request = CreateTopicsRequest(topics=topics, timeout_ms=int(TIMEOUT_S * 1000))
        answer = client.send(request, CreateTopicsResponse, 4)
        took = time.perf_counter() - began
    assert not any(topic.error_code for topic in answer.topics), answer
    return took


async def longest_turns(directory: Path, partitions: int) -> tuple[float, float]:
    """Measure the seconds of a snapshot, and of the longest turn of a loop beside it; medians of SNAPSHOTS."""
    controller = fill_controller(directory, partitions)
    loop, takes, turns = asyncio.get_running_loop(), [], []
    for _ in range(SNAPSHOTS):
        began = last = time.perf_counter()
        done, longest = loop.run_in_executor(None, controller.take_snapshot, 0), 0.0
        while not done.done():
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        assert done.result()
        takes.append(time.perf_counter() - began)
        turns.append(longest)
    controller.close()
    return median(takes), median(turns)


def fill_controller(directory: Path, partitions: int) -> EmbeddedController:
    """Return a controller whose image has a hundred topics with ``partitions`` partitions in all."""
    environment = LogEnvironment(OsFileSystem(), SystemTime())
    location = MetadataLocation(str(directory), DirectoryState(str(directory)), environment)
    controller = open_controller(location, 1, environment.time)
    controller.commit(first_levels(controller.image))
    for number in range(100):
        state = TopicState(f"topic-{number}", number.to_bytes(16, "big"), single_replica_states(1, partitions // 100))
        controller.commit(records_of_topic(state, controller.level))
    controller.sync()
    return controller


class Starts(NamedTuple):
    """Medians of STARTS starts: seconds, processor seconds and resident MB at the first answer; processor seconds of
    reading the metadata."""

    seconds: float
    cpu: float
    resident: float
    reading: float


def starts(directory: Path, partitions: int) -> Starts:
    """Measure starts of a filled broker after clean stops."""
    takes, cpus, sizes, readings = [], [], [], []
    with launch_tidelog(directory) as broker:
        for number in range(partitions // PARTITIONS_PER_TOPIC):
            Topics(broker.bootstrap).create(f"many-{number}", PARTITIONS_PER_TOPIC)
            produce_to_all(broker, f"many-{number}", PARTITIONS_PER_TOPIC)
        for _ in range(STARTS):
            broker.terminate()
            began = time.process_time()
            read_metadata_log(OsFileSystem(), str(directory / "data" / METADATA_DIRECTORY))
            readings.append(time.process_time() - began)
            broker.start()
            cpus.append(cpu_time(broker.pid).total_s)
            takes.append(broker.start_seconds)
            sizes.append(rss_bytes(broker.pid) / MB)
    return Starts(median(takes), median(cpus), median(sizes), median(readings))


def measure(page: Page, asked: argparse.Namespace) -> None:
    """Write the tables."""
    root = Path(tempfile.mkdtemp(prefix="metadata-"))
    page.print_line(
        "| who | clients | config changes/s | p50 ms | p99 ms | s for "
        + ", ".join(map(str, TOPIC_COUNTS))
        + " topics |"
    )
    page.print_line("|---|---:|---:|---:|---:|---|")
    for launch in (launch_tidelog,) if asked.no_kafka else (launch_tidelog, launch_kafka):
        with launch(root / launch.__name__) as broker:
            for client in range(max(CLIENTS)):
                Topics(broker.bootstrap).create(f"t{client}")
            alter_configs(broker, 10, WARM_UP_SECONDS)
            created = " / ".join(f"{create_topics(broker, count):.3f}" for count in TOPIC_COUNTS)
            for clients in CLIENTS:
                rate, latencies = alter_configs(broker, clients, asked.seconds)
                p50, p99 = (latencies.percentile_us(share) / 1000 for share in (50, 99))
                page.print_line(f"| {broker.name} | {clients} | {rate:,.0f} | {p50:.2f} | {p99:.2f} | {created} |")
    seconds, longest = asyncio.run(longest_turns(root / "snapshots", asked.partitions))
    page.print_line()
    page.print_line(
        f"Snapshot of {asked.partitions:,} partitions: {seconds * 1000:.0f} ms in a thread; the longest turn of the "
        f"loop beside it {longest * 1000:.1f} ms (medians of {SNAPSHOTS})."
    )
    found = starts(root / "starts", asked.partitions)
    page.print_line(
        f"Start on {asked.partitions:,} partitions after a clean stop: {found.seconds:.2f} s to the first answer, "
        f"{found.cpu:.2f} s of processor time, of which reading the metadata takes {found.reading * 1000:.0f} ms; "
        f"{found.resident:.0f} MB resident (medians of {STARTS})."
    )
    shutil.rmtree(root)


def main() -> None:
    """Print the tables."""
    require_compiled()
    parser = argparse.ArgumentParser(prog="benchmarks.metadata", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10, help="seconds of each measurement (default 10)")
    parser.add_argument("--partitions", type=int, default=10_000, help="in snapshot and starts (default 10,000)")
    parser.add_argument("--no-kafka", action="store_true", help="measure Tidelog alone")
    add_save(parser)
    asked = parser.parse_args()
    with Page("Writing metadata", "metadata", save=asked.save) as page:
        measure(page, asked)


if __name__ == "__main__":
    main()
