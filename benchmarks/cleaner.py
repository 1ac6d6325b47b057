"""The cleaner's benchmark: Tidelog's and Apache Kafka's on equal bytes; ``python -m benchmarks.cleaner [NAME ...]``.

Tidelog's round runs in this process with the kernels loaded (wall clock, user and system CPU). Kafka cleans the same
segments in a node of its own, several partitions in turn by one thread: the first is cold, the best of the others warm.
Kafka's figures are those it logs. ``--latency`` measures single-record produce requests with and without a round beside
them. ``many-keys`` has 100 million distinct keys in 11 GB against a map of 64 MiB; ``--directory`` needs 25 GB for it.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.cleaner_data import SEGMENT_BYTES, DataSet, make, place
from benchmarks.machine import describe
from benchmarks.rivals.apache_kafka import ApacheKafka
from benchmarks.rivals.kafka_jars import MissingToolError
from cleaner.cleaner import Cleaner, CleanerOptions, CleanerStats
from cleaner.engine import load_engine
from cleaner.log_to_clean import LogToClean
from log.config import LogConfig
from log.environment import DirectoryState, LogEnvironment
from log.file_system import OsFileSystem
from log.loader import LoadRequest, load_log
from log.time import SystemTime
from log.topic_partition import TopicPartition
from protocol.compression import CompressionType

FIRST = DataSet("first", "5 M x 100 B over 1 M keys", 5_000_000, 100, 1_000_000)
DATA_SETS = {
    data.name: data
    for data in (
        FIRST,
        DataSet("few-keys", "1 M x 115 B over 1,000 keys", 1_000_000, 115, 1_000),
        DataSet("large-records", "4,000 x 100 KB over 100 keys", 4_000, 100_000, 100),
        replace(FIRST, name="first-lz4", title="the first in lz4", codec=CompressionType.LZ4),
        replace(FIRST, name="first-zstd", title="the first in zstd", codec=CompressionType.ZSTD),
        DataSet("many-keys", "100 M x 100 B, all keys distinct", 100_000_000, 100, 0, map_bytes=64 << 20),
    )
}
DEFAULT = [name for name in DATA_SETS if name != "many-keys"]
CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES), "min.cleanable.dirty.ratio": "0.01"}
KAFKA_PARTITIONS = 4
KAFKA_TIMEOUT_S = 180.0
LOGGING = """
appender.error.type=Console
appender.error.name=error
appender.error.target=SYSTEM_ERR
appender.error.layout.type=PatternLayout
appender.error.layout.pattern=%m%n
rootLogger.level=info
rootLogger.appenderRef.error.ref=error
"""
_CLEANED = re.compile(r"([\d.,]+) MB of log processed in ([\d.,]+) seconds")


def clean_here(data: DataSet, made: Path, directory: Path) -> dict[str, float]:
    """One round of Tidelog's cleaner; seconds, bytes and records per second, CPU seconds."""
    partition = TopicPartition(data.name, 0)
    shutil.rmtree(directory, ignore_errors=True)
    size = place(made, directory / partition.directory_name)
    environment = LogEnvironment(OsFileSystem(), SystemTime())
    log = load_log(
        LoadRequest(
            partition,
            str(directory / partition.directory_name),
            LogConfig(CONFIG),
            environment,
            DirectoryState(str(directory)),
            clean=True,
        )
    )
    log.update_high_watermark(log.log_end_offset)
    to_clean = LogToClean(partition, log, 0, log.segments.active.base_offset)
    cleaner = Cleaner(load_engine(), CleanerOptions(map_bytes=data.map_bytes))
    used, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    stats = cleaner.clean(to_clean, SystemTime().milliseconds())
    seconds = time.perf_counter() - began
    now = resource.getrusage(resource.RUSAGE_SELF)
    log.close()
    environment.deletions.run(everything=True)
    found = {"seconds": seconds, "MB/s": size / seconds / 1e6, "M records/s": data.records / seconds / 1e6}
    found |= {"user s": now.ru_utime - used.ru_utime, "system s": now.ru_stime - used.ru_stime}
    return found | round_facts(stats, size)


