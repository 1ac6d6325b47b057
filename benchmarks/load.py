"""``make load``: many producers and consumers against any broker, in steps of rate.

Each step has a topic of its own. Producers send at intended times, each with up to five requests in flight; a request's
latency counts from its intended time, so a stall counts in every request that it delays (no coordinated omission).
Consumers tail the partitions; end-to-end latency counts from the same intended time to the arrival of the record. The
load connects only to the address it is given, so that broker must lead the partitions.

    python -m benchmarks.load --bootstrap HOST:PORT [--rates 1000,5000,...] [--producers N] [--consumers N]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.histogram import Histogram
from benchmarks.native import LoadError, LoadResult, run_load
from benchmarks.plots import PLOT_INSTALL, plot_latency
from benchmarks.rivals.kafka_jars import BUILD
from benchmarks.topics import Topics

DEFAULT_RATES = "1000,2000,5000,10000,20000,30000,40000,60000"
SATURATED = 0.95
"""A step that achieves less than this share of its rate ends the run: at higher rates only queues grow."""
PERCENTS = (50.0, 90.0, 99.0, 99.9, 100.0)


@dataclass(frozen=True, slots=True)
class Step:
    """One rate and its results."""

    rate: float
    result: LoadResult

    @property
    def achieved(self) -> float:
        """Answered requests each second, from the first intended time to the end of the step."""
        return self.result.completed / self.result.seconds

    @property
    def is_saturated(self) -> bool:
        """True when the broker could not keep up."""
        return self.achieved < SATURATED * self.rate


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.load", description="Load a Kafka broker in steps of rate.")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--rates", default=DEFAULT_RATES, help="requests each second of each step, comma separated")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a step")
    parser.add_argument("--producers", type=int, default=20, help="producing connections")
    parser.add_argument("--consumers", type=int, default=10, help="consuming connections")
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--records", type=int, default=1, help="records in a request")
    parser.add_argument("--acks", type=int, choices=[1, -1], default=1)
    parser.add_argument("--plot", type=Path, default=BUILD / "load.svg", help="where the plot goes (.svg or .png)")
    parser.add_argument("--keep-going", action="store_true", help="go on after the broker could not keep up")
    return parser.parse_args(words)


def run_step(asked: argparse.Namespace, topics: Topics, rate: float) -> Step:
    """Run one rate on a fresh topic."""
    host, _, port = asked.bootstrap.rpartition(":")
    topic = f"load-{os.getpid()}-{rate:g}"
    topics.create(topic, asked.partitions)
    try:
        result = run_load(
            "paced",
            host,
            int(port),
            topic=topic,
            rate=rate,
            seconds=asked.seconds,
            producers=asked.producers,
            consumers=asked.consumers,
            partitions=asked.partitions,
            value_bytes=asked.value_bytes,
            records=asked.records,
            acks=asked.acks,
        )
    finally:
        topics.delete(topic)
    return Step(rate, result)


def line(name: str, rate: float, histogram: Histogram) -> str:
    """Write percentiles in milliseconds, in one line of the table."""
    values = "".join(f"{histogram.percentile_us(percent) / 1000:>10.3f}" for percent in PERCENTS)
    return f"{name:<12}{rate:>10,.0f}{values}"


def header() -> str:
    """Write the first line of the table."""
    names = "".join(f"{'max' if percent == 100 else f'p{percent:g}':>10}" for percent in PERCENTS)
    return f"{'ms':<12}{'per s':>10}{names}"


def run_steps(asked: argparse.Namespace) -> list[Step]:
    """Run all steps, each printed as it ends; stop after the first that saturates, unless told to go on."""
    topics = Topics(asked.bootstrap)
    steps = []
    print(header())
    for rate in (float(word) for word in asked.rates.split(",")):
        step = run_step(asked, topics, rate)
        steps.append(step)
        print(line("acknowledge", step.achieved, step.result.latency), flush=True)
        if asked.consumers:
            print(line("end to end", step.achieved, step.result.end_to_end), flush=True)
        if step.is_saturated:
            print(f"the broker could not keep up at {rate:,.0f} requests/s")
            if not asked.keep_going:
                break
    return steps


def curves(steps: Sequence[Step]) -> dict[str, Sequence[float]]:
    """Collect percentiles in microseconds by name, one value a step."""
    found: dict[str, Sequence[float]] = {}
    for percent in (50.0, 99.0, 99.9):
        found[f"acknowledge p{percent:g}"] = [step.result.latency.percentile_us(percent) for step in steps]
    if any(step.result.end_to_end.count for step in steps):
        found["end to end p99"] = [step.result.end_to_end.percentile_us(99) for step in steps]
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Run the load test; return 1 when the load client fails."""
    asked = arguments(words)
    try:
        steps = run_steps(asked)
    except LoadError as error:
        print(f"load: {error}", file=sys.stderr)
        return 1
    title = (
        f"{asked.producers} producers, {asked.consumers} consumers, {asked.records} x {asked.value_bytes} B a request"
    )
    if plot_latency([step.achieved for step in steps], curves(steps), asked.plot, title):
        print(f"plot: {asked.plot}")
    else:
        print(f"no plot drawn; for plots: {PLOT_INSTALL}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
