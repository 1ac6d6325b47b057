"""Rows that launch processes of their own: start, memory, many partitions, many connections, recovery."""

from __future__ import annotations

import resource
import socket
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.native import LoadError, run_load
from benchmarks.procfs import rss_bytes
from benchmarks.rivals.process import API_VERSIONS_V0, BrokerProcess
from benchmarks.rows import GB, MB, TIDELOG, Contender, Metric, Row, Run
from benchmarks.serving_rows import LARGE_VALUE_BYTES, LIBRDKAFKA_BATCH_BYTES, load_batches
from benchmarks.topics import Topics

PARTITIONS_PER_TOPIC = 1000
SETTLE_S = 2.0
"""A broker counts as idle this many seconds after its first answer, or after a load."""
RETRY_S = 0.005
SERVE_TIMEOUT_S = 300.0


def _fresh(run: Run, contender: Contender, row: str) -> BrokerProcess:
    return contender.launch(run.directory / f"{contender.name}-{row}-{run.round}")


def measure_start(run: Run, contender: Contender) -> dict[str, float]:
    """Measure the time from the start of the process to the first answer, on an empty data directory."""
    with _fresh(run, contender, "start") as broker:
        return {"start": broker.start_seconds}


def measure_memory(run: Run, contender: Contender) -> dict[str, float]:
    """Measure resident memory after the start, and after ``memory_bytes`` were produced and fetched."""
    with _fresh(run, contender, "memory") as broker:
        time.sleep(SETTLE_S)
        idle = rss_bytes(broker.pid)
        Topics(broker.bootstrap).create("memory")
        load_batches(broker, "memory", run.scale.memory_bytes, LARGE_VALUE_BYTES, LIBRDKAFKA_BATCH_BYTES)
        run_load("fetch", broker.host, broker.port, topic="memory", total_bytes=run.scale.memory_bytes)
        time.sleep(SETTLE_S)
        return {"idle": idle / MB, "used": rss_bytes(broker.pid) / MB}


def _produce_to(broker: BrokerProcess, topic: str, partitions: int, requests: int) -> None:
    run_load(
        "produce",
        broker.host,
        broker.port,
        topic=topic,
        partitions=partitions,
        requests=requests,
        records=1,
        value_bytes=100,
        window=10,
    )


def _measure_seconds_until_served(broker: BrokerProcess, topic: str) -> float:
    """Return the time from the process's start until a record is accepted: a broker may answer before it leads."""
    begin = time.monotonic()
    while True:
        try:
            _produce_to(broker, topic, 1, 1)
        except LoadError:
            if time.monotonic() - begin > SERVE_TIMEOUT_S:
                raise
            time.sleep(RETRY_S)
        else:
            return broker.start_seconds + time.monotonic() - begin


def measure_partitions(run: Run, contender: Contender) -> dict[str, float]:
    """Measure a start after a clean stop, on many partitions of one record each."""
    per_topic = min(PARTITIONS_PER_TOPIC, run.scale.partitions)
    topics = [f"many-{i}" for i in range(run.scale.partitions // per_topic)]
    with _fresh(run, contender, "partitions") as broker:
        for topic in topics:
            Topics(broker.bootstrap).create(topic, per_topic)
            produce_to_all(broker, topic, per_topic)
        broker.terminate()
        broker.start()
        return {
            "start": broker.start_seconds,
            "served": _measure_seconds_until_served(broker, topics[-1]),
            "rss": rss_bytes(broker.pid) / MB,
        }


def produce_to_all(broker: BrokerProcess, topic: str, partitions: int) -> None:
    """Produce a record for each partition; try again while leaders are still being made."""
    deadline = time.monotonic() + SERVE_TIMEOUT_S
    while True:
        try:
            return _produce_to(broker, topic, partitions, partitions)
        except LoadError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def measure_connections(run: Run, contender: Contender) -> dict[str, float]:
    """Measure resident memory for each idle connection that asked once for ApiVersions."""
    _allow_descriptors(run.scale.connections + 1000)
    with _fresh(run, contender, "connections") as broker, ExitStack() as opened:
        time.sleep(SETTLE_S)
        before = rss_bytes(broker.pid)
        for _ in range(run.scale.connections):
            connection = opened.enter_context(socket.create_connection((broker.host, broker.port)))
            connection.sendall(API_VERSIONS_V0)
            length = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
            connection.recv(length, socket.MSG_WAITALL)
        time.sleep(SETTLE_S)
        return {"rss": (rss_bytes(broker.pid) - before) / run.scale.connections / 1000}


def _allow_descriptors(wanted: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < wanted:
        raise RuntimeError(f"{wanted} descriptors are needed, ulimit -Hn allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def measure_unclean_start(run: Run, contender: Contender) -> dict[str, float]:
    """Measure the time from a start after kill -9 to the first record; the recovery's share is scaled to 10 GB of
    log.
    """
    with _fresh(run, contender, "unclean") as broker:
        Topics(broker.bootstrap).create("unclean")
        load_batches(broker, "unclean", run.scale.recovery_bytes, LARGE_VALUE_BYTES, LIBRDKAFKA_BATCH_BYTES)
        plain_start = broker.start_seconds
        broker.kill()
        broker.start()
        seconds = _measure_seconds_until_served(broker, "unclean")
        recovery = max(0.0, seconds - plain_start) * 10 * GB / _log_bytes(broker.directory)
        # Kafka first waits until the session of its killed process ends; that wait does not grow with the log.
        return {"served": seconds} | ({"per_10gb": recovery} if contender.name == TIDELOG else {})


def _log_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("data/unclean-0/*.log"))


PROCESS_ROWS = (
    Row(
        "start",
        "start to first answer, empty data directory",
        (Metric("start", "start", "s", limit=0.2, digits=3),),
        measure_start,
        serving=False,
        rounds=5,
    ),
    Row(
        "memory",
        "resident memory",
        (
            Metric("idle", "RSS idle", "MB", limit=32, digits=0),
            Metric("used", "RSS after 1 GB in and out", "MB", limit=36, digits=0),
        ),
        measure_memory,
        serving=False,
        rounds=1,
    ),
    Row(
        "partitions",
        "10,000 partitions, clean start",
        (
            Metric("start", "first answer", "s", limit=3),
            Metric("served", "first record taken", "s"),
            Metric("rss", "RSS", "MB", digits=0),
        ),
        measure_partitions,
        serving=False,
        rounds=1,
    ),
    Row(
        "connections",
        "10,000 idle connections",
        (Metric("rss", "RSS of each", "kB", limit=20, digits=1),),
        measure_connections,
        serving=False,
        rounds=1,
    ),
    Row(
        "unclean-start",
        "start after kill -9",
        (
            Metric("served", "first record taken", "s"),
            Metric("per_10gb", "recovery of 10 GB of log", "s", limit=10, digits=1),
        ),
        measure_unclean_start,
        serving=False,
        rounds=1,
    ),
)
