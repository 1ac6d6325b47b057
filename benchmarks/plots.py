"""Plots of the results. Only this module needs matplotlib; where that is not installed, results are tables only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Results, ratio
from benchmarks.rows import KAFKA, TIDELOG, Row

PLOT_INSTALL = "pip install 'tidelog[bench]'"


def pyplot() -> Any:
    """Import matplotlib's pyplot, set to draw into SVG files; return None where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tidelog"
    import matplotlib.pyplot

    return matplotlib.pyplot


def plot_ratios(rows: Sequence[Row], results: Results, path: Path) -> bool:
    """Plot one bar for each metric: how many times better Tidelog is than Apache Kafka.

    Returns False if matplotlib is not installed, or if no metric has results of both brokers.
    """
    plt = pyplot()
    bars = []
    for row in rows:
        for metric in row.metrics:
            tidelog, kafka = (results.median(row.name, metric.key, name) for name in (TIDELOG, KAFKA))
            better = ratio(metric, tidelog, kafka)
            if better:
                bars.append((f"{row.name}: {metric.title}", better))
    if plt is None or not bars:
        return False
    figure, axes = plt.subplots(figsize=(8, 0.32 * len(bars) + 1.2))
    names, values = zip(*reversed(bars), strict=True)
    drawn = axes.barh(names, values, color=["#2a7f62" if value >= 1 else "#b3442e" for value in values])
    axes.bar_label(drawn, labels=[f"{value:.1f}x" for value in values], padding=3, fontsize=8)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times better than Apache Kafka (log scale)")
    _save(plt, figure, path)
    return True


def plot_latency(rates: Sequence[float], lines: dict[str, Sequence[float]], path: Path, title: str) -> bool:
    """Plot latency percentiles, in milliseconds, against the achieved rate.

    ``lines``: the label of each percentile -> its latency in microseconds at each of ``rates``. Returns False if
    matplotlib is not installed.
    """
    plt = pyplot()
    if plt is None:
        return False
    figure, axes = plt.subplots(figsize=(8, 4.5))
    for name, values in lines.items():
        axes.plot(rates, [value / 1000 for value in values], marker="o", label=name)
    axes.set_yscale("log")
    axes.set_xlabel("requests each second")
    axes.set_ylabel("milliseconds from the intended time")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)
    _save(plt, figure, path)
    return True


def _save(plt: Any, figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
