"""Benchmark of the key index: look-ups of one key among many records, the cost for producers, the index's lag.

    python -m benchmarks.find [--records 10000000] [--rounds 5] [--value-bytes 100] [--only produce|look-up|scan]...
        [--produce-records 1000000] [--save]

A Tidelog broker in a process of its own is fed over one raw connection with batches of 1,000 records, with values of
100 bytes and keys all different. Eight requests are in flight, and none is encoded while the clock runs. Three kinds
of topic take turns: without an index, with ``index.keys``, with keys and tags. Then keys are looked up over HTTP, and a
consumer that reads everything (librdkafka) looks for one. After the broker has stopped, keys are looked up in its log
directly: warm, then cold, with index and log dropped from the page cache before each look-up.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import socket
import statistics
import struct
import tempfile
import time
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import prewarm_page_cache, require_compiled
from benchmarks.saving import Page, add_save
from tidelog.broker_process import Broker
from tidelog.find import Tidelog
from tidelog.log.config import LogConfig
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.find.indexer import LogIndexer
from tidelog.log.find.lookup import Query, find_newest
from tidelog.log.recovery.loader import LoadRequest, load_log
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import SystemTime
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.protocol.record.record_batch import Record, build_batch, set_crc

BATCH_RECORDS = 1000
ENCODED_FRAMES = 1024
"""Requests that are encoded before the clock runs. While they are encoded, the indexer catches up, and that time is not
counted; so they are many, and such pauses are few.
"""
IN_FLIGHT = 8
VALUE_BYTES = 100
LOOK_UPS = 300
CATCH_UP_S = 60
PREWARMED_TIMES = 4
"""Page cache touched before the load of a topic, in multiples of the bytes that the load writes."""
COLD_LOOK_UPS = 30
TOPICS = {
    "plain": {},
    "keys": {"index.keys": "true"},
    "keys-and-tags": {"index.keys": "true", "index.tag.header": "kind"},
}
PHASES = ("produce", "look-up", "scan")
_PRODUCE_VERSION = 8
KEY_DIGITS = 8
BASE_TIMESTAMP = 27
"""Position of the base timestamp in a batch; the largest timestamp follows it."""


def key_of(number: int) -> bytes:
    """Make the key of the n-th record."""
    return b"key-%08d" % number


@cache
def template(value_bytes: int) -> tuple[bytes, np.ndarray[Any, np.dtype[np.int64]]]:
    """Build a batch whose keys and times are to be filled in, and the positions of each key's digits: int64 (records,
    digits).

    Building ten million records one by one would take the larger part of the benchmark's time.
    """
    value = bytes(value_bytes)
    records = [
        Record(i, 0, key_of(0), value, (("kind", b"paid"),) if i % 10 == 0 else ()) for i in range(BATCH_RECORDS)
    ]
    batch = bytes(build_batch(records))
    starts = [found.end() - KEY_DIGITS for found in re.finditer(re.escape(key_of(0)), batch)]
    assert len(starts) == BATCH_RECORDS
    return batch, np.array(starts)[:, None] + np.arange(KEY_DIGITS)


def batch_of(number: int, time_ms: int, value_bytes: int) -> bytearray:
    """Build batch ``number``, whose keys follow those of the batch before."""
    batch, positions = template(value_bytes)
    filled = bytearray(batch)
    keys = np.arange(number * BATCH_RECORDS, (number + 1) * BATCH_RECORDS)
    powers = 10 ** np.arange(KEY_DIGITS - 1, -1, -1)
    np.frombuffer(filled, np.uint8)[positions] = keys[:, None] // powers % 10 + ord("0")
    struct.pack_into(">qq", filled, BASE_TIMESTAMP, time_ms, time_ms)
    set_crc(filled, 0, len(filled))
    return filled


def produce_frame(topic: str, batch_number: int, time_ms: int, value_bytes: int = VALUE_BYTES) -> bytes:
    """Encode a Produce request with one batch, length and header included."""
    data = PartitionProduceData(index=0, records=memoryview(batch_of(batch_number, time_ms, value_bytes)))
    request = ProduceRequest(
        acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
    body = request.encode(_PRODUCE_VERSION)
    header = struct.pack(">hhih", 0, _PRODUCE_VERSION, batch_number & 0x7FFFFFFF, 4) + b"load"
    return struct.pack(">i", len(header) + len(body)) + header + body


def feed(bootstrap: str, frames: Iterator[bytes], count: int) -> tuple[float, list[float]]:
    """Send ``count`` frames; return the seconds spent sending and waiting, and each request's ms until its answer."""
    host, _, port = bootstrap.rpartition(":")
    latencies: list[float] = []
    spent = 0.0
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = connection.makefile("rb")
        for start in range(0, count, ENCODED_FRAMES):
            part = [next(frames) for _ in range(min(ENCODED_FRAMES, count - start))]
            sent: deque[float] = deque()
            began = time.perf_counter()
            for frame in part:
                if len(sent) == IN_FLIGHT:
                    answer(stream, sent, latencies)
                sent.append(time.perf_counter())
                connection.sendall(frame)
            while sent:
                answer(stream, sent, latencies)
            spent += time.perf_counter() - began
    return spent, latencies


