"""Rows that load a warm broker: produce, fetch, single-record requests, round trips.

Each produce row writes to a topic of its own that is deleted afterwards; the file system is synced before each
measurement, so that one contender's write-back does not slow the next. Batches have the size librdkafka makes under
load: ``batch.size`` 1,000,000 bytes; the 16 KiB of the Java producer's default are a row of their own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.native import LoadResult, run_load
from benchmarks.procfs import CpuTime, cpu_time, run_time_s
from benchmarks.rivals.process import BrokerProcess
from benchmarks.rows import FLOOR, GB, KAFKA, TIDELOG, Contender, Metric, Row, Run
from benchmarks.topics import Topics

LIBRDKAFKA_BATCH_BYTES = 1_000_000
JAVA_BATCH_BYTES = 16_384
BATCH_OVERHEAD_BYTES = 61
RECORD_OVERHEAD_BYTES = 10
"""Bytes around the value of most records without key in batches of these sizes: length, attributes, deltas, lengths.
"""
BULK_WINDOW = 5
PIPELINE_WINDOW = 100
SMALL_VALUE_BYTES = 100
LARGE_VALUE_BYTES = 1_000
MILLION = 1_000_000
FILES_GONE_S = 2.5
"""Time until the files of a deleted topic are gone: ``log.segment.delete.delay.ms`` is a second here, and files that
are due are deleted once a second."""


def records_per_batch(batch_bytes: int, value_bytes: int) -> int:
    """Return the number of records that fill a batch."""
    return max(1, (batch_bytes - BATCH_OVERHEAD_BYTES) // (value_bytes + RECORD_OVERHEAD_BYTES))


def serving(contender: Contender) -> BrokerProcess:
    """Return the long-lived process of a contender."""
    assert contender.serving is not None, f"{contender.name} is not serving"
    return contender.serving


@dataclass(slots=True)
class Spent:
    """Processor time of a `measured` block, set when the block ends."""

    cpu: CpuTime = field(default_factory=lambda: CpuTime(0, 0))
    total_s: float = 0.0
    """User and system, to the nanosecond."""


@contextmanager
def measured(broker: BrokerProcess) -> Iterator[Spent]:
    """Processor time the broker spends inside the ``with`` block."""
    os.sync()
    spent = Spent()
    before, total_before = cpu_time(broker.pid), run_time_s(broker.pid)
    yield spent
    spent.cpu = cpu_time(broker.pid) - before
    spent.total_s = run_time_s(broker.pid) - total_before


@contextmanager
def topic_for(contender: Contender, name: str, partitions: int = 1) -> Iterator[str]:
    """A topic that exists inside the ``with`` block."""
    if not contender.has_topics:
        yield name
        return
    topics = Topics(serving(contender).bootstrap)
    topics.create(name, partitions)
    yield name
    topics.delete(name)


def load_batches(
    broker: BrokerProcess, topic: str, payload_bytes: int, value_bytes: int, batch_bytes: int
) -> LoadResult:
    """Produce ``payload_bytes`` of values in batches of ``batch_bytes``, `BULK_WINDOW` in flight."""
    records = records_per_batch(batch_bytes, value_bytes)
    requests = max(1, payload_bytes // (records * value_bytes))
    return run_load(
        "produce",
        broker.host,
        broker.port,
        topic=topic,
        records=records,
        value_bytes=value_bytes,
        requests=requests,
        window=BULK_WINDOW,
    )


def load_requests(broker: BrokerProcess, topic: str, requests: int, window: int) -> LoadResult:
    """Produce single records of 100 B, one a request, ``window`` in flight on one connection."""
    return run_load(
        "produce",
        broker.host,
        broker.port,
        topic=topic,
        records=1,
        value_bytes=SMALL_VALUE_BYTES,
        requests=requests,
        window=window,
    )


def warm_up(run: Run, contender: Contender) -> None:
    """Bring a broker that just started to speed: Kafka compiles its code, Tidelog imports modules on first use."""
    scale, broker = run.scale, serving(contender)
    if not contender.has_topics:
        return
    with topic_for(contender, "warm-up") as topic:
        load_batches(broker, topic, scale.warm_up_bytes // 2, LARGE_VALUE_BYTES, LIBRDKAFKA_BATCH_BYTES)
        load_batches(broker, topic, scale.warm_up_bytes // 2, SMALL_VALUE_BYTES, JAVA_BATCH_BYTES)
        load_requests(broker, topic, scale.warm_up_requests, PIPELINE_WINDOW)
        load_requests(broker, topic, scale.warm_up_requests // 10, 1)
        run_load("fetch", broker.host, broker.port, topic=topic, total_bytes=scale.warm_up_bytes // 2)


def _produce(
    contender: Contender, topic: str, payload_bytes: int, value_bytes: int, batch_bytes: int
) -> dict[str, float]:
    broker = serving(contender)
    with topic_for(contender, topic), measured(broker) as spent:
        done = load_batches(broker, topic, payload_bytes, value_bytes, batch_bytes)
    # Each contender frees its page cache before the next one writes, so that all write to the same pages.
    if contender.has_topics:
        time.sleep(FILES_GONE_S)
    else:
        broker.restart()
        contender.prepared.clear()
    unit = done.payload_bytes / GB if value_bytes == LARGE_VALUE_BYTES else done.records / MILLION
    return {
        "user": spent.cpu.user_s / unit,
        "total": spent.total_s / unit,
        "rate": done.payload_bytes / 1e6 / done.seconds,
    }


def measure_produce_1000(run: Run, contender: Contender) -> dict[str, float]:
    """Measure values of 1,000 B in batches of 1 MB."""
    topic = f"produce-1000-{run.round}"
    return _produce(contender, topic, run.scale.payload_bytes, LARGE_VALUE_BYTES, LIBRDKAFKA_BATCH_BYTES)


def measure_produce_16k(run: Run, contender: Contender) -> dict[str, float]:
    """Measure values of 1,000 B in batches of 16 KiB."""
    topic = f"produce-16k-{run.round}"
    return _produce(contender, topic, run.scale.payload_bytes // 2, LARGE_VALUE_BYTES, JAVA_BATCH_BYTES)


def measure_produce_100(run: Run, contender: Contender) -> dict[str, float]:
    """Measure values of 100 B in batches of 1 MB."""
    payload = run.scale.small_records * SMALL_VALUE_BYTES
    return _produce(contender, f"produce-100-{run.round}", payload, SMALL_VALUE_BYTES, LIBRDKAFKA_BATCH_BYTES)


def measure_fetch(run: Run, contender: Contender) -> dict[str, float]:
    """Measure reads of a topic that is written once and stays in the page cache."""
    broker, topic = serving(contender), "fetch-1000"
    if topic not in contender.prepared:
        if contender.has_topics:
            Topics(broker.bootstrap).create(topic)
        else:
            broker.restart()
        load_batches(broker, topic, run.scale.payload_bytes, LARGE_VALUE_BYTES, LIBRDKAFKA_BATCH_BYTES)
        contender.prepared.add(topic)
    with measured(broker) as spent:
        readings = [
            run_load("fetch", broker.host, broker.port, topic=topic, total_bytes=run.scale.payload_bytes)
            for _ in range(run.scale.fetch_readings)
        ]
    gigabytes = sum(done.payload_bytes for done in readings) / GB
    return {
        "user": spent.cpu.user_s / gigabytes,
        "total": spent.total_s / gigabytes,
        "rate": gigabytes * 1000 / sum(done.seconds for done in readings),
    }


def measure_requests(run: Run, contender: Contender) -> dict[str, float]:
    """Measure 100 single-record requests in flight on one connection."""
    broker, topic = serving(contender), f"requests-{run.round}"
    with topic_for(contender, topic), measured(broker) as spent:
        done = load_requests(broker, topic, run.scale.requests, PIPELINE_WINDOW)
    return {"cpu": spent.total_s / done.requests * MILLION, "rate": done.requests / done.seconds}


def measure_round_trip(run: Run, contender: Contender) -> dict[str, float]:
    """Measure one single-record request in flight."""
    broker, topic = serving(contender), f"round-trip-{run.round}"
    with topic_for(contender, topic), measured(broker) as spent:
        done = load_requests(broker, topic, run.scale.round_trips, 1)
    return {
        "cpu": spent.total_s / done.requests * MILLION,
        "p50": done.latency.percentile_us(50),
        "p99": done.latency.percentile_us(99),
    }


_RATE = Metric("rate", "speed", "MB/s", more_is_better=True, digits=0)
_ALL = (TIDELOG, KAFKA, FLOOR)

SERVING_ROWS = (
    Row(
        "produce-1000",
        "produce 1,000 B records, 1 MB batches",
        (
            Metric("user", "user CPU", "s/GB", limit=0.12, digits=3),
            Metric("total", "all CPU", "s/GB"),
            Metric("times_floor", "all CPU, times the floor, in pairs", "x", limit=1.3),
            _RATE,
        ),
        measure_produce_1000,
        _ALL,
        in_pairs=True,
    ),
    Row(
        "produce-16k",
        "produce 1,000 B records, 16 KiB batches",
        (Metric("user", "user CPU", "s/GB", limit=0.7), Metric("total", "all CPU", "s/GB"), _RATE),
        measure_produce_16k,
        _ALL,
    ),
    Row(
        "produce-100",
        "produce 100 B records, 1 MB batches",
        (
            Metric("user", "user CPU", "s/million", limit=0.025, digits=3),
            Metric("total", "all CPU", "s/million", digits=3),
            _RATE,
        ),
        measure_produce_100,
        _ALL,
    ),
    Row(
        "fetch-1000",
        "fetch 1,000 B records",
        (
            Metric("user", "user CPU", "s/GB", limit=0.02, digits=3),
            Metric("total", "all CPU", "s/GB", digits=3),
            Metric("times_floor", "all CPU, times the floor, in pairs", "x", limit=1.2),
            _RATE,
        ),
        measure_fetch,
        _ALL,
        in_pairs=True,
        reads=True,
    ),
    Row(
        "requests",
        "single-record produce, 100 in flight, one connection",
        (
            Metric("cpu", "all CPU", "µs/request", limit=10, digits=1),
            Metric("rate", "requests", "1/s", limit=95_000, more_is_better=True, digits=0),
        ),
        measure_requests,
        _ALL,
    ),
    Row(
        "round-trip",
        "single-record produce, one in flight",
        (
            Metric("cpu", "all CPU", "µs/request", digits=1),
            Metric("p50", "round trip p50", "µs", limit=25, digits=0),
            Metric("p99", "round trip p99", "µs", limit=100, digits=0),
        ),
        measure_round_trip,
        _ALL,
    ),
)
