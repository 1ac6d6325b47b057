"""A consumer that catches up on cold data beside a steady load: ``python -m benchmarks.cold_read``.

One producer sends single records to one topic, one at a time; its latencies are measured alone, then while a consumer
reads another topic whose pages were dropped from the page cache (``posix_fadvise``). The aim is a p99 of at most twice
the one alone: a thread of Tidelog, not its event loop, sends cold slices by sendfile (KAFKA-7504). The same read from
the page cache shows how much of the delay has causes other than the disk. Tidelog and Apache Kafka are measured in
turn.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.fsync import show
from benchmarks.histogram import Histogram
from benchmarks.native import run_load
from benchmarks.rivals.process import BrokerProcess
from benchmarks.run import launch_kafka, launch_tidelog
from benchmarks.saving import Page, add_save
from benchmarks.serving_rows import LIBRDKAFKA_BATCH_BYTES, load_batches, load_requests
from benchmarks.topics import Topics

MB = 1_000_000
HOT, COLD = "hot", "cold"
STEP = 200
"""Single-record requests after which the load looks whether it shall end."""
WARM_UP_REQUESTS = 20_000


def drop_from_cache(directory: Path) -> None:
    """Write back the cold topic's segments, and drop them from the page cache."""
    for path in directory.rglob(f"{COLD}-0/*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def steady(broker: BrokerProcess, until: threading.Event) -> Histogram:
    """Measure latencies of single-record round trips until the event is set."""
    latencies = Histogram()
    while not until.is_set():
        latencies.merge(load_requests(broker, HOT, STEP, 1).latency)
    return latencies


def measure_steady_load(broker: BrokerProcess, seconds: float) -> Histogram:
    """Measure the steady load for ``seconds``."""
    until = threading.Event()
    timer = threading.Timer(seconds, until.set)
    timer.start()
    return steady(broker, until)


def catch_up(broker: BrokerProcess, size: int) -> tuple[Histogram, float]:
    """Measure the steady load while a consumer reads ``size`` bytes of the cold topic: latencies, the read's MB/s."""
    until = threading.Event()

    def consume() -> None:
        try:
            run_load("fetch", broker.host, broker.port, topic=COLD, total_bytes=size)
        finally:
            until.set()

    begin = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        consumer = pool.submit(consume)
        latencies = steady(broker, until)
        consumer.result()
    return latencies, size / MB / (time.monotonic() - begin)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.cold_read", description=__doc__.partition("\n")[0])
    parser.add_argument("--mb", type=int, default=2000, help="size of the cold topic (default 2000)")
    parser.add_argument("--seconds", type=float, default=10, help="seconds of the load alone (default 10)")
    parser.add_argument("--no-kafka", action="store_true", help="measure Tidelog alone")
    add_save(parser)
    asked = parser.parse_args()
    with Page("Catching up on cold data", "cold_read", save=asked.save) as page:
        measure(page, asked)


def measure(page: Page, asked: argparse.Namespace) -> None:
    """Write the table."""
    root = Path(tempfile.mkdtemp(prefix="cold-"))
    page.print_line("| who | beside | requests/s | p50 ms | p99 ms |")
    page.print_line("|---|---|---:|---:|---:|")
    for launch in (launch_tidelog,) if asked.no_kafka else (launch_tidelog, launch_kafka):
        with launch(root / launch.__name__) as broker:
            topics = Topics(broker.bootstrap)
            for name in (HOT, COLD):
                topics.create(name, 1)
            load_batches(broker, COLD, asked.mb * MB, 1000, LIBRDKAFKA_BATCH_BYTES)
            load_requests(broker, HOT, WARM_UP_REQUESTS, 1)
            alone = measure_steady_load(broker, asked.seconds)
            show(page, (broker.name, "nothing"), alone.count / asked.seconds, alone)
            for kind in ("warm", "cold"):
                if kind == "cold":
                    drop_from_cache(broker.directory)
                begin = time.monotonic()
                found, rate = catch_up(broker, asked.mb * MB)
                ratio = found.percentile_us(99) / alone.percentile_us(99)
                what = f"{asked.mb} MB of {kind} data at {rate:,.0f} MB/s: p99 {ratio:.1f} times"
                show(page, (broker.name, what), found.count / (time.monotonic() - begin), found)
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
