"""The ceiling of a Python source in Spark beside ``format("tidelog")``: ``python -m benchmarks.spark_ceiling``.

    ready batches     a source whose one task yields the same Arrow batch again and again, so that only Spark's own
                      part is measured: from the worker's socket to the rows of the JVM
    tidelog           the same number of records of the same size, out of a log

One task each, in turn, after a warm-up that is not counted, into Spark's ``noop`` sink; medians of the rounds.
Processor time is the JVM's, of all its threads, and that of the Python processes. Needs Java 17 or newer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.procfs import cpu_time, tree_cpu_s
from benchmarks.rivals.kafka_jars import BUILD
from benchmarks.rivals.spark import SessionPlan, start_session
from benchmarks.rivals.tidelog_broker import TidelogProcess
from benchmarks.spark_work import ONE_TASK, SLIM, load_random
from tidelog.pipeline.options.columns import Columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 8192
"""Rows of a batch: about as many as ``format("tidelog")`` yields at a time with values of 100 B."""
SLIM_NAMES = ("offset", "timestamp")
TOPIC = "values"


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one query, and the processor seconds of the JVM and of Python."""

    seconds: float
    jvm_s: float
    python_s: float


def ready_batch(names: Sequence[str], rows: int, value_bytes: int) -> pa.RecordBatch:
    """Build a batch of random values."""
    schema, numbers = Columns(tuple(names)).arrow_schema(), pa.array(range(rows))
    content = {
        "key": pa.nulls(rows, pa.binary()),
        "value": pa.array([os.urandom(value_bytes) for _ in range(rows)]),
        "topic": pa.array([TOPIC] * rows),
        "partition": pa.array([0] * rows, pa.int32()),
        "offset": numbers,
        "timestamp": numbers.cast(pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array([0] * rows, pa.int32()),
    }
    return pa.RecordBatch.from_arrays([content[name] for name in names], schema=schema)


def register_ready(session: SparkSession) -> None:
    """Register the source of ready batches. Its classes are local, so they are pickled with their code, and workers
    need no import.
    """
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        def __init__(self, options: Any) -> None:
            self._batches, self._rows = int(options["batches"]), int(options["rows"])
            self._names, self._bytes = tuple(options["names"].split(",")), int(options["bytes"])

        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            batch = ready_batch(self._names, self._rows, self._bytes)
            for _ in range(self._batches):
                yield batch

    class Ready(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready"

        def schema(self) -> str:
            return Columns(tuple(self.options["names"].split(","))).ddl()

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader(self.options)

    session.dataSource.register(Ready)


def measure(session: SparkSession, jvm: int, frame: DataFrame) -> Cost:
    """Read every row of a query."""
    before = cpu_time(jvm).total_s, tree_cpu_s(os.getpid())
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - begin
    after = cpu_time(jvm).total_s, tree_cpu_s(os.getpid())
    in_jvm = after[0] - before[0]
    return Cost(seconds, in_jvm, after[1] - before[1] - in_jvm)


def roads(session: SparkSession, data: Path, rows: int, value_bytes: int) -> dict[str, Callable[[], DataFrame]]:
    """Return the queries to measure by their titles."""

    def ready(names: Sequence[str], batch_rows: int = ROWS) -> DataFrame:
        reader = session.read.format("ready").option("names", ",".join(names)).option("bytes", str(value_bytes))
        return reader.option("rows", str(batch_rows)).option("batches", str(rows // batch_rows)).load()

    def tidelog(**options: str) -> DataFrame:
        reader = session.read.format("tidelog").option("subscribe", TOPIC)
        return reader.options(**(ONE_TASK | options)).load(str(data))

    return {
        "ready batches of 8,192 rows": lambda: ready(Columns().names),
        "ready batches of 2,048 rows": lambda: ready(Columns().names, 2048),
        "ready batches of 32,768 rows": lambda: ready(Columns().names, 32768),
        "ready batches, value alone": lambda: ready(("value",)),
        "ready batches, offset and timestamp": lambda: ready(SLIM_NAMES),
        "tidelog": tidelog,
        "tidelog, value alone": lambda: tidelog(columns="value"),
        "tidelog, offset and timestamp": lambda: tidelog(**SLIM),
    }


def main() -> None:
    """Load a log, then run the queries in turn."""
    found = argparse.ArgumentParser(prog="benchmarks.spark_ceiling", description="The ceiling of a source in Spark.")
    found.add_argument("--rows", type=int, default=3_000_000, help="records (default: %(default)s)")
    found.add_argument("--value-bytes", type=int, default=100, help="bytes of a value (default: %(default)s)")
    found.add_argument("--rounds", type=int, default=3, help="counted rounds (default: %(default)s)")
    asked = found.parse_args()
    with TemporaryDirectory(dir=BUILD, prefix="ceiling-") as name:
        work = Path(name)
        with TidelogProcess(work / "tidelog") as broker:
            load_random(TOPIC, asked.rows, asked.value_bytes, [broker])
            data = broker.data_directory
        session = start_session(SessionPlan(work, memory="2g"))
        gateway: Any = session.sparkContext._gateway
        jvm = gateway.proc.pid
        register_ready(session)
        queries = roads(session, data, asked.rows, asked.value_bytes)
        costs: dict[str, list[Cost]] = {title: [] for title in queries}
        for _ in range(asked.rounds + 1):
            for title, query in queries.items():
                costs[title].append(measure(session, jvm, query()))
        session.stop()
    print(f"| {asked.value_bytes} B | Mrow/s | JVM CPU s | Python CPU s |\n|---|---:|---:|---:|")
    for title, rounds in costs.items():
        seconds, in_jvm, python = (
            statistics.median(getattr(cost, name) for cost in rounds[1:]) for name in ("seconds", "jvm_s", "python_s")
        )
        print(f"| {title} | {asked.rows / seconds / 1e6:.2f} | {in_jvm:.2f} | {python:.2f} |", flush=True)


if __name__ == "__main__":
    main()
