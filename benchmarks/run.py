"""``make bench``: Tidelog and Apache Kafka in turn, in one run, with the same client.

Order of a run: the page cache is warmed up, the long-lived brokers are started and warmed up, then each row is measured
in several rounds. In each round the contenders take turns, and another one is first. Medians of the rounds go to the
table.

    python -m benchmarks.run [--quick] [--only ROW]... [--section NAME]... [--rival kafka|none] [--save]

If a broker, a client or the system fails in a measurement, the results note it, and the run goes on; a process that
several rows share is restarted.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import KafkaException

from benchmarks import machine
from benchmarks.native import LoadError
from benchmarks.plots import PLOT_INSTALL, plot_ratios
from benchmarks.process_rows import PROCESS_ROWS
from benchmarks.report import Results, list_missed, markdown_table, put_section
from benchmarks.rivals.apache_kafka import ApacheKafka
from benchmarks.rivals.floor import Floor
from benchmarks.rivals.kafka_jars import BUILD, KAFKA_4
from benchmarks.rivals.process import BrokerError, BrokerProcess
from benchmarks.rivals.tidelog_broker import TidelogProcess
from benchmarks.rows import FLOOR, FULL, KAFKA, QUICK, TIDELOG, Contender, Row, Run, Scale
from benchmarks.sections import SECTIONS, run_sections
from benchmarks.serving_rows import SERVING_ROWS, warm_up

ROWS = (*SERVING_ROWS, *PROCESS_ROWS)
HERE = Path(__file__).resolve().parent
FIRST_PAIR = 1000
"""The first pair's number, so that topics of pairs and rounds have different names."""
DISCARD_SOON = {"log.segment.delete.delay.ms": "1000"}
"""Deleted topics leave the disk after a second, because a run writes tens of gigabytes."""


def launch_tidelog(directory: Path) -> BrokerProcess:
    """Build a Tidelog process without starting it."""
    return TidelogProcess(directory, DISCARD_SOON)


def launch_kafka(directory: Path) -> BrokerProcess:
    """Build an Apache Kafka process and format its data directory, without starting it."""
    broker = ApacheKafka(directory, DISCARD_SOON)
    broker.format()
    return broker


def contenders(rival: str, tidelog: bool) -> list[Contender]:
    """Return the contenders of a run: those that are asked for, and the floor."""
    found = [Contender(TIDELOG, launch_tidelog)] if tidelog else []
    if rival == KAFKA:
        found.append(Contender(KAFKA, launch_kafka))
    return [*found, Contender(FLOOR, Floor, has_topics=False)]


def rotate_contenders(taking_part: Sequence[Contender], round_number: int) -> list[Contender]:
    """Order the contenders of a round: in each round another one is first."""
    first = round_number % len(taking_part)
    return [*taking_part[first:], *taking_part[:first]]


