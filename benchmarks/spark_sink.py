"""Times of the parts of a write through ``format("tidelog")``, without Spark, and of a broker that adopts staged files.

    stage      Arrow rows -> record batches -> staged file                    a task's work
    publish    staged file -> one transaction of Produce requests             the driver's and the broker's work
    adopt      staged file -> a segment, base offset and leader epoch patched in each batch, CRCs checked: the least
               that a broker would do that adopted staged files instead; ``copy`` is the same without the CRCs

One thread of this process does everything, beside the broker; the rows are built before the clock starts. Before each
part, a file of its size is written and deleted, because a virtual machine's first use of a page costs several times a
later one.
"""

from __future__ import annotations

import os
import struct
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from benchmarks.procfs import run_time_s
from benchmarks.rivals.process import BrokerProcess
from benchmarks.topics import Topics
from tidelog.pipeline.options.sink_options import SinkOptions
from tidelog.pipeline.sink.commit import Publication, publish
from tidelog.pipeline.sink.staging import StagedFile, TaskIdentity, remove_files
from tidelog.pipeline.sink.task import stage_rows
from tidelog.protocol.record.record_batch import RecordBatch

_BASE_OFFSET, _LEADER_EPOCH = struct.Struct(">q"), struct.Struct(">i")
_EPOCH_OFFSET = 12
#: Rows of one Arrow batch, as Spark hands them over by default.
ARROW_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of the work: wall time, processor time of this process and of the broker, in seconds."""

    name: str
    seconds: float
    cpu_s: float
    broker_cpu_s: float


def arrow_rows(rows: int, value_bytes: int) -> list[pa.RecordBatch]:
    """Build batches of rows with values of one size, each batch in memory of its own."""
    found = []
    for begin in range(0, rows, ARROW_ROWS):
        values = [
            str(number).encode().ljust(value_bytes, b"v") for number in range(begin, min(begin + ARROW_ROWS, rows))
        ]
        found.append(pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())}))
    return found


def measure_parts(broker: BrokerProcess, work: Path, rows: int, value_bytes: int) -> list[Part]:
    """Measure each part once; the broker's topic has two partitions."""
    topic, writer = f"parts-{uuid.uuid4().hex}", uuid.uuid4().hex
    Topics(broker.bootstrap).create(topic, 2, {"retention.ms": "-1"})
    options = SinkOptions(broker.bootstrap, work / "parts", topic=topic)
    batches = arrow_rows(rows, value_bytes)
    staged: list[StagedFile] = []

    def stage() -> None:
        staged.append(stage_rows(iter(batches), TaskIdentity(writer, 0, 0, 0), options, {"value": 0}))

    size = rows * (value_bytes + 20)
    steps: dict[str, Callable[[], object]] = {
        "stage": stage,
        "adopt": lambda: adopt(staged[0], work / "adopted", check=True),
        "copy": lambda: adopt(staged[0], work / "copied", check=False),
        "publish": lambda: publish(options, Publication(writer, 0, tuple(staged), is_last=True)),
    }
    found = []
    for name, step in steps.items():
        use_pages(work / "pages", size)
        found.append(measure_part(name, broker, step))
    for name in ("adopted", "copied"):
        (work / name).unlink()
    remove_files(staged)
    return found


def use_pages(path: Path, size: int) -> None:
    """Fill ``size`` bytes of the page cache, and free them."""
    chunk = bytes(1 << 20)
    with path.open("wb", buffering=0) as file:
        for _ in range(-(-size // len(chunk))):
            file.write(chunk)
    path.unlink()


def adopt(file: StagedFile, target: Path, *, check: bool) -> None:
    """Write the staged batches with offsets into one file, the least work of a broker that adopts them.

    Raises ValueError for a batch with a wrong CRC if ``check`` is set, StagingError if the staged file cannot be read.
    """
    next_offset = 0
    with target.open("wb", buffering=0) as log:
        for batch in file.batches:
            data = file.read(batch)
            if check and not RecordBatch(data).is_valid():
                raise ValueError(f"{file.path}: batch at {batch.position} is damaged")
            _BASE_OFFSET.pack_into(data, 0, next_offset)
            _LEADER_EPOCH.pack_into(data, _EPOCH_OFFSET, 0)
            next_offset += batch.records
            log.write(data)


def measure_part(name: str, broker: BrokerProcess, work: Callable[[], object]) -> Part:
    """Measure one part."""
    before, begin = (run_time_s(os.getpid()), run_time_s(broker.pid)), time.perf_counter()
    work()
    seconds = time.perf_counter() - begin
    after = run_time_s(os.getpid()), run_time_s(broker.pid)
    return Part(name, seconds, after[0] - before[0], after[1] - before[1])
