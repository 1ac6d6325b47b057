"""Benchmark of log cleaners, Tidelog's and Apache Kafka's, on the same bytes: ``python -m benchmarks.cleaner [NAME
...]``.

Tidelog's round runs in this process (wall clock, user and system CPU). Kafka cleans the same segments in a node of its
own, several partitions in turn by one thread; the table has its first, cold round and its best one. Kafka's times are
those it logs, its CPU time that of its process. ``--latency`` measures single-record produce requests with and without
a round beside them. ``many-keys`` and ``100m-keys`` have more keys than the map holds: 20 million in 2 GB, 100 million
in 11 GB (needs 25 GB in ``--directory`` and several minutes; all its data are deleted at the end). These two are not
measured on Kafka.
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cleaner_data import CONFIG, DATA_SETS, DEFAULT, DataSet, make, replace_log
from benchmarks.cleaner_latency import measure_latency
from benchmarks.cleaner_report import Comparison, cleaner_table, latency_table
from benchmarks.machine import require_compiled
from benchmarks.procfs import CpuTime, cpu_time, peak_rss_bytes, reset_peak_rss
from benchmarks.rivals.apache_kafka import ApacheKafka
from benchmarks.rivals.kafka_jars import MissingToolError
from benchmarks.saving import Page, add_save
from tidelog.cleaner.engine.engine import ENGINE
from tidelog.cleaner.log_to_clean import LogToClean
from tidelog.cleaner.round.cleaner import Cleaner, CleanerOptions, CleanerStats
from tidelog.log.config import LogConfig
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.recovery.loader import LoadRequest, load_log
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import SystemTime

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
#: Size in MB and rate in MB/s. Kafka rounds the seconds between them to tenths, an error of a third in a short round.
_CLEANED = re.compile(r"([\d.,]+) MB of log processed in [\d.,]+ seconds \(([\d.,]+) MB/sec\)")


def clean_here(data: DataSet, made: Path, directory: Path) -> dict[str, float]:
    """Run one round of Tidelog's cleaner; return its figures by name: times, rates, and those of ``round_facts``."""
    partition = TopicPartition(data.name, 0)
    shutil.rmtree(directory, ignore_errors=True)
    size = replace_log(made, directory / partition.directory_name)
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
    cleaner = Cleaner(ENGINE, CleanerOptions(map_bytes=data.map_bytes))
    reset_peak_rss()
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
    """Compute the other figures of a round; ``size`` is the bytes of its log."""
    return {
        "kept records": stats.records_after,
        "bytes read per data byte": stats.bytes_read / size,
        "bytes written per data byte": stats.bytes_written / size,
        "spilled MB": stats.spilled_bytes / 1e6,
        "peak RSS MB": peak_rss_bytes() / 1e6,
    }


class LoggingKafka(ApacheKafka):
    """A node of Apache Kafka that logs what its cleaner does, and how long it loads its logs."""

    def command(self) -> list[str]:
        path = self.directory / "log4j2.properties"
        path.write_text(LOGGING)
        setting = f"-Dlog4j2.configurationFile={path}"
        return [setting if word.startswith("-Dlog4j2.level") else word for word in super().command()]


def clean_in_kafka(data: DataSet, made: Path, directory: Path) -> list[dict[str, float]]:
    """Run Kafka's rounds over copies of the data set; return those done in KAFKA_TIMEOUT_S, in their order.

    Raises KafkaException, and what the start and stop of ``ApacheKafka`` raise: MissingToolError and others.
    """
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    shutil.rmtree(directory, ignore_errors=True)
    kafka = ApacheKafka(directory, {"log.cleaner.enable": "false"})
    with kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for created in admin.create_topics([NewTopic(data.name, KAFKA_PARTITIONS, 1, config=CONFIG)]).values():
            created.result()
    for number in range(KAFKA_PARTITIONS):
        size = replace_log(made, kafka.data_directory / f"{data.name}-{number}")
    settings = {"log.cleaner.dedupe.buffer.size": str(data.map_bytes), "log.cleaner.backoff.ms": "100"}
    node = LoggingKafka(directory, settings, port=kafka.port)
    with node:
        rounds, used = watch(node)
    return [
        {
            "seconds": seconds,
            "MB/s": size / seconds / 1e6,
            "M records/s": data.records / seconds / 1e6,
            "user s": cpu.user_s,
            "system s": cpu.system_s,
        }
        for seconds, cpu in zip(rounds, used, strict=True)
    ]


def watch(node: LoggingKafka) -> tuple[list[float], list[CpuTime]]:
    """Return the seconds of each round as Kafka logs them, and the CPU time that the node used since the round
    before.
    """
    used: list[CpuTime] = []
    last = cpu_time(node.pid)
    deadline = time.monotonic() + KAFKA_TIMEOUT_S
    while len(used) < KAFKA_PARTITIONS and time.monotonic() < deadline:
        done, now = len(read_round_seconds(node.log_path)), cpu_time(node.pid)
        while len(used) < done:
            used.append(now - last)
            last = now
        time.sleep(0.02)
    return read_round_seconds(node.log_path)[: len(used)], used


def read_round_seconds(log: Path) -> list[float]:
    """Read the seconds of each round over more than 1 MB from Kafka's log."""
    found = _CLEANED.findall(log.read_text(errors="replace").replace(",", ""))
    return [float(size) / float(rate) for size, rate in found if float(size) > 1]


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cleaner", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="DATA SET", help=f"of {', '.join(DATA_SETS)}; default: {', '.join(DEFAULT)}"
    )
    parser.add_argument("--directory", type=Path, default=Path("/tmp/tidelog-cleaner-benchmark"))
    parser.add_argument("--rounds", type=int, default=3, help="rounds of Tidelog before Kafka's, and as many after")
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--latency", action="store_true", help="produce latency with and without cleaning, only")
    add_save(parser)
    return parser.parse_args(words)


def measure(data: DataSet, options: argparse.Namespace) -> Comparison:
    """Measure both cleaners over one data set, then print the figures of each round."""
    made = make(data, options.directory / "data")
    ours = [clean_here(data, made, options.directory / "tidelog") for _ in range(options.rounds)]
    theirs: list[dict[str, float]] = []
    if not options.no_kafka and not data.in_turn:
        try:
            theirs = clean_in_kafka(data, made, options.directory / "kafka")
            ours += [clean_here(data, made, options.directory / "tidelog") for _ in range(options.rounds)]
        except MissingToolError as error:
            print(f"  kafka    not measured: {error}")
    if data.in_turn:
        assert all(found["kept records"] == data.keys for found in ours), "one record of each key must stay"
    for name in ("kafka", "tidelog", *([f"data/{data.name}"] if data.in_turn else [])):
        shutil.rmtree(options.directory / name, ignore_errors=True)
    for name, rounds in (("tidelog", ours), ("kafka", theirs)):
        for found in rounds:
            print(f"{data.name} {name}: {', '.join(f'{key} {value:,.4g}' for key, value in found.items())}", flush=True)
    return Comparison(data, ours, theirs)


def main(words: Sequence[str] | None = None) -> int:
    """Run the chosen measurements."""
    require_compiled()
    options = arguments(words)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Page("Produce beside the cleaner" if options.latency else "The cleaner", "cleaner", save=options.save) as page:
        if options.latency:
            page.print_line(latency_table(measure_latency(options.directory, options.rounds)))
        else:
            page.print_line(cleaner_table([measure(DATA_SETS[name], options) for name in options.names or DEFAULT]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