@dataclass(frozen=True, slots=True)
class Bench:
    """One run: its contenders, scale, directories and results."""

    scale: Scale
    everyone: Sequence[Contender]
    work: Path
    results: Results

    def measure(self, rows: Sequence[Row]) -> None:
        """Measure all rows. The serving rows share one warm process of each contender."""
        serving = [row for row in rows if row.serving]
        with ExitStack() as running:
            for contender in self.everyone if serving else ():
                contender.serving = running.enter_context(contender.launch(self.work / contender.name))
                warm_up(Run(self.scale, self.work, 0), contender)
            for row in serving:
                self.measure_row(row)
                if row.in_pairs:
                    self.measure_pairs(row)
        for row in rows:
            if not row.serving:
                self.measure_row(row)

    def measure_row(self, row: Row) -> None:
        """Measure all rounds of one row."""
        taking_part = [contender for contender in self.everyone if contender.name in row.contenders]
        rounds = min(row.rounds or self.scale.rounds, max(self.scale.rounds, self.scale.most_rounds))
        for number in range(rounds if taking_part else 0):
            for contender in rotate_contenders(taking_part, number):
                found = self.attempt(row, Run(self.scale, self.work, number), contender)
                self.results.add(row.name, contender.name, found)
                figures = ", ".join(f"{key} {value:,.4g}" for key, value in found.items())
                print(f"{row.name} [{number + 1}/{rounds}] {contender.name}: {figures}", flush=True)
                if not row.serving:
                    shutil.rmtree(self.work / f"{contender.name}-{row.name}-{number}", ignore_errors=True)

    def measure_pairs(self, row: Row) -> None:
        """Measure Tidelog and the floor, one right after the other: the ratios of their processor time."""
        pair = [contender for contender in self.everyone if contender.name in (TIDELOG, FLOOR)]
        if len(pair) < 2:
            return
        pairs = self.scale.pairs * (self.scale.fetch_readings if row.reads else 1)
        scale = replace(self.scale, payload_bytes=self.scale.pair_bytes, fetch_readings=1)
        ratios = []
        for number in range(pairs):
            totals = {}
            for contender in rotate_contenders(pair, number):
                found = self.attempt(row, Run(scale, self.work, FIRST_PAIR + number), contender)
                totals[contender.name] = found.get("total", 0.0)
            if all(totals.values()):
                ratios.append(totals[TIDELOG] / totals[FLOOR])
                self.results.add(row.name, TIDELOG, {"times_floor": ratios[-1]})
                print(f"{row.name} [pair {number + 1}/{pairs}] {ratios[-1]:.3g} times the floor", flush=True)
        if len(ratios) > 1:
            quarters = " / ".join(f"{value:.3g}" for value in statistics.quantiles(ratios, n=4))
            print(f"{row.name} [{len(ratios)} pairs] quartiles {quarters} times the floor", flush=True)

    def attempt(self, row: Row, run: Run, contender: Contender) -> dict[str, float]:
        """Measure once; when a broker, a client or the system fails, return no figures and note the failure."""
        try:
            return row.measure(run, contender)
        except (BrokerError, LoadError, KafkaException, OSError, subprocess.TimeoutExpired) as error:
            line = f"{row.name} [{run.round + 1}] {contender.name} failed: {error}"
        self.results.failures.append(line)
        print(line, flush=True)
        if row.serving and contender.serving is not None:
            contender.serving.kill()
            contender.serving.start()
            contender.prepared.clear()
        return {}


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.run", description="Measure Tidelog beside Apache Kafka.")
    parser.add_argument(
        "--quick", action="store_true", help="a smoke run: small loads, one or two rounds, nothing to quote"
    )
    parser.add_argument(
        "--only", action="append", metavar="ROW", choices=[row.name for row in ROWS], default=[], help="these rows"
    )
    parser.add_argument(
        "--section", action="append", metavar="NAME", choices=list(SECTIONS), default=[],
        help=f"these tables, and no rows but those of --only ({', '.join(SECTIONS)}); full runs have all",
    )  # fmt: skip
    parser.add_argument("--rival", choices=[KAFKA, "none"], default=KAFKA, help="the broker to compare with Tidelog")
    parser.add_argument(
        "--rounds", type=int, help="rounds of a row (default 3, quick: 1); only a limit if the row has its own number"
    )
    parser.add_argument("--no-tidelog", action="store_true", help="measure the rival and the floor")
    parser.add_argument(
        "--prewarm-gb", type=float, help="GB to write to the page cache before all rows (default 10, quick: 0)"
    )
    parser.add_argument("--save", action="store_true", help="save a partial run too; full runs are always saved")
    return parser.parse_args(words)


def save(rows: Sequence[Row], results: Results, tables: str, note: str) -> None:
    """Put tables and plot on top of RESULTS.md, and all values into the folder ``results``."""
    now = datetime.datetime.now(datetime.UTC)
    name = f"{now:%Y%m%d-%H%M}"
    body = f"Commit {machine.commit()}. {machine.describe()}. Apache Kafka {KAFKA_4}. {note}\n\n{tables}"
    kept = HERE / "results"
    kept.mkdir(exist_ok=True)
    (kept / f"{name}.json").write_text(results.as_json())
    if plot_ratios(rows, results, kept / f"{name}.svg"):
        body += f"\n![times better than Apache Kafka](results/{name}.svg)\n"
    else:
        print(f"no plot drawn; for plots: {PLOT_INSTALL}")
    put_section(HERE / "RESULTS.md", f"{now:%Y-%m-%d %H:%M} UTC", body)


def main(words: Sequence[str] | None = None, report: Callable[[str], None] = print) -> int:
    """Run the benchmark; return 0, also if aims are missed."""
    asked = arguments(words)
    scale = QUICK if asked.quick else FULL
    if asked.rounds:
        scale = replace(scale, rounds=asked.rounds, most_rounds=asked.rounds)
    rows = [row for row in ROWS if row.name in asked.only] if asked.only or asked.section else list(ROWS)
    BUILD.mkdir(exist_ok=True)
    page_cache_bytes = scale.page_cache_bytes if asked.prewarm_gb is None else int(asked.prewarm_gb * 1e9)
    results = Results()
    try:
        with TemporaryDirectory(prefix="bench-", dir=BUILD, ignore_cleanup_errors=True) as work:
            machine.prewarm_page_cache(Path(work), page_cache_bytes)
            Bench(scale, contenders(asked.rival, not asked.no_tidelog), Path(work), results).measure(rows)
    finally:  # what was measured before a failure is worth keeping
        table = markdown_table(rows, results)
        report(f"\n{machine.describe()}, commit {machine.commit()}\n\n{table}")
        for line in list_missed(rows, results):
            report(f"missed: {line}")
        table += "".join(f"\n{line}\n" for line in results.failures)
        is_full = not (asked.quick or asked.only or asked.section or asked.no_tidelog)
        names = asked.section or (list(SECTIONS) if is_full else [])
        if isinstance(sys.exc_info()[1], KeyboardInterrupt):
            names = []  # a user who ends the run wants no further sections
        for title, text in run_sections(names, asked.rival, quick=asked.quick, report=report):
            table += f"\n### {title}\n\n{text}\n"
        if asked.save or is_full:
            save(rows, results, table, f"{'Quick run' if asked.quick else 'Medians'}, rounds: {scale.rounds}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
