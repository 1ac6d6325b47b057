"""The measurements of ``benchmarks.spark``: queries through each source and sink, jobs, look-ups, ListOffsets.

Each figure is the difference of two readings of the clock and of /proc: wall time, the processor time of Spark (the
driver, the JVM and the Python workers below it) and of the broker. The queries of ``read_all`` end in Spark's ``noop``
sink.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka

from benchmarks.procfs import read_bytes, tree_cpu_s
from benchmarks.rivals.process import BrokerProcess
from benchmarks.serving_rows import JAVA_BATCH_BYTES, load_batches
from benchmarks.topics import Topics
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.pipeline.jobs.export import ExportRequest, export
from tidelog.pipeline.jobs.iceberg import IcebergTarget, export_to_iceberg
from tidelog.pipeline.jobs.source import LogSource, choose
from tidelog.pipeline.options.columns import Columns
from tidelog.pipeline.options.options import parse_options
from tidelog.pipeline.source.reader import TidelogReader
from tidelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MB, GB = 1_000_000, 1_000_000_000
KEEP = {"retention.ms": "-1"}
TUNED = {"kafka.max.poll.records": "20000"}
RANDOM_BYTES = 64 * 1024 * 1024
"""Size of the random block that values are cut from: larger than any codec's window."""
ONE_TASK = {"bytesPerTask": "64g"}
SLIM = {"columns": "offset,timestamp"}
LIST_OFFSETS_VERSION = 9
KEYED_VALUE = os.urandom(500) * 2


@dataclass(slots=True)
class Figures:
    """Times of one piece of work; ``amount`` is its rows, bytes or requests, depending on the measurement."""

    seconds: float = 0.0
    spark_cpu_s: float = 0.0
    broker_cpu_s: float = 0.0
    amount: float = 0.0


@dataclass(frozen=True, slots=True)
class Bench:
    """Context shared by the measurements."""

    spark: SparkSession
    tidelog: BrokerProcess
    kafka: BrokerProcess
    work: Path
    tidelog_data: Path
    driver_pid: int = field(default_factory=os.getpid)

    @contextmanager
    def measured(self, broker: BrokerProcess) -> Iterator[Figures]:
        """Measure the ``with`` block. Spark's time is that of this process and its descendants, without the brokers."""
        found = Figures()
        before = self._cpu(broker)
        begin = time.perf_counter()
        yield found
        found.seconds = time.perf_counter() - begin
        after = self._cpu(broker)
        found.spark_cpu_s, found.broker_cpu_s = after[0] - before[0], after[1] - before[1]

    def _cpu(self, broker: BrokerProcess) -> tuple[float, float]:
        brokers = {each.pid: tree_cpu_s(each.pid) for each in (self.tidelog, self.kafka)}
        return tree_cpu_s(self.driver_pid) - sum(brokers.values()), brokers[broker.pid]


@dataclass(frozen=True, slots=True)
class Road:
    """One way to read a topic."""

    title: str
    open: Callable[[Bench, str], DataFrame]
    broker: Callable[[Bench], BrokerProcess]


def kafka_format(bench: Bench, broker: BrokerProcess, topic: str, options: Mapping[str, str]) -> DataFrame:
    """Build a query of Spark's own source on a broker."""
    reader = bench.spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.option("subscribe", topic).options(**options).load()


def tidelog_format(bench: Bench, topic: str, options: Mapping[str, str]) -> DataFrame:
    """Build a query of ``format("tidelog")`` on the files of the running Tidelog."""
    reader = bench.spark.read.format("tidelog").option("path", str(bench.tidelog_data))
    reader = reader.option("kafka.bootstrap.servers", bench.tidelog.bootstrap)
    return reader.option("subscribe", topic).options(**options).load()


def kafka(bench: Bench) -> BrokerProcess:
    return bench.kafka


def tidelog(bench: Bench) -> BrokerProcess:
    return bench.tidelog


ROADS = (
    Road("kafka on Apache Kafka", lambda b, t: kafka_format(b, b.kafka, t, {}), kafka),
    Road("kafka on Apache Kafka, max.poll.records=20000", lambda b, t: kafka_format(b, b.kafka, t, TUNED), kafka),
    Road("kafka on Tidelog", lambda b, t: kafka_format(b, b.tidelog, t, {}), tidelog),
    Road("kafka on Tidelog, max.poll.records=20000", lambda b, t: kafka_format(b, b.tidelog, t, TUNED), tidelog),
    Road("tidelog, one task", lambda b, t: tidelog_format(b, t, ONE_TASK), tidelog),
    Road("tidelog, offset and timestamp only", lambda b, t: tidelog_format(b, t, ONE_TASK | SLIM), tidelog),
    Road("tidelog, two tasks", lambda b, t: tidelog_format(b, t, {"minPartitions": "2"}), tidelog),
)


