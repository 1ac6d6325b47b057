"""Ways into and out of Spark, compared in one run: ``python -m benchmarks.spark``.

    source        one partition into Spark's noop sink: format("kafka") on Apache Kafka and on Tidelog, with default
                  options and with max.poll.records=20000, and format("tidelog"); values of 100 B and of 1 kB, of a
                  content (--content, also for sink and export): the same in every batch, or random
    sink          two tasks into two partitions: format("kafka"), at least once, and format("tidelog"), exactly once;
                  with --content same the values are numbers padded to the size
    sink-parts    a write by format("tidelog") without Spark, as one task: staging, publishing, and the least that
                  adopting the staged batches would cost
    export        Spark's Kafka source (default options, max.poll.records=20000, and that in two tasks) to Parquet with
                  zstd, and the export job
    upsert        the export job into a new Iceberg table without Spark: all records, and the latest value of each key
    audit         GB of the audit job, per second and per processor second; ten times the records, so that a job's
                  start (0.3 s of processor time in JVM and driver) does not hide the work
    point         one key, and a thousandth of the time, out of --point-gb of records: bytes read
    list-offsets  the broker's processor time for one ListOffsets request: Spark sends two for 500 records

Everything runs in turn on one Spark of two cores, after a warm-up that is not measured; medians of the rounds. Two
sections differ: sink-parts has the best round, the first included, and point the second of two look-ups. Spark's
processor time is the driver's, the JVM's and the Python workers'. Needs Java 17 or newer, Maven and gcc.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import machine
from benchmarks.report import put_section
from benchmarks.rivals.apache_kafka import ApacheKafka
from benchmarks.rivals.kafka_jars import BUILD, KAFKA_4
from benchmarks.rivals.spark import SessionPlan, connector_jars, start_session
from benchmarks.rivals.tidelog_broker import TidelogProcess
from benchmarks.saving import command_of
from benchmarks.spark_sink import measure_parts
from benchmarks.spark_work import (
    GB,
    MB,
    ROADS,
    SINKS,
    TUNED,
    Bench,
    Figures,
    Values,
    audit_with_job,
    export_to_table,
    export_with_job,
    export_with_spark,
    list_offsets,
    load,
    load_changes,
    load_keyed,
    load_random,
    look_up,
    read_all,
    write_all,
)

SIZES = {"100 B": 100, "1 kB": 1000}
ROWS_OF_1_KB = 6
"""A topic of 1 kB values has one record for this many of 100 B."""
LIST_OFFSETS = 20_000
AUDITED = 10
"""An audited log has this many times the records of the others."""
SECTIONS = ("source", "sink", "sink-parts", "export", "upsert", "audit", "point", "list-offsets")
SIDE_BY_SIDE = frozenset({"source", "export", "list-offsets"})
"""The measurements on both brokers, over topics that both hold."""


EXPORTS: dict[str, Mapping[str, str]] = {
    "": {},
    ", max.poll.records=20000": TUNED,
    ", max.poll.records=20000, two tasks": {**TUNED, "minPartitions": "2"},
}
"""Options of Spark's Kafka source by their words in the table."""

SAME, RANDOM = "same", "random"
CONTENTS = {SAME: load, RANDOM: load_random}
"""Contents of values, each with the function that loads them."""


def topic_of(size: str, content: str = SAME) -> str:
    """Name the topic with values of a size and content."""
    return f"values-{size.replace(' ', '-').lower()}-{content}"


def rows_of(size: str, rows: int) -> int:
    """Return the number of records in the topic."""
    return rows if size == "100 B" else rows // ROWS_OF_1_KB


def median(found: Sequence[Figures]) -> Figures:
    """Compute the medians, each figure by itself."""
    return Figures(
        *(statistics.median(getattr(one, name) for one in found) for name in Figures.__slots__),
    )


def measure_in_rounds(rounds: int, works: Sequence[Callable[[], Figures]]) -> list[Figures]:
    """Measure medians of all works, taken in turn; a first round warms up and is not counted."""
    found: list[list[Figures]] = [[] for _ in works]
    for number in range(rounds + 1):
        for counted, work in zip(found, works, strict=True):
            figures = work()
            if number:
                counted.append(figures)
    return [median(counted) for counted in found]


