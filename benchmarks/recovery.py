"""How fast a log is recovered after a kill: ``python -m benchmarks.recovery [--mb N]``.

Segments are written straight to a directory (no broker), then opened as after a kill with recovery point 0, by plain
Python and by the kernels: batches of several sizes, with and without idempotent producers. MB are of log, from the page
cache; CPU seconds say what a busy machine hides. The unclean start of a whole broker beside Apache Kafka's is the row
``unclean_start`` of ``benchmarks.run``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import tempfile
import time
from pathlib import Path
from types import ModuleType

from log.config import LogConfig
from log.environment import DirectoryState, LogEnvironment
from log.file_system import OsFileSystem
from log.loader import LoadRequest, load_log
from log.records import scan_kernels
from log.records.scan_engine import SCAN
from log.time import SystemTime
from log.topic_partition import TopicPartition
from protocol.crc import crc32c
from protocol.record_batch import BatchOptions, Record, build_batch

MB = 1_000_000
ROUNDS = 3
PARTITION = TopicPartition("recovered", 0)
WRITE_BYTES = 4 * MB
SHAPES = ((1_000, 0), (1_000, 3), (16_384, 0), (16_384, 3), (1_000_000, 0))
"""Bytes of a batch, idempotent producers (0: none)."""


def write_segment(directory: Path, size: int, batch_bytes: int, producers: int) -> int:
    """One segment of about ``size`` bytes; returns how many batches it holds."""
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


def recover(directory: Path, kernels: ModuleType | None) -> tuple[float, float]:
    """Seconds by the clock and of CPU to open the log from its records alone."""
    for name in os.listdir(directory):
        if not name.endswith(".log"):
            os.unlink(directory / name)
    SCAN.kernels = kernels
    environment = LogEnvironment(OsFileSystem(), SystemTime())
    state = DirectoryState(str(directory.parent))
    started, spent = time.perf_counter(), time.process_time()
    log = load_log(LoadRequest(PARTITION, str(directory), LogConfig(), environment, state))
    seconds, cpu = time.perf_counter() - started, time.process_time() - spent
    log.close()
    return seconds, cpu


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.recovery", description=__doc__.partition("\n")[0])
    parser.add_argument("--mb", type=int, default=500, help="size of each log (default 500)")
    size = parser.parse_args().mb * MB
    print("| batch | producers | engine | MB/s | MB per CPU second | batches/s | s per 10 GB |")
    print("|---|---|---|---|---|---|---|")
    for batch_bytes, producers in SHAPES:
        root = Path(tempfile.mkdtemp(prefix="recovery-"))
        directory = root / PARTITION.directory_name
        batches = write_segment(directory, size, batch_bytes, producers)
        for name, kernels in (("Python", None), ("kernels", scan_kernels)):
            found = [recover(directory, kernels) for _ in range(ROUNDS)]
            seconds, cpu = min(found)[0], min(cpu for _, cpu in found)
            print(
                f"| {batch_bytes:,} | {producers or 'none'} | {name} | {size / MB / seconds:,.0f} | "
                f"{size / MB / cpu:,.0f} | {batches / seconds:,.0f} | {10_000 * MB * seconds / size:.1f} |",
                flush=True,
            )
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
