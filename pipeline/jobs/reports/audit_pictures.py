"""The pictures of an audit's report, drawn with matplotlib where it is installed.

    timeline.png    a diagram per topic: committed records per ten minutes
    offsets.png     a bar per partition from its first to its last offset: at the bottom the share of offsets that have
                    records, above it the compacted and the lost share

A picture has a limited width: over a long time a step is a multiple of ten minutes, and a step of a bar covers many
offsets. So each step of a bar is divided into shares. The lost share has a minimum height, so that it can be seen.
Of many topics and partitions only some are drawn: the topics with most records, the partitions with faults first. The
titles say so.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tidelog.pipeline.audit.buckets import BUCKET_MS
from tidelog.pipeline.engine.reference import IntegerArray
from tidelog.pipeline.jobs.audit import AuditResult, PartitionAudit

PICTURES = ("timeline.png", "offsets.png")
FloatArray = np.ndarray[tuple[int], np.dtype[np.float64]]

MAX_TOPICS = 10
MAX_PARTITIONS = 60
TIME_STEPS = 600
OFFSET_STEPS = 400
#: A bar with more segments than this has no lines between them.
MAX_SEGMENTS_WITH_LINES = 40
#: Times in ms before the year 1000 and from the year 9000 on are not drawn: matplotlib's dates, also those of the
#: margins of an axis, must lie in the years 1 to 9999.
MIN_MS, MAX_MS = -30_610_224_000_000, 221_845_392_000_000
_DAY_MS = 86_400_000
_HEIGHT = 0.8
_MIN_LOST_SHARE = 0.3
_PRESENT, _COMPACTED, _LOST = "present", "compacted", "lost"
_COLOURS = {_PRESENT: "#4c78a8", _COMPACTED: "#f2c288", _LOST: "#d62728"}


def draw(result: AuditResult, directory: str) -> list[str]:
    """Draw the pictures and return their names; none without matplotlib. Raises OSError."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    for name, paint in zip(PICTURES, (_draw_timeline, _draw_offsets), strict=True):
        figure = Figure(figsize=(10, 3), layout="constrained")
        FigureCanvasAgg(figure)
        paint(figure, result)
        figure.savefig(os.path.join(directory, name), dpi=100)
    return list(PICTURES)


# ---- records over time


@dataclass(frozen=True, slots=True)
class Timeline:
    """Records of each topic in steps of time: ``edges`` in ms, one more than steps; ``counts`` has an array for each
    topic."""

    edges: IntegerArray
    counts: dict[str, IntegerArray]

    @property
    def minutes(self) -> int:
        """Length of a step in minutes."""
        return int(self.edges[1] - self.edges[0]) // 60_000


