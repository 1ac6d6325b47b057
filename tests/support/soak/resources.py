"""Memory, descriptors and threads of a process over time, and whether they grow."""

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
"""Samples a slope is made of: 7,140 pairs."""


class Sample(NamedTuple):
    """Figures of a process at one moment. ``files``: descriptors of the data directory, which grow with it."""

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
    """Compute the growth per second by Theil and Sen: the median over all pairs, which single peaks do not move."""
    step = max(1, len(points) // POINTS)
    pairs = combinations(points[::step], 2)
    return statistics.median((b - a) / (end - begin) for (begin, a), (end, b) in pairs if end > begin)


LIMITS: dict[str, tuple[float, float]] = {
    "rss_bytes": (24e6, 0.15),
    "descriptors": (8, 0.0),
    "deleted_files": (8, 0.0),
    "threads": (2, 0.0),
}
"""Growth over the time looked at that is still flat: so much, and such a part of the median more."""


def growth(samples: Sequence[Sample], field: str) -> float:
    """Compute the growth of a figure over all the time looked at."""
    points = [(each.at_s, float(getattr(each, field))) for each in samples]
    return slope(points) * (points[-1][0] - points[0][0])


def growing(samples: Sequence[Sample]) -> list[str]:
    """List the figures that grow by more than their limit."""
    found = []
    for field, (most, part) in LIMITS.items():
        grown, median = growth(samples, field), statistics.median(getattr(each, field) for each in samples)
        if grown > most + part * median:
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
