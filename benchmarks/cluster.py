"""Three brokers of Tidelog beside three of Apache Kafka, replication factor 3, in one run; a table for RESULTS.md.

    python -m benchmarks.cluster [--megabytes 200] [--round-trips 1000] [--partitions 1000] [--kinds tidelog,kafka]

Processor times are those of all three brokers, without the controller; that of the catch-up is the follower's alone.
Wall-clock times depend on what else runs.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.cluster_rows import (
    Row,
    catch_up,
    fail_over,
    many_partitions,
    round_trips,
    start_and_idle,
    steady,
    throughput,
)
from benchmarks.rivals.cluster import BrokerCluster, JavaMember, TidelogMember
from benchmarks.saving import Page, add_save

KINDS: dict[str, type[JavaMember] | type[TidelogMember]] = {"tidelog": TidelogMember, "kafka": JavaMember}
STEADY_MB_PER_S = 50


class Bar(NamedTuple):
    """An aim for one figure of Tidelog, alone or relative to Apache Kafka's."""

    text: str
    is_met: Callable[[float, float], bool]


def limit_figure(limit: float) -> Bar:
    """Return a bar that limits the figure itself."""
    return Bar(f"<= {limit:g}", lambda ours, _: ours <= limit)


def limit_ratio(limit: float) -> Bar:
    """Return a bar that limits the ratio to Kafka's figure."""
    return Bar(f"<= {limit:g}x", lambda ours, theirs: ours <= limit * theirs)


MANY = 1_000
"""Number of partitions that ``BARS_OF_MANY`` are for."""
BARS_OF_MANY: Mapping[str, Bar] = {
    f"{MANY:,} partitions, idle: % of a core per broker": limit_figure(1),
    "  controlled stop of their leader: longest s without acks of a partition": limit_figure(0.5),
    "  clean start with them, after the old session has ended: s": limit_figure(3),
}
BARS: Mapping[str, Bar] = {
    "acks=all, 1,000 B, 64 KB batches: user CPU s/GB": limit_ratio(0.6),
    "acks=all, one record: p50 ms": limit_ratio(1.0),
    "  CPU ms per acknowledgement": limit_ratio(0.5),
    f"steady {STEADY_MB_PER_S} MB/s, acks=all: p99 ms, an upper bound of the followers' lag": limit_figure(20),
    "catch-up: MB per CPU s of the follower": Bar(">= 1.5x", lambda ours, theirs: ours >= 1.5 * theirs),
    "  MB/s, without the start": Bar(">= 300", lambda ours, _: ours >= 300),
    "  p99 of produce at its leader, as a multiple of the p99 before the catch-up": limit_figure(2),
    "leader killed to the first acknowledgement, s": Bar(
        "<= 4, Kafka + 0.3", lambda ours, theirs: ours <= 4 and ours <= theirs + 0.3
    ),
    "clean start, six partitions, after the old session has ended: s": limit_figure(0.5),
    "  resident MB of a broker after all rows above": limit_figure(60),
    **BARS_OF_MANY,
}


class Amounts(NamedTuple):
    """Megabytes, round trips and partitions of a run."""

    megabytes: int
    round_trips: int
    partitions: int


def measure(kind: str, amounts: Amounts) -> Row:
    """Measure all rows of a cluster of one kind of broker."""
    with tempfile.TemporaryDirectory() as directory, BrokerCluster(Path(directory), KINDS[kind]) as cluster:
        parts: tuple[Callable[[], Row], ...] = (
            lambda: throughput(cluster, amounts.megabytes),
            lambda: round_trips(cluster, amounts.round_trips),
            lambda: steady(cluster, STEADY_MB_PER_S),
            lambda: catch_up(cluster, amounts.megabytes),
            lambda: fail_over(cluster),
            lambda: start_and_idle(cluster),
            lambda: many_partitions(cluster, amounts.partitions),
        )
        found: Row = {}
        for part in parts:
            row = part()
            print(kind, row, flush=True)
            found |= row
        return found


def table(measured: Mapping[str, Row]) -> list[str]:
    """Return the lines of the table: figures, the ratio to Kafka, bars where both kinds were measured. With another
    number of partitions than MANY, the rows of many partitions have no bars, and a line after the table says so."""
    kinds = [kind for kind in KINDS if kind in measured]
    lines = [f"| what | {' | '.join(kinds)} | ratio | bar | met |", f"|---|{'---:|' * (len(kinds) + 1)}---|---|"]
    rows = measured[kinds[0]]
    first, *others = BARS_OF_MANY
    left_out = BARS_OF_MANY if first not in rows and not rows.keys().isdisjoint(others) else {}
    for name in rows:  # ``kinds`` begins with Tidelog, whichever kind ran first
        values = [measured[kind][name] for kind in kinds]
        ratio = f"{values[0] / values[1]:.2f}" if len(values) > 1 and values[1] else "-"
        bar = BARS.get(name) if len(values) > 1 and name not in left_out else None
        judged = f"{bar.text} | {'yes' if bar.is_met(values[0], values[1]) else '**no**'}" if bar else "- | -"
        lines.append(f"| {name} | {' | '.join(f'{value:.2f}' for value in values)} | {ratio} | {judged} |")
    note = f"The bars for {MANY:,} partitions are left out: this run had another number of them."
    return [*lines, "", note] if left_out else lines


def main() -> None:
    """Measure both kinds, one after the other."""
    parser = argparse.ArgumentParser(prog="benchmarks.cluster", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--round-trips", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=MANY)
    parser.add_argument("--kinds", default="tidelog,kafka")
    add_save(parser)
    options = parser.parse_args()
    amounts = Amounts(options.megabytes, options.round_trips, options.partitions)
    with Page("Three brokers beside three", "cluster", save=options.save) as page:
        measured = {}
        for kind in options.kinds.split(","):
            measured[kind] = measure(kind, amounts)
            print(f"{kind}, load average {os.getloadavg()[0]:.0f}")
        for line in table(measured):
            page.print_line(line)


if __name__ == "__main__":
    main()
