"""Export and audit against Spark's own way to Parquet, in one run on one core of Spark (``local[1]``).

    python -m benchmarks.pipeline_jobs [--rows N] [--value-bytes N]

A Tidelog broker gets a topic of one partition with random text values (64 letters, so that zstd has little to gain).
Then, each once to warm up and ``--rounds`` times to measure, the median shown:

    spark.read.format("kafka") -> write.parquet     default options, and with kafka.max.poll.records=20000
    tidelog pipeline export                         into a new table each time, Spark and its workers running
    tidelog pipeline audit                          checksums, gaps, indices, records per ten minutes; the file cached
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.rivals.spark import SessionPlan, connector_jars, start_session
from benchmarks.rivals.tidelog_broker import TidelogProcess
from pipeline.jobs.audit import AuditRequest, audit
from pipeline.jobs.backfill import BackfillRequest, backfill
from pipeline.jobs.export import ExportRequest, export
from pipeline.jobs.source import LogSource, choose
from pipeline.jobs.writing import Target

TOPIC = "events"
LETTERS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)


def main() -> None:
    """Run and print one line per way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as directory:
        work = Path(directory)
        with TidelogProcess(work / "broker", {"num.partitions": "1"}) as broker:
            fill(broker, work / "rows.parquet", arguments.rows, arguments.value_bytes)
            spark = start_session(SessionPlan(work, cores=1, jars=tuple(connector_jars())))
            measure(spark, broker, work, arguments)
            spark.stop()


def fill(broker: TidelogProcess, path: Path, rows: int, value_bytes: int) -> None:
    """Write the topic through the backfill job."""
    random = np.random.default_rng(4)
    letters = LETTERS[random.integers(0, 64, rows * value_bytes, np.uint8)]
    offsets = np.arange(0, (rows + 1) * value_bytes, value_bytes, dtype=np.int32)
    values = pa.BinaryArray.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])
    keys = pa.array([b"key-%07d" % (number % 100_000) for number in range(rows)], pa.binary())
    pq.write_table(pa.table({"key": keys, "value": values}), path, compression="none")
    backfill(None, BackfillRequest((str(path),), Target(broker.bootstrap, TOPIC), "bench"))


def measure(spark: SparkSession, broker: TidelogProcess, work: Path, arguments: argparse.Namespace) -> None:
    """Time every way and print it."""
    source = LogSource((str(broker.data_directory),), choose(TOPIC, None, None), broker.bootstrap)
    numbers = iter(range(1000))

    def through_kafka(**options: str) -> Callable[[], None]:
        def run() -> None:
            named = {name.replace("_", "."): value for name, value in options.items()}
            reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
            frame = reader.option("subscribe", TOPIC).option("includeHeaders", "true").options(**named).load()
            frame.write.parquet(str(work / f"kafka-{next(numbers)}"))

        return run

    def through_export() -> None:
        export(spark, ExportRequest(source, str(work / f"table-{next(numbers)}")))

    def through_audit() -> None:
        result = audit(spark, AuditRequest(source))
        assert not result.is_wrong

    log_bytes = sum(path.stat().st_size for path in broker.data_directory.glob(f"{TOPIC}-0/*.log"))
    base = 0.0
    for name, run in (
        ("kafka -> parquet, default", through_kafka()),
        ("kafka -> parquet, max.poll.records=20000", through_kafka(kafka_max_poll_records="20000")),
        ("tidelog export", through_export),
        ("tidelog audit", through_audit),
    ):
        run()
        seconds = statistics.median(timed(run) for _ in range(arguments.rounds))
        base = base or seconds
        rate, speed = arguments.rows / seconds / 1e6, log_bytes / seconds / 1e9
        print(f"{name:42} {seconds:7.2f} s  {rate:6.2f} Mrow/s  {speed:6.3f} GB/s  {base / seconds:6.1f}x", flush=True)


def timed(run: Callable[[], None]) -> float:
    """Seconds it takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