def load(topic: str, rows: int, value_bytes: int, brokers: Sequence[BrokerProcess]) -> None:
    """Write the same topic on each broker: one partition of uncompressed batches as the Java client sends them."""
    for broker in brokers:
        Topics(broker.bootstrap).create(topic, 1, KEEP)
        load_batches(broker, topic, rows * value_bytes, value_bytes, JAVA_BATCH_BYTES)


def load_random(topic: str, rows: int, value_bytes: int, brokers: Sequence[BrokerProcess]) -> None:
    """Write a topic as `load` does, of values that no codec makes smaller."""
    block = random.Random(topic).randbytes(RANDOM_BYTES)
    for broker in brokers:
        Topics(broker.bootstrap).create(topic, 1, KEEP)
        settings = {"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "batch.size": JAVA_BATCH_BYTES}
        producer = confluent_kafka.Producer({**settings, "queue.buffering.max.kbytes": 200_000})
        for number in range(rows):
            begin = number * 7919 % (RANDOM_BYTES - value_bytes)
            send(producer, topic, block[begin : begin + value_bytes])
        producer.flush()


def send(producer: confluent_kafka.Producer, topic: str, value: bytes, key: bytes | None = None) -> None:
    """Queue a record; wait while the producer's queue is full."""
    while True:
        try:
            producer.produce(topic, value, key)
        except BufferError:
            producer.poll(0.05)
        else:
            return


def read_all(bench: Bench, road: Road, topic: str) -> Figures:
    """Read every row into the ``noop`` sink."""
    frame = road.open(bench, topic)
    with bench.measured(road.broker(bench)) as found:
        frame.write.format("noop").mode("overwrite").save()
    return found


@dataclass(frozen=True, slots=True)
class Sink:
    """One way to write a topic: a format and its broker."""

    title: str
    format_name: str
    broker: Callable[[Bench], BrokerProcess]


SINKS = (
    Sink("kafka on Apache Kafka", "kafka", kafka),
    Sink("kafka on Tidelog", "kafka", tidelog),
    Sink("tidelog on Tidelog", "tidelog", tidelog),
    Sink("tidelog on Apache Kafka", "tidelog", kafka),
)


@dataclass(frozen=True, slots=True)
class Values:
    """Values that Spark generates: decimal numbers padded to ``size`` bytes, or pieces of random bytes."""

    rows: int
    size: int
    is_random: bool = False

    def frame(self, session: SparkSession) -> DataFrame:
        """Build the query that generates the values, in two tasks."""
        from pyspark.sql import functions

        numbers = session.range(0, self.rows, 1, 2)
        if not self.is_random:
            return numbers.selectExpr(f"rpad(cast(id as string), {self.size}, 'v') as value")
        block = functions.lit(bytearray(os.urandom(MB)))
        begin = (numbers.id * 7919 % (MB - self.size) + 1).cast("int")
        return numbers.select(functions.substring(block, begin, functions.lit(self.size)).alias("value"))


def write_all(bench: Bench, sink: Sink, values: Values) -> Figures:
    """Write rows in two tasks into a topic of two partitions, with the sink's defaults."""
    broker, topic = sink.broker(bench), f"sink-{uuid.uuid4().hex}"
    Topics(broker.bootstrap).create(topic, 2, KEEP)
    writer = values.frame(bench.spark).write.format(sink.format_name).mode("append").option("topic", topic)
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap)
    if sink.format_name == "tidelog":
        writer = writer.option("stagingPath", str(bench.work / "staging"))
    with bench.measured(broker) as found:
        writer.save()
    return found


def export_with_spark(bench: Bench, topic: str, table: Path, options: Mapping[str, str]) -> Figures:
    """Export with Spark's Kafka source on Apache Kafka into Parquet with zstd."""
    shutil.rmtree(table, ignore_errors=True)
    frame = kafka_format(bench, bench.kafka, topic, {"includeHeaders": "true", **options})
    with bench.measured(bench.kafka) as found:
        frame.write.option("compression", "zstd").parquet(str(table))
    found.amount = parquet_bytes(table)
    return found


def export_with_job(bench: Bench, topic: str, table: Path) -> Figures:
    """Export the topic by the export job, from Tidelog's files."""
    shutil.rmtree(table, ignore_errors=True)
    with bench.measured(bench.tidelog) as found:
        export(bench.spark, ExportRequest(source(bench, topic), str(table)))
    found.amount = parquet_bytes(table)
    return found