def answer(stream: object, sent: deque[float], latencies: list[float]) -> None:
    """Read one answer and note its latency."""
    read = stream.read  # type: ignore[attr-defined]
    read(struct.unpack(">i", read(4))[0])
    latencies.append((time.perf_counter() - sent.popleft()) * 1000)


def create_topics(bootstrap: str, names: list[str]) -> None:
    """Create the benchmark's topics."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    topics = [NewTopic(name, 1, config=TOPICS[name.rpartition(".")[0]]) for name in names]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(topics).values():
        future.result()


def lag_of(bootstrap: str) -> float:
    """Read the indexer's lag in records from the broker's metrics."""
    from http.client import HTTPConnection

    from tidelog.commands.running.compaction import admin_address

    connection = HTTPConnection(*admin_address(bootstrap))
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("tidelog_index_lag_records"))


def wait_for_index(bootstrap: str) -> None:
    """Wait until all records are indexed, so that the next topic has the machine for itself.

    Raises TimeoutError after CATCH_UP_S.
    """
    deadline = time.monotonic() + CATCH_UP_S
    while lag_of(bootstrap):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{lag_of(bootstrap):,.0f} records not indexed after {CATCH_UP_S} s")
        time.sleep(0.01)


def quantile(values: list[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


@dataclass(frozen=True, slots=True)
class Load:
    """The requests that each topic of each round gets."""

    rounds: int
    batches: int
    value_bytes: int

    def frames(self, topic: str, count: int) -> Iterator[bytes]:
        """Iterate over requests for the first ``count`` batches, their times a millisecond apart."""
        return (produce_frame(topic, n, 1_700_000_000_000 + n, self.value_bytes) for n in range(count))


def measure_produce(page: Page, broker: Broker, directory: Path, load: Load) -> None:
    """Measure records per second into each kind of topic, in turn. Each round is compared with the same round's plain
    topic; the shares are medians of the rounds.

    A load takes longer if the host of a virtual machine first has to provide pages for the page cache. So before each
    topic's load a file is written that has PREWARMED_TIMES its bytes, and is deleted.
    """
    warm = [f"{kind}.warm" for kind in TOPICS]
    names = [f"{kind}.{number}" for number in range(load.rounds) for kind in TOPICS]
    create_topics(broker.bootstrap, warm + names)
    for name in warm:  # the page cache grows before the measurement
        feed(broker.bootstrap, load.frames(name, 256), 256)
    time.sleep(15)
    rates: dict[str, list[float]] = {kind: [] for kind in TOPICS}
    latencies: dict[str, list[float]] = {kind: [] for kind in TOPICS}
    lags: dict[str, list[float]] = {kind: [] for kind in TOPICS}
    size = load.batches * len(next(load.frames(names[0], 1)))
    for name in names:
        kind = name.rpartition(".")[0]
        prewarm_page_cache(directory, PREWARMED_TIMES * size)
        spent, waited = feed(broker.bootstrap, load.frames(name, load.batches), load.batches)
        rates[kind].append(load.batches * BATCH_RECORDS / spent)
        latencies[kind] += waited
        lags[kind].append(lag_of(broker.bootstrap))
        wait_for_index(broker.bootstrap)
    medians = {kind: statistics.median(values) for kind, values in rates.items()}
    for kind, rate in medians.items():
        share = statistics.median(mine / plain for mine, plain in zip(rates[kind], rates["plain"], strict=True))
        p50, p99 = quantile(latencies[kind], 0.5), quantile(latencies[kind], 0.99)
        page.print_line(
            f"- produce {kind:<14} {rate:>12,.0f} records/s  {share:>6.1%} of plain  ack p50 {p50:.2f} p99 {p99:.2f} ms"
            f"  lag at the end {statistics.median(lags[kind]):,.0f}"
        )


def open_log(directory: Path, topic: str) -> UnifiedLog:
    """Open the log of a stopped broker."""
    root = str(directory)
    config = LogConfig(TOPICS[topic.rpartition(".")[0]])
    partition = TopicPartition(topic, 0)
    request = LoadRequest(
        partition, os.path.join(root, partition.directory_name), config,
        LogEnvironment(OsFileSystem(), SystemTime()), DirectoryState(root),
        log_start_offset=0, recovery_point=0, clean=True,
    )  # fmt: skip
    log = load_log(request)
    log.update_high_watermark(log.log_end_offset)
    return log


def drop_from_page_cache(directory: Path) -> None:
    """Write back all files below ``directory``, and drop them from the page cache."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def look_up(log: UnifiedLog, indexer: LogIndexer, number: int) -> float:
    """Look one key up; return milliseconds."""
    began = time.perf_counter()
    found = list(find_newest(log, indexer, Query(key=key_of(number))))
    spent = (time.perf_counter() - began) * 1000
    assert [record.offset for record in found] == [number]
    return spent


