"""The speed of a log's recovery after a kill: ``python -m benchmarks.recovery [--mb N]``.

Segments are written straight to a directory (no broker), then opened as after a kill with recovery point 0, by plain
Python and by compiled code: batches of several sizes, with and without idempotent producers. Apache Kafka opens the
same bytes in a node of its own; its time is the one that it logs for loading logs. MB are those of the log, whose
bytes are in the page cache. CPU seconds count because the wall clock misleads on a busy machine. The unclean start of a
whole broker is the row ``unclean-start`` of ``benchmarks.run``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import struct
import tempfile
import time
from pathlib import Path

from benchmarks.cleaner import LoggingKafka
from benchmarks.machine import require_compiled
from benchmarks.rivals.apache_kafka import ApacheKafka
from benchmarks.saving import Page, add_save
from benchmarks.topics import Topics
from tidelog.log.config import LogConfig
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.recovery import scan, segment_recovery
from tidelog.log.recovery.loader import LoadRequest, load_log
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import SystemTime
from tidelog.protocol.record.crc import crc32c
from tidelog.protocol.record.record_batch import BatchOptions, Record, build_batch

MB = 1_000_000
ROUNDS = 3
PARTITION = TopicPartition("recovered", 0)
WRITE_BYTES = 4 * MB
_LOADED = re.compile(r"Loaded \d+ logs in (\d+)ms")
SHAPES = ((1_000, 0), (1_000, 3), (16_384, 0), (16_384, 3), (1_000_000, 0))
"""Bytes of a batch, number of idempotent producers (0: none)."""


def write_segment(directory: Path, size: int, batch_bytes: int, producers: int) -> int:
    """Write one segment of about ``size`` bytes; return how many batches it holds."""
    directory.mkdir(parents=True)
    options = BatchOptions(producer_id=1, producer_epoch=0, base_sequence=0) if producers else BatchOptions()
    batch = build_batch([Record(0, 1_700_000_000_000, b"k", os.urandom(batch_bytes - 75))], options)
    pieces = bytearray()
    with (directory / f"{0:020d}.log").open("wb") as file:
        for number in range(size // len(batch)):
            struct.pack_into(">q", batch, 0, number)
            if producers:
                struct.pack_into(">q", batch, 43, 1 + number % producers)
                struct.pack_into(">i", batch, 53, number // producers)
                struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
            pieces += batch
            if len(pieces) > WRITE_BYTES:
                file.write(pieces)
                pieces.clear()
        file.write(pieces)
    return size // len(batch)


def recover(directory: Path, *, is_compiled: bool) -> tuple[float, float]:
    """Measure the wall-clock and CPU seconds of opening the log from its records alone."""
    for name in os.listdir(directory):
        if not name.endswith(".log"):
            os.unlink(directory / name)
    setattr(segment_recovery, "IS_COMPILED", is_compiled)  # noqa: B010 - overrides the module's choice at import
    environment = LogEnvironment(OsFileSystem(), SystemTime())
    state = DirectoryState(str(directory.parent))
    started, spent = time.perf_counter(), time.process_time()
    log = load_log(LoadRequest(PARTITION, str(directory), LogConfig(), environment, state))
    seconds, cpu = time.perf_counter() - started, time.process_time() - spent
    log.close()
    return seconds, cpu


def recover_in_kafka(made: Path, directory: Path) -> float:
    """Return the seconds that Apache Kafka logs for loading the same segment after a kill, once in a new JVM."""
    kafka = ApacheKafka(directory)
    with kafka:
        Topics(kafka.bootstrap).create(PARTITION.topic, 1)
        kafka.kill()
    partition = kafka.data_directory / PARTITION.directory_name
    for path in partition.iterdir():
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
            path.unlink()
    segment = f"{0:020d}.log"
    shutil.copyfile(made / segment, partition / segment)
    node = LoggingKafka(directory, port=kafka.port)
    with node:
        (milliseconds,) = _LOADED.findall(node.log_path.read_text(errors="replace"))
    return int(milliseconds) / 1000


def main() -> None:
    """Print a table."""
    require_compiled()
    parser = argparse.ArgumentParser(prog="benchmarks.recovery", description=__doc__.partition("\n")[0])
    parser.add_argument("--mb", type=int, default=500, help="size of each log (default 500)")
    parser.add_argument("--no-kafka", action="store_true", help="measure Tidelog alone")
    add_save(parser)
    asked = parser.parse_args()
    with Page("Recovery", "recovery", save=asked.save) as page:
        measure(page, asked.mb * MB, with_kafka=not asked.no_kafka)


def measure(page: Page, size: int, *, with_kafka: bool) -> None:
    """Write the table."""
    page.print_line("| batch | producers | engine | MB/s | MB per CPU second | batches/s | s per 10 GB |")
    page.print_line("|---:|---:|---|---:|---:|---:|---:|")
    for batch_bytes, producers in SHAPES:
        root = Path(tempfile.mkdtemp(prefix="recovery-"))
        directory = root / PARTITION.directory_name
        batches = write_segment(directory, size, batch_bytes, producers)
        for name, is_compiled in (("Python", False), ("compiled", True))[: 1 + scan.IS_COMPILED]:
            found = [recover(directory, is_compiled=is_compiled) for _ in range(ROUNDS)]
            seconds, cpu = min(found)[0], min(cpu for _, cpu in found)
            page.print_line(
                f"| {batch_bytes:,} | {producers or 'none'} | {name} | {size / MB / seconds:,.0f} | "
                f"{size / MB / cpu:,.0f} | {batches / seconds:,.0f} | {10_000 * MB * seconds / size:.1f} |"
            )
        if with_kafka:
            seconds = recover_in_kafka(directory, root / "kafka")
            page.print_line(
                f"| {batch_bytes:,} | {producers or 'none'} | Apache Kafka | {size / MB / seconds:,.0f} | - | "
                f"{batches / seconds:,.0f} | {10_000 * MB * seconds / size:.1f} |"
            )
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