def source_table(bench: Bench, rows: int, rounds: int, content: str) -> str:
    """Measure every way of reading."""
    lines = [
        f"| {content} values | source | Mrow/s | MB/s | Spark CPU s | broker CPU s | to kafka on Apache Kafka |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for size, value_bytes in SIZES.items():
        topic, count = topic_of(size, content), rows_of(size, rows)
        for road in ROADS:
            seen = road.open(bench, topic).count()
            if not 0.99 * count <= seen <= count:
                raise SystemExit(f"{road.title}: {seen} rows of {count}")
        found = measure_in_rounds(rounds, [partial(read_all, bench, road, topic) for road in ROADS])
        for road, figures in zip(ROADS, found, strict=True):
            speed = count / figures.seconds / 1e6
            cells = [f"{speed:.2f}", f"{speed * value_bytes:,.0f}", f"{figures.spark_cpu_s:.2f}"]
            cells += [f"{figures.broker_cpu_s:.2f}", f"{found[0].seconds / figures.seconds:.1f}x"]
            lines.append(f"| {size} | {road.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def sink_table(bench: Bench, rows: int, rounds: int, content: str) -> str:
    """Measure every way of writing."""
    lines = [
        f"| {content} values | sink | Mrow/s | MB/s | Spark CPU s | broker CPU s | to kafka on Apache Kafka |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for size, value_bytes in SIZES.items():
        count = rows_of(size, rows)
        values = Values(count, value_bytes, is_random=content == RANDOM)
        found = measure_in_rounds(rounds, [partial(write_all, bench, sink, values) for sink in SINKS])
        for sink, figures in zip(SINKS, found, strict=True):
            speed = count / figures.seconds / 1e6
            cells = [f"{speed:.2f}", f"{speed * value_bytes:,.0f}", f"{figures.spark_cpu_s:.2f}"]
            cells += [f"{figures.broker_cpu_s:.2f}", f"{found[0].seconds / figures.seconds:.1f}x"]
            lines.append(f"| {size} | {sink.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def sink_parts_table(bench: Bench, rows: int, rounds: int) -> str:
    """Measure the parts of a write, each with its best round."""
    lines = ["| values | part | s | CPU s/GB | broker CPU s/GB |", "|---|---|---:|---:|---:|"]
    for size, value_bytes in SIZES.items():
        count = rows_of(size, rows)
        gigabytes = count * value_bytes / GB
        found = [measure_parts(bench.tidelog, bench.work, count, value_bytes) for _ in range(rounds + 1)]
        for tries in zip(*found, strict=True):
            best = min(tries, key=lambda part: part.seconds)
            cells = [f"{best.seconds:.2f}", f"{best.cpu_s / gigabytes:.2f}", f"{best.broker_cpu_s / gigabytes:.2f}"]
            lines.append(f"| {size} | {best.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def export_table(bench: Bench, rows: int, rounds: int, content: str) -> str:
    """Measure every way of exporting to Parquet."""
    lines = [
        f"| {content} values | export | Mrow/s | Mrow per CPU s | broker CPU s | MB | to Spark |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for size in SIZES:
        topic, count, table = topic_of(size, content), rows_of(size, rows), bench.work / "table"
        works: dict[str, Callable[[], Figures]] = {
            f"kafka on Apache Kafka{title}": partial(export_with_spark, bench, topic, table, options)
            for title, options in EXPORTS.items()
        }
        works["tidelog pipeline export"] = partial(export_with_job, bench, topic, table)
        found = measure_in_rounds(rounds, list(works.values()))
        for title, figures in zip(works, found, strict=True):
            cpu = figures.spark_cpu_s + figures.broker_cpu_s
            cells = [f"{count / figures.seconds / 1e6:.2f}", f"{count / cpu / 1e6:.2f}"]
            cells += [f"{figures.broker_cpu_s:.2f}", f"{figures.amount / MB:.1f}"]
            cells += [f"{found[0].seconds / figures.seconds:.1f}x"]
            lines.append(f"| {size} | {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def upsert_table(bench: Bench, rows: int, rounds: int) -> str:
    """Measure exports into an Iceberg table, without Spark."""
    lines = ["| random values of 100 B | rows in the table | Mrecord/s | Mrecord per CPU s |", "|---|---:|---:|---:|"]
    topic = "changes"
    load_changes(bench, topic, rows, SIZES["100 B"])
    modes = ("append", "upsert")
    for mode, figures in zip(
        modes, measure_in_rounds(rounds, [partial(export_to_table, bench, topic, m) for m in modes]), strict=True
    ):
        speeds = f"{rows / figures.seconds / 1e6:.2f} | {rows / figures.spark_cpu_s / 1e6:.2f}"
        lines.append(f"| --mode {mode} | {figures.amount:,.0f} | {speeds} |")
    return "\n".join(lines)


def audit_table(bench: Bench, rows: int, rounds: int) -> str:
    """Measure audits of logs that only Tidelog holds."""
    lines = ["| values | audit | GB | GB/s | GB per CPU s |", "|---|---|---:|---:|---:|"]
    for size, value_bytes in SIZES.items():
        topic = f"audited-{topic_of(size)}"
        load(topic, rows_of(size, rows * AUDITED), value_bytes, [bench.tidelog])
        for title, records in (("batches and records", True), ("batches only (--quick)", False)):
            (figures,) = measure_in_rounds(rounds, [partial(audit_with_job, bench, topic, records=records)])
            gigabytes = figures.amount / GB
            cells = [f"{gigabytes / figures.seconds:.2f}", f"{gigabytes / figures.spark_cpu_s:.2f}"]
            lines.append(f"| {size} | {title} | {gigabytes:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def point_table(bench: Bench, size: float) -> str:
    """Measure look-ups in one large log."""
    topic = "keyed"
    begin = datetime.datetime.now(datetime.UTC).timestamp()
    count = load_keyed(bench, topic, int(size * GB))
    spent = datetime.datetime.now(datetime.UTC).timestamp() - begin
    middle = int((begin + spent / 2) * 1000)
    questions = {
        "one key, by its index": {"key": f"key-{count // 2:08d}"},
        "a thousandth of the time": {
            "startingTimestamp": str(middle),
            "endingTimestamp": str(middle + max(1, int(spent))),
        },
    }
    lines = ["| query | log GB | rows | ms | bytes read | of the log |", "|---|---:|---:|---:|---:|---:|"]
    for title, options in questions.items():
        look_up(bench, topic, options)
        found = look_up(bench, topic, options)
        part = f"{100 * found.bytes_read / found.log_bytes:.4f} %"
        cells = [f"{found.log_bytes / GB:.2f}", f"{found.rows:,}", f"{found.seconds * 1000:.1f}"]
        lines.append(f"| {title} | {' | '.join(cells)} | {found.bytes_read:,} | {part} |")
    return "\n".join(lines)


def list_offsets_table(bench: Bench, rounds: int, topic: str) -> str:
    """Measure ListOffsets on both brokers."""
    brokers = (bench.tidelog, bench.kafka)
    works = [partial(list_offsets, bench, broker, topic, LIST_OFFSETS) for broker in brokers]
    lines = ["| ListOffsets of | broker CPU, µs/request | round trip, µs |", "|---|---:|---:|"]
    for broker, figures in zip(brokers, measure_in_rounds(rounds, works), strict=True):
        each = 1e6 / figures.amount
        lines.append(f"| {broker.name} | {figures.broker_cpu_s * each:.1f} | {figures.seconds * each:.1f} |")
    return "\n".join(lines)


def measure(bench: Bench, arguments: argparse.Namespace) -> str:
    """Measure the chosen sections, printed as they come."""
    rounds, rows, chosen = arguments.rounds, arguments.rows, arguments.only or SECTIONS
    contents = arguments.content or [SAME]
    if SIDE_BY_SIDE.intersection(chosen):
        for content, (size, value_bytes) in product(contents, SIZES.items()):
            CONTENTS[content](topic_of(size, content), rows_of(size, rows), value_bytes, [bench.tidelog, bench.kafka])
    sized = (bench, rows, rounds)
    works: dict[str, Sequence[Callable[[], str]]] = {
        "source": [partial(source_table, *sized, content) for content in contents],
        "sink": [partial(sink_table, *sized, content) for content in contents],
        "sink-parts": [partial(sink_parts_table, *sized)],
        "export": [partial(export_table, *sized, content) for content in contents],
        "upsert": [partial(upsert_table, *sized)],
        "audit": [partial(audit_table, *sized)],
        "point": [partial(point_table, bench, arguments.point_gb)],
        "list-offsets": [partial(list_offsets_table, bench, rounds, topic_of("100 B", contents[0]))],
    }
    tables = []
    for name in chosen:
        for work in works[name]:
            tables.append(work())
            print(f"\n{name}\n\n{tables[-1]}", flush=True)
    return "\n\n".join(tables)


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="benchmarks.spark", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--rows", type=int, default=3_000_000, help="records of 100 B (default: %(default)s)")
    found.add_argument("--rounds", type=int, default=3, help="counted rounds (default: %(default)s)")
    found.add_argument("--point-gb", type=float, default=10.0, help="size of the log of point (default: %(default)s)")
    found.add_argument(
        "--content",
        action="append",
        choices=CONTENTS,
        help="content of the values; may be repeated (default: same)",
    )
    found.add_argument("--only", action="append", choices=SECTIONS, help="this section; may be repeated")
    found.add_argument("--save", action="store_true", help="put the tables on top of benchmarks/RESULTS.md")
    return found


def main() -> None:
    """Measure and print; with ``--save`` add the tables to RESULTS.md."""
    arguments = parser().parse_args()
    BUILD.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=BUILD, prefix="spark-") as name, ExitStack() as running:
        work = Path(name)
        tidelog = running.enter_context(TidelogProcess(work / "tidelog"))
        kafka = running.enter_context(ApacheKafka(work / "kafka"))
        session = start_session(SessionPlan(work, memory="2g", jars=tuple(connector_jars())))
        running.callback(session.stop)
        tables = measure(Bench(session, tidelog, kafka, work, tidelog.data_directory), arguments)
    if arguments.save:
        now = datetime.datetime.now(datetime.UTC)
        versions = f"Spark 4.2.0, Apache Kafka {KAFKA_4}"
        body = f"`{command_of('spark')}`, commit {machine.commit()}. {machine.describe()}, {versions}.\n\n{tables}"
        put_section(Path(__file__).resolve().parent / "RESULTS.md", f"Spark, {now:%Y-%m-%d %H:%M} UTC", body)


if __name__ == "__main__":
    main()