def measure_look_ups(page: Page, directory: Path, topic: str, records: int) -> None:
    """Measure warm, then cold look-ups in the log itself; the first third of the warm ones is not counted."""
    generator = random.Random(7)
    log = open_log(directory, topic)
    indexer = LogIndexer(log)
    indexer.configure()
    while indexer.step():
        pass
    warm = [look_up(log, indexer, generator.randrange(records)) for _ in range(LOOK_UPS)][LOOK_UPS // 3 :]
    indexer.checkpoint()
    log.close()
    cold = [cold_look_up(directory, topic, generator.randrange(records)) for _ in range(COLD_LOOK_UPS)]
    for name, times in (("warm", warm), ("cold", cold)):
        p50, p99 = quantile(times, 0.5), quantile(times, 0.99)
        page.print_line(f"- look-up {name:<5} p50 {p50:.3f} p99 {p99:.3f} ms, {records:,} records")


def cold_look_up(directory: Path, topic: str, number: int) -> float:
    """Look up one key in an index and a log that were dropped from the page cache; return milliseconds."""
    log = open_log(directory, topic)
    indexer = LogIndexer(log)
    indexer.configure()
    drop_from_page_cache(directory / f"{topic}-0")
    spent = look_up(log, indexer, number)
    log.close()
    return spent


def measure_full_scan(bootstrap: str, topic: str, records: int) -> float:
    """Measure the seconds a consumer takes to read everything and compare each key."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Assigned

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "scan", "enable.auto.commit": False})
    consumer.assign([Assigned(topic, 0, 0)])
    wanted, found, count = key_of(records // 2), 0, 0
    began = time.perf_counter()
    while count < records:
        for message in consumer.consume(10_000, 5.0):
            count += 1
            found += message.key() == wanted
    consumer.close()
    assert found == 1
    return time.perf_counter() - began


def main() -> None:
    require_compiled()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--produce-records", type=int, default=1_000_000)
    parser.add_argument(
        "--value-bytes", type=int, default=VALUE_BYTES, help="bytes of each value that is produced (phase produce)"
    )
    parser.add_argument("--only", action="append", choices=PHASES, help="one phase; may be given several times")
    add_save(parser)
    arguments = parser.parse_args()
    phases = arguments.only or PHASES
    with (
        tempfile.TemporaryDirectory() as directory,
        Page("Finding", "find", save=arguments.save) as page,
    ):
        broker = Broker(data_dir=directory).start()
        if "produce" in phases:
            load = Load(arguments.rounds, arguments.produce_records // BATCH_RECORDS, arguments.value_bytes)
            measure_produce(page, broker, Path(directory), load)
        if not {"look-up", "scan"}.isdisjoint(phases):
            measure_served(page, broker, arguments.records, phases)
        broker.stop()
        if "look-up" in phases:
            measure_look_ups(page, Path(directory), "keys.look-up", arguments.records)


def measure_served(page: Page, broker: Broker, records: int, phases: Collection[str]) -> None:
    """Fill a topic, then measure look-ups over HTTP with the index's lag, and a consumer that reads everything."""
    batches = records // BATCH_RECORDS
    create_topics(broker.bootstrap, ["keys.look-up"])
    frames = (produce_frame("keys.look-up", n, 1_700_000_000_000 + n) for n in range(batches))
    feed(broker.bootstrap, frames, batches)
    if "look-up" in phases:
        measure_http(page, broker.bootstrap, records)
    if "scan" in phases:
        page.print_line(
            f"- full scan by a consumer {measure_full_scan(broker.bootstrap, 'keys.look-up', records):.1f} s"
        )


def measure_http(page: Page, bootstrap: str, records: int) -> None:
    """Measure the index's lag, and look-ups over HTTP."""
    began, lag = time.perf_counter(), lag_of(bootstrap)
    client = Tidelog(bootstrap)
    list(client.find("keys.look-up", key=key_of(1)))  # waits until the index has all records
    page.print_line(f"- lag after {records:,} records {lag:,.0f}, none {time.perf_counter() - began:.2f} s later")
    times = []
    for number in random.Random(3).sample(range(records), 200):
        started = time.perf_counter()
        assert len(list(client.find("keys.look-up", key=key_of(number)))) == 1
        times.append((time.perf_counter() - started) * 1000)
    page.print_line(f"- look-up over HTTP p50 {quantile(times, 0.5):.2f} p99 {quantile(times, 0.99):.2f} ms")


if __name__ == "__main__":
    main()