def timeline(result: AuditResult) -> Timeline | None:
    """Collect the counts of records over time; None if there is no count to draw, as in an audit that hashes no
    records."""
    topics: dict[str, dict[int, int]] = {}
    for partition in result.partitions:
        counts = topics.setdefault(partition.topic, {})
        for begin, (count, _) in partition.buckets.items():
            if MIN_MS <= begin < MAX_MS:
                counts[begin] = counts.get(begin, 0) + count
    begins = [begin for counts in topics.values() for begin in counts]
    if not begins:
        return None
    first, last = min(begins), max(begins) + BUCKET_MS
    step = BUCKET_MS * -(-(last - first) // (BUCKET_MS * TIME_STEPS))
    steps = -(-(last - first) // step)
    found = {}
    for topic, counts in topics.items():
        if counts:
            numbers = (np.array(list(counts), np.int64) - first) // step
            found[topic] = np.bincount(numbers, list(counts.values()), steps).astype(np.int64)
    return Timeline(first + step * np.arange(steps + 1), found)


def _draw_timeline(figure: Any, result: AuditResult) -> None:
    found = timeline(result)
    if found is None:
        figure.suptitle("No counts of committed records to draw")
        return
    topics = sorted(found.counts, key=lambda topic: (-int(found.counts[topic].sum()), topic))[:MAX_TOPICS]
    figure.set_size_inches(10, 1 + 1.6 * len(topics))
    figure.suptitle(
        _title(f"Committed records per {_duration(found.minutes)}", len(topics), len(found.counts), "topics")
    )
    diagrams = figure.subplots(len(topics), 1, sharex=True, squeeze=False)[:, 0]
    for axes, topic in zip(diagrams, topics, strict=True):
        axes.stairs(found.counts[topic], found.edges / _DAY_MS, fill=True, color=_COLOURS[_PRESENT])
        axes.set_ylim(0, None)
        axes.set_title(f"{topic}: {int(found.counts[topic].sum()):,}", loc="left", fontsize="medium")
    _as_dates(diagrams[-1])


def _as_dates(axes: Any) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.set_xlabel("record time, UTC")


def _duration(minutes: int) -> str:
    if minutes % 1440 == 0:
        return "day" if minutes == 1440 else f"{minutes // 1440} days"
    return f"{minutes} minutes" if minutes % 60 else f"{minutes // 60} hours"


# ---- offsets


@dataclass(frozen=True, slots=True)
class Stretch:
    """Offsets from ``start`` to below ``end``: the share ``present`` of them has records, the rest is of ``kind``."""

    start: int
    end: int
    present: float
    kind: str


def stretches(partition: PartitionAudit) -> Iterator[Stretch]:
    """Yield a partition's offsets in parts. Offsets missing inside batches, and gaps that the audit did not keep, are
    only counted per segment. So they are spread evenly over the segment's batches, as compacted ones.
    """
    for gap in partition.gaps:
        yield Stretch(gap.start, gap.end, 0.0, gap.kind)
    for segment in partition.segments:
        listed = sum(gap.end - gap.start for gap in segment.gaps)
        batches = segment.next_offset - segment.base_offset - listed
        missing = segment.compacted_offsets + segment.lost_offsets + segment.damaged_offsets - listed
        share = 1 - min(max(missing, 0), batches) / batches if batches > 0 else 0.0
        gaps = sorted(segment.gaps, key=lambda gap: gap.start)
        edges = [segment.base_offset, *(edge for gap in gaps for edge in (gap.start, gap.end)), segment.next_offset]
        for number, (start, end) in enumerate(pairwise(edges)):
            if end > start:
                yield (
                    Stretch(start, end, share, _COMPACTED)
                    if number % 2 == 0
                    else Stretch(start, end, 0.0, gaps[number // 2].kind)
                )


def shares(partition: PartitionAudit, edges: FloatArray) -> dict[str, FloatArray]:
    """Compute the share of each kind among the offsets between two neighbouring edges."""
    found = {kind: np.zeros(len(edges) - 1) for kind in _COLOURS}
    width = np.maximum(np.diff(edges), 1e-9)
    for stretch in stretches(partition):
        inside = np.diff(np.clip(edges, stretch.start, stretch.end)) / width
        found[_PRESENT] += stretch.present * inside
        found[_LOST if stretch.kind == "damaged" else stretch.kind] += (1 - stretch.present) * inside
    return found


def _draw_offsets(figure: Any, result: AuditResult) -> None:
    drawn = [partition for partition in result.partitions if partition.end > partition.start]
    shown = sorted(sorted(drawn, key=lambda partition: not partition.is_wrong)[:MAX_PARTITIONS], key=_key_of)
    if not shown:
        figure.suptitle("No offsets")
        return
    figure.set_size_inches(10, 1.4 + 0.35 * len(shown))
    axes = figure.add_subplot()
    for row, partition in enumerate(shown):
        _draw_bar(axes, row, partition)
    axes.set_title(_title("Offsets of each partition", len(shown), len(drawn), "partitions, those with faults first"))
    axes.set_xlabel("offset")
    axes.set_yticks(np.arange(len(shown)) + _HEIGHT / 2, [partition.name for partition in shown])
    axes.set_ylim(len(shown), -0.2)
    axes.ticklabel_format(axis="x", style="plain")
    _draw_legend(figure)


def _draw_bar(axes: Any, row: int, partition: PartitionAudit) -> None:
    """Draw the bar of one partition: from the bottom the present, compacted and lost share. The y axis points down."""
    edges = np.linspace(partition.start, partition.end, OFFSET_STEPS + 1)
    found = shares(partition, edges)
    lost = np.where(found[_LOST] > 0, np.maximum(found[_LOST], _MIN_LOST_SHARE), 0.0)
    present = np.minimum(found[_PRESENT], 1 - lost)
    bottom, tops = row + _HEIGHT, {_PRESENT: present, _COMPACTED: 1 - lost, _LOST: np.ones(OFFSET_STEPS)}
    base = np.full(OFFSET_STEPS, bottom)
    for kind, top in tops.items():
        upper = bottom - _HEIGHT * top
        axes.stairs(upper, edges, baseline=base, fill=True, color=_COLOURS[kind])
        base = upper
    if len(partition.segments) <= MAX_SEGMENTS_WITH_LINES:
        for segment in partition.segments[1:]:
            axes.plot([segment.base_offset] * 2, [row, bottom], color="white", linewidth=1)


def _draw_legend(figure: Any) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=kind) for kind, colour in _COLOURS.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))


def _key_of(partition: PartitionAudit) -> tuple[str, int]:
    return partition.topic, partition.partition


def _title(text: str, shown: int, count: int, what: str) -> str:
    return text if shown == count else f"{text} ({shown} of {count} {what})"
