"""Samples of a process's memory, descriptors and threads, and the test of whether these grow."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

POINTS = 120
"""A longer series is thinned to 120 up to 239 samples, so a slope is a median of 28,441 pairs at most."""


class Sample(NamedTuple):
    """Figures of a process at one moment.

    ``files``: descriptors of files in the data directory, whose number grows with the data. ``descriptors``: others.
    """

    at_s: float
    rss_bytes: int
    anonymous_bytes: int
    files: int
    descriptors: int
    deleted_files: int
    threads: int


def sample(pid: int, data_directory: Path) -> Sample:
    """Read the figures of a process. Raises OSError when it is gone."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    links = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed just now
            links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    files = [link for link in links if link.startswith(str(data_directory))]
    return Sample(
        time.monotonic(),
        int(status["VmRSS"].split()[0]) * 1024,
        int(status["RssAnon"].split()[0]) * 1024,
        len(files),
        len(links) - len(files),
        sum(link.endswith(" (deleted)") for link in files),
        int(status["Threads"]),
    )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Compute the growth per second by Theil and Sen: the median slope of all pairs, which single peaks do not move."""
    step = max(1, len(points) // POINTS)
    pairs = combinations(points[::step], 2)
    return statistics.median((b - a) / (end - begin) for (begin, a), (end, b) in pairs if end > begin)


LIMITS: dict[str, tuple[float, float]] = {
    "rss_bytes": (24e6, 0.15),
    "descriptors": (8, 0.0),
    "deleted_files": (8, 0.0),
    "threads": (2, 0.0),
}
"""The growth of a figure that still counts as flat: an amount, plus this share of the figure's median."""


def growth(samples: Sequence[Sample], field: str) -> float:
    """Compute the growth of a figure from the first sample to the last: its slope times the seconds between them."""
    points = [(each.at_s, float(getattr(each, field))) for each in samples]
    return slope(points) * (points[-1][0] - points[0][0])


def growing(samples: Sequence[Sample]) -> list[str]:
    """List the figures that grow by more than their limit."""
    found = []
    for field, (amount, share) in LIMITS.items():
        grown, median = growth(samples, field), statistics.median(getattr(each, field) for each in samples)
        if grown > amount + share * median:
            found.append(f"{field} grew by {grown:,.0f} from about {median:,.0f}")
    return found


def summary(samples: Sequence[Sample]) -> str:
    """Return medians and growth of all figures as lines of text."""
    seconds = samples[-1].at_s - samples[0].at_s
    parts = [
        f"{field} {statistics.median(getattr(each, field) for each in samples):,.0f} ({growth(samples, field):+,.0f})"
        for field in Sample._fields[1:]
    ]
    return f"over the last {seconds:.0f} s: median (growth) of " + ", ".join(parts)
