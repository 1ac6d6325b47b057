"""The cleaner's figures as Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.cleaner_data import DataSet

STALL_US = 10_000.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rounds over one data set: each a mapping of figures by name."""

    data: DataSet
    tidelog: Sequence[Mapping[str, float]]
    kafka: Sequence[Mapping[str, float]]

    def median(self, figure: str) -> float:
        """Compute Tidelog's median."""
        return statistics.median(found[figure] for found in self.tidelog)


def cleaner_table(comparisons: Sequence[Comparison]) -> str:
    """Write medians of Tidelog beside Kafka's first (cold) round, its best throughput and its least CPU time.

    Both ratios are above 1 if Tidelog is better. ``ratio to best``: Tidelog's throughput by Kafka's best.
    ``CPU: its least / ours``: Kafka's least CPU time by Tidelog's.
    """
    lines = [
        "| data | Tidelog MB/s | CPU s (user + system) | Kafka cold MB/s | its best | its least CPU s | ratio to best "
        "| CPU: its least / ours | read | written | peak RSS MB |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    return "\n".join([*lines, *(_row(found) for found in comparisons)]) + "\n"


def _row(found: Comparison) -> str:
    ours, cpu = found.median("MB/s"), found.median("user s") + found.median("system s")
    cells = [found.data.title, f"{ours:,.0f}", f"{found.median('user s'):.2f} + {found.median('system s'):.2f}"]
    if found.kafka:
        best = max(found.kafka, key=lambda round_: round_["MB/s"])
        min_cpu_s = min(round_["user s"] + round_["system s"] for round_ in found.kafka)
        cells += [f"{found.kafka[0]['MB/s']:,.0f}", f"{best['MB/s']:,.0f}", f"{min_cpu_s:.2f}"]
        cells += [f"{ours / best['MB/s']:.1f}x", f"{min_cpu_s / cpu:.1f}x"]
    else:
        cells += ["-"] * 5
    cells += [f"{found.median(f'bytes {what} per data byte'):.2f}x" for what in ("read", "written")]
    return "| " + " | ".join([*cells, f"{found.median('peak RSS MB'):,.0f}"]) + " |"


def latency_table(phases: Mapping[str, Sequence[float]]) -> str:
    """Write quantiles of round trips in µs for each phase."""
    lines = ["| produce, one record | requests | p50 µs | p99 µs | p99.9 µs | max ms | over 10 ms |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    for name, times in phases.items():
        cuts = statistics.quantiles(times, n=1000)
        figures = [f"{cuts[index]:,.0f}" for index in (499, 989, 998)]
        slow = sum(time > STALL_US for time in times)
        lines.append(f"| {name} | {len(times):,} | {' | '.join(figures)} | {max(times) / 1000:.1f} | {slow} |")
    return "\n".join(lines) + "\n"
