"""Measured values of a run, as JSON and as a Markdown table.

The *floor* is a C program that does only the work no broker can avoid (``benchmarks/rivals/floor.py``).
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.rows import CONTENDERS, FLOOR, KAFKA, TIDELOG, Metric, Row

RESULTS_TITLE = "# Results\n"


@dataclass(slots=True)
class Results:
    """Every value measured: row, metric, contender -> one value for each round or pair that did not fail."""

    values: dict[tuple[str, str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: list[str] = field(default_factory=list)
    """Measurements that could not be made, with the reason."""

    def add(self, row: str, contender: str, found: dict[str, float]) -> None:
        """Keep the figures of one round."""
        for metric, value in found.items():
            self.values[row, metric, contender].append(value)

    def median(self, row: str, metric: str, contender: str) -> float | None:
        """Compute the median of the values, None if there are none."""
        values = self.values.get((row, metric, contender))
        return statistics.median(values) if values else None

    def as_json(self) -> str:
        """Write all values, one line for each row, metric and contender."""
        lines = [json.dumps([*key, [round(value, 6) for value in values]]) for key, values in self.values.items()]
        return "[\n" + ",\n".join(lines) + "\n]\n"


def ratio(metric: Metric, tidelog: float | None, kafka: float | None) -> float | None:
    """Compute how many times better Tidelog is than Kafka; below 1 it is worse. None if one is missing or zero."""
    if not tidelog or not kafka:
        return None
    return tidelog / kafka if metric.more_is_better else kafka / tidelog


def markdown_table(rows: Sequence[Row], results: Results) -> str:
    """Write the table of one run: medians, the ratio to Kafka, the floor, and whether each aim is met."""
    lines = [
        "| work | figure | Tidelog | Apache Kafka | better by | floor | aim | met |",
        "|---|---|---:|---:|---:|---:|---|---|",
    ]
    for row in rows:
        title = row.title
        for metric in row.metrics:
            cells = _cells(row.name, metric, results)
            if cells:
                lines.append(f"| {title} | {metric.title}, {metric.unit} | {' | '.join(cells)} |")
                title = ""
    return "\n".join(lines) + "\n"


def _cells(row: str, metric: Metric, results: Results) -> list[str]:
    found = {name: results.median(row, metric.key, name) for name in CONTENDERS}
    if all(value is None for value in found.values()):
        return []
    better = ratio(metric, found[TIDELOG], found[KAFKA])
    tidelog = found[TIDELOG]
    met = metric.is_met(tidelog) if tidelog is not None else None
    return [
        _number(tidelog, metric),
        _number(found[KAFKA], metric),
        f"{better:.1f}x" if better else "-",
        _number(found[FLOOR], metric),
        metric.format_aim() or "-",
        {True: "yes", False: "**no**", None: "-"}[met],
    ]


def _number(value: float | None, metric: Metric) -> str:
    return "-" if value is None else f"{value:,.{metric.digits}f}"


def put_section(path: Path, heading: str, body: str) -> None:
    """Put a section on top of the results page, below its title and introduction: the newest comes first."""
    text = path.read_text() if path.exists() else RESULTS_TITLE
    head, mark, rest = text.partition("\n## ")
    path.write_text(f"{head.rstrip()}\n\n## {heading}\n\n{body.strip()}\n{(mark + rest).rstrip()}\n")


def list_missed(rows: Iterable[Row], results: Results) -> list[str]:
    """List the aims that Tidelog missed, in words."""
    found = []
    for row in rows:
        for metric in row.metrics:
            value = results.median(row.name, metric.key, TIDELOG)
            if value is not None and metric.is_met(value) is False:
                reached = f"{_number(value, metric)} {metric.unit}"
                found.append(f"{row.name} {metric.title}: {reached}, aim {metric.format_aim()}")
    return found
