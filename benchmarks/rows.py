"""Rows of the benchmark. A row has metrics with their aims, and a function that measures them on one contender:
Tidelog, Apache Kafka or the floor.

The aims come from the project's design; an aim is "met" when the median of the rounds is within the metric's limit. The
floor is a C program that does only the work that no broker can avoid (``rivals/floor.py``).

Processor time is compared with the floor's in pairs: Tidelog and the floor are measured right after each other, and
each is first in every other pair. The kernel's time for a page depends on the page's last user, so only measurements
that are close in time compare fairly. The figure is the median of the pairs' ratios. In a row that reads the same data
several times (``Scale.fetch_readings``, four by default), each reading can be one of a pair. This gives four times the
number of pairs, and a quarter of the time between the two readings of a pair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.rivals.process import BrokerProcess

TIDELOG = "tidelog"
KAFKA = "kafka"
FLOOR = "floor"
CONTENDERS = (TIDELOG, KAFKA, FLOOR)
"""All contenders, in the order of the columns."""

MB = 1_000_000
GB = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a row. ``limit`` is its aim: an upper bound, or a lower one where more is better."""

    key: str
    title: str
    unit: str
    limit: float | None = None
    more_is_better: bool = False
    digits: int = 2

    def format_aim(self) -> str:
        """Write the aim as a bound, such as ``<= 30``; empty if the metric has none."""
        sign = ">=" if self.more_is_better else "<="
        return f"{sign} {self.limit:,g}" if self.limit is not None else ""

    def is_met(self, value: float) -> bool | None:
        """Return whether ``value`` reaches the aim; None if there is no aim."""
        if self.limit is None:
            return None
        return value >= self.limit if self.more_is_better else value <= self.limit


@dataclass(frozen=True, slots=True)
class Scale:
    """Amounts of work of the rows. Bytes are those of record values, but for ``page_cache_bytes``."""

    rounds: int
    """Rounds of a row that does not set its own number."""
    most_rounds: int
    """Limit of the rounds of a row that sets its own number, as the row of starts does."""
    payload_bytes: int
    small_records: int
    requests: int
    round_trips: int
    warm_up_bytes: int
    """Bytes that are produced to each long-lived broker before the first row; half as many are fetched."""
    warm_up_requests: int
    """Small requests that each long-lived broker gets before the first row; then a tenth as many, one at a time."""
    page_cache_bytes: int
    """Bytes of a file that is written before any broker starts: a page's first use in the page cache takes longer."""
    memory_bytes: int
    partitions: int
    connections: int
    recovery_bytes: int
    pairs: int
    pair_bytes: int
    fetch_readings: int = 4
    """Readings of the same data in one measurement: user time is counted in hundredths of a second, and one reading
    takes only a few of them."""


FULL = Scale(
    rounds=3,
    most_rounds=5,
    payload_bytes=2 * GB,
    small_records=10_000_000,
    requests=200_000,
    round_trips=50_000,
    warm_up_bytes=GB,
    warm_up_requests=200_000,
    page_cache_bytes=10 * GB,
    memory_bytes=GB,
    partitions=10_000,
    connections=10_000,
    recovery_bytes=2 * GB,
    pairs=7,
    pair_bytes=GB,
)
QUICK = Scale(
    rounds=1,
    most_rounds=2,
    payload_bytes=200 * MB,
    small_records=1_000_000,
    requests=20_000,
    round_trips=5_000,
    warm_up_bytes=50 * MB,
    warm_up_requests=5_000,
    page_cache_bytes=0,
    memory_bytes=100 * MB,
    partitions=500,
    connections=500,
    recovery_bytes=200 * MB,
    pairs=2,
    pair_bytes=200 * MB,
)


@dataclass(slots=True)
class Contender:
    """One broker or the floor: the function that builds a new process, and the process that the serving rows share."""

    name: str
    launch: Callable[[Path], BrokerProcess]
    has_topics: bool = True
    serving: BrokerProcess | None = None
    prepared: set[str] = field(default_factory=set)
    """Topics that already hold the data a row reads."""


@dataclass(frozen=True, slots=True)
class Run:
    """Context of a measuring function: amounts of work, the directory of all measurements, the number of the round."""

    scale: Scale
    directory: Path
    round: int


Measure = Callable[[Run, Contender], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of work and its figures. ``serving`` rows use the warm long-lived process, others launch their own."""

    name: str
    title: str
    metrics: tuple[Metric, ...]
    measure: Measure
    contenders: tuple[str, ...] = (TIDELOG, KAFKA)
    serving: bool = True
    rounds: int | None = None
    """Number of rounds, if the scale's ``most_rounds`` allows it; None: the scale's ``rounds``."""
    in_pairs: bool = False
    """True when ``total``, all CPU time, is also compared with the floor's in pairs, as ``times_floor``."""
    reads: bool = False
    """True when a measurement is ``fetch_readings`` readings, each of which can be one of a pair."""