def round_facts(stats: CleanerStats, size: int) -> dict[str, float]:
    """What a round did per data byte."""
    return {
        "kept records": stats.records_after,
        "bytes read per data byte": stats.bytes_read / size,
        "bytes written per data byte": stats.bytes_written / size,
        "spilled MB": stats.spilled_bytes / 1e6,
        "peak RSS MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


class LoggingKafka(ApacheKafka):
    """A node whose cleaner says what it did."""

    def command(self) -> list[str]:
        path = self.directory / "log4j2.properties"
        path.write_text(LOGGING)
        setting = f"-Dlog4j2.configurationFile={path}"
        return [setting if word.startswith("-Dlog4j2.level") else word for word in super().command()]


def clean_in_kafka(data: DataSet, made: Path, directory: Path) -> list[dict[str, float]]:
    """Kafka's rounds over copies of the data set, in the order they were done. Raises MissingToolError."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    shutil.rmtree(directory, ignore_errors=True)
    kafka = ApacheKafka(directory, {"log.cleaner.enable": "false"})
    with kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for created in admin.create_topics([NewTopic(data.name, KAFKA_PARTITIONS, 1, config=CONFIG)]).values():
            created.result()
    for number in range(KAFKA_PARTITIONS):
        size = place(made, kafka.data_directory / f"{data.name}-{number}")
    settings = {"log.cleaner.dedupe.buffer.size": str(data.map_bytes), "log.cleaner.backoff.ms": "100"}
    node = LoggingKafka(directory, settings, port=kafka.port)
    with node:
        deadline = time.monotonic() + KAFKA_TIMEOUT_S
        while len(rounds := cleaned(node.log_path)) < KAFKA_PARTITIONS and time.monotonic() < deadline:
            time.sleep(0.2)
    return [
        {"seconds": seconds, "MB/s": size / seconds / 1e6, "M records/s": data.records / seconds / 1e6}
        for seconds in rounds
    ]


def cleaned(log: Path) -> list[float]:
    """Seconds of each round that Kafka's log tells of."""
    found = _CLEANED.findall(log.read_text(errors="replace"))
    return [float(seconds.replace(",", "")) for size, seconds in found if float(size.replace(",", "")) > 1]


@contextmanager
def broker_with(data: DataSet, made: Path, directory: Path) -> Iterator[str]:
    """A broker whose topic holds the data set, cleaned only when asked; its address."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    from benchmarks.rivals.tidelog_broker import TidelogProcess

    shutil.rmtree(directory, ignore_errors=True)
    config = {**CONFIG, "min.cleanable.dirty.ratio": "1.0"}
    with TidelogProcess(directory) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for topic, values in ((data.name, config), ("produced", {})):
            for created in admin.create_topics([NewTopic(topic, 1, 1, config=values)]).values():
                created.result()
    partition = next(path for path in directory.rglob(f"{data.name}-0") if path.is_dir())
    place(made, partition)
    with TidelogProcess(directory, port=broker.port) as again:
        yield again.bootstrap


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cleaner", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="DATA SET", help=f"of {', '.join(DATA_SETS)}; default: all but the last"
    )
    parser.add_argument("--directory", type=Path, default=Path("/tmp/tidelog-cleaner-benchmark"))
    parser.add_argument("--rounds", type=int, default=3, help="of Tidelog; the fastest counts")
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--latency", action="store_true", help="produce latency with and without cleaning, only")
    return parser.parse_args(words)


def measure(data: DataSet, options: argparse.Namespace) -> None:
    """Both cleaners over one data set; prints as it goes."""
    made = make(data, options.directory / "data")
    ours = [clean_here(data, made, options.directory / "tidelog") for _ in range(options.rounds)]
    best = min(ours, key=lambda found: found["seconds"])
    print(f"{data.name}: {data.title}")
    print("  tidelog ", {name: round(value, 2) for name, value in best.items()})
    print("  rounds  ", [round(found["seconds"], 2) for found in ours])
    shutil.rmtree(options.directory / "tidelog", ignore_errors=True)
    if options.no_kafka:
        return
    try:
        theirs = clean_in_kafka(data, made, options.directory / "kafka")
    except MissingToolError as error:
        print(f"  kafka    not measured: {error}")
        return
    if not theirs:
        print("  kafka    did not finish in time")
        return
    warm = max(theirs, key=lambda found: found["MB/s"])
    print("  kafka   ", {"cold MB/s": round(theirs[0]["MB/s"], 1), "warm MB/s": round(warm["MB/s"], 1)})
    print(f"  ratio    {best['MB/s'] / warm['MB/s']:.1f} times Kafka warm, {best['MB/s'] / theirs[0]['MB/s']:.1f} cold")
    shutil.rmtree(options.directory / "kafka", ignore_errors=True)


def measure_latency(options: argparse.Namespace) -> None:
    """Produce round trips beside a round over the first data set, and without."""
    from benchmarks.cleaner_latency import Producer, clean_and_wait

    made = make(FIRST, options.directory / "data")
    with (
        broker_with(FIRST, made, options.directory / "broker") as bootstrap,
        Producer(bootstrap, "produced") as producer,
    ):
        clean_and_wait(bootstrap, "produced")  # kernels are loaded by the first round that needs them
        producer.run_for(1.0)
        alone = producer.run_for(4.0)
        beside = producer.run_while(lambda: clean_and_wait(bootstrap, FIRST.name))
    for name, times in (("alone", alone), ("beside a round", beside)):
        quantiles = statistics.quantiles(times, n=1000)
        print(f"  {name}: p50 {quantiles[499]:.0f} p99 {quantiles[989]:.0f} max {max(times):.0f} µs of {len(times)}")


def main(words: Sequence[str] | None = None) -> int:
    """Measure what was asked for."""
    options = arguments(words)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(json.dumps(describe()))
    if options.latency:
        measure_latency(options)
        return 0
    for name in options.names or DEFAULT:
        measure(DATA_SETS[name], options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