def parquet_bytes(table: Path) -> int:
    """Return the size of a table's files."""
    return sum(path.stat().st_size for path in table.rglob("*.parquet"))


def load_changes(bench: Bench, topic: str, rows: int, value_bytes: int) -> None:
    """Write a changelog of random values: three records for each key."""
    Topics(bench.tidelog.bootstrap).create(topic, 1, KEEP)
    block = random.Random(topic).randbytes(RANDOM_BYTES)
    settings = {"bootstrap.servers": bench.tidelog.bootstrap, "linger.ms": 5, "queue.buffering.max.kbytes": 200_000}
    producer = confluent_kafka.Producer(settings)
    for number in range(rows):
        begin = number * 7919 % (RANDOM_BYTES - value_bytes)
        key = b"key-%08d" % (number * 104_729 % (rows // 3))
        send(producer, topic, block[begin : begin + value_bytes], key)
    producer.flush()


def export_to_table(bench: Bench, topic: str, mode: str) -> Figures:
    """Run the export job into a new Iceberg table, in this process."""
    lake = bench.work / f"lake-{uuid.uuid4().hex}"
    lake.mkdir()
    target = IcebergTarget(f"sqlite:///{lake / 'catalog.db'}", "lake.events", str(lake))
    with bench.measured(bench.tidelog) as found:
        done = export_to_iceberg(None, ExportRequest(source(bench, topic), "", mode=mode), target)
    found.amount = done.rows
    shutil.rmtree(lake)
    return found


def audit_with_job(bench: Bench, topic: str, *, records: bool) -> Figures:
    """Run the audit job; ``amount`` is the bytes of log it read."""
    with bench.measured(bench.tidelog) as found:
        done = audit(bench.spark, AuditRequest(source(bench, topic), records=records))
    found.amount = done.total("bytes_read")
    return found


def source(bench: Bench, topic: str) -> LogSource:
    """Build the jobs' source for a topic of the running Tidelog."""
    return LogSource((str(bench.tidelog_data),), choose(topic, None, None), bench.tidelog.bootstrap)


@dataclass(frozen=True, slots=True)
class LookUp:
    """Result of a point query."""

    rows: int
    seconds: float
    bytes_read: int
    log_bytes: int


def load_keyed(bench: Bench, topic: str, size: int) -> int:
    """Write about ``size`` bytes of 1 kB records with keys all different, indexed by key; return the number of
    records.
    """
    Topics(bench.tidelog.bootstrap).create(topic, 1, {**KEEP, "index.keys": "true"})
    settings = {"bootstrap.servers": bench.tidelog.bootstrap, "linger.ms": 20, "batch.size": 900_000}
    producer = confluent_kafka.Producer({**settings, "queue.buffering.max.kbytes": 200_000})
    count = size // (len(KEYED_VALUE) + 20)
    for number in range(count):
        send(producer, topic, KEYED_VALUE, b"key-%08d" % number)
    producer.flush()
    return count


def look_up(bench: Bench, topic: str, options: Mapping[str, str]) -> LookUp:
    """Run a query of ``format("tidelog")`` in this process, without Spark, so that what it reads can be counted."""
    given = {"path": str(bench.tidelog_data), "subscribe": topic, **options}
    begin, before = time.perf_counter(), read_bytes(os.getpid())
    reader = TidelogReader(parse_options(given), Columns.default())
    rows = sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))
    seconds, count = time.perf_counter() - begin, read_bytes(os.getpid()) - before
    log_bytes = sum(path.stat().st_size for path in (bench.tidelog_data / f"{topic}-0").glob("*.log"))
    return LookUp(rows, seconds, count, log_bytes)


def list_offsets(bench: Bench, broker: BrokerProcess, topic: str, count: int) -> Figures:
    """Send ``count`` ListOffsets requests as Spark's Kafka source does, one after the other on one connection."""
    partition = ListOffsetsPartition(partition_index=0, current_leader_epoch=0, timestamp=-1)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])])
    body = request.encode(LIST_OFFSETS_VERSION)
    with socket.create_connection((broker.host, broker.port)) as connection, bench.measured(broker) as found:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(count):
            header = struct.pack(">hhih", 2, LIST_OFFSETS_VERSION, number, 5) + b"spark\0"
            connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
            size = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))[0]
            connection.recv(size, socket.MSG_WAITALL)
    found.amount = count
    return found
