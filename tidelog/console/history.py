"""Samples of a broker's last minutes: bytes in and out, records in, requests, the lag of each group.

Samples are taken while pages are requested, and for some minutes after. The loop reads the counters, copies the groups'
offsets and sums each group's lags; the lags of partitions are computed in a worker. Loop thread only, except ``lags``,
``is_partial`` and ``rates``, which return copies or a single value.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.admin.prometheus import Commits, group_commits, lag_samples
from tidelog.broker.metrics.request_times import NAME as REQUEST_TIMES

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.metrics.registry import Histogram, Sample

INTERVAL_S = 2.0
KEPT = 150
"""Number of samples that are kept: those of five minutes."""
UNWATCHED_S = 180.0
"""How long samples are still taken after the last page, in seconds."""
MAX_GROUPS = 300
"""Limit of the groups that have samples of their lag; further groups get none."""


class Totals(NamedTuple):
    """Counters of the broker at a time. ``time_s`` is monotonic."""

    time_s: float
    bytes_in: int
    bytes_out: int
    records_in: int
    requests: int


class Rates(NamedTuple):
    """Change of the counters between two samples, per second."""

    bytes_in: float
    bytes_out: float
    records_in: float
    requests: float


class Latency(NamedTuple):
    """Times of one API's requests since the start: their number, and upper bounds of median and 99th percentile in
    ms."""

    api: str
    timed: int
    median_ms: float
    p99_ms: float


class History:
    """Samples of the counters and of the groups' lags, the latest KEPT of each."""

    def __init__(self) -> None:
        self._totals: deque[Totals] = deque(maxlen=KEPT)
        self._lags: dict[str, deque[int]] = {}
        self._partial: frozenset[str] = frozenset()

    def add_totals(self, totals: Totals) -> None:
        """Add the counters of a moment."""
        self._totals.append(totals)

    def add_lags(self, lags: Mapping[str, int], partial: Iterable[str] = ()) -> None:
        """Add the lag of each group, up to MAX_GROUPS; samples of groups without a lag are dropped. ``partial``: groups
        with more partitions than were summed.
        """
        self._partial = frozenset(partial)
        for group in [group for group in self._lags if group not in lags]:
            del self._lags[group]
        for group, lag in lags.items():
            if group not in self._lags:
                if len(self._lags) >= MAX_GROUPS:
                    continue
                self._lags[group] = deque(maxlen=KEPT)
            self._lags[group].append(lag)

    def lags(self, group: str) -> list[int]:
        """Return the lags of a group, oldest first. Any thread."""
        return list(self._lags.get(group, ()))

    def is_partial(self, group: str) -> bool:
        """Return whether the latest lag lacks some of the group's partitions. Any thread."""
        return group in self._partial

    def rates(self) -> list[Rates]:
        """Compute the rates between the samples, oldest first. Any thread."""
        taken = list(self._totals)
        return [compute_rates(before, after) for before, after in pairwise(taken)]


def compute_rates(before: Totals, after: Totals) -> Rates:
    """Compute the change per second."""
    seconds = max(after.time_s - before.time_s, 0.001)
    pairs = zip(before[1:], after[1:], strict=True)
    return Rates(*(max(0.0, (new - old) / seconds) for old, new in pairs))


def latency_of(api: str, histogram: Histogram) -> Latency:
    """Compute the bounds of an API's times from its buckets, which end at powers of two."""
    return Latency(api, histogram.count, quantile_ms(histogram, 0.5), quantile_ms(histogram, 0.99))


def quantile_ms(histogram: Histogram, share: float) -> float:
    """Return the upper bound in ms of the bucket with the quantile ``share``; 0 without values."""
    wanted, seen = histogram.count * share, 0
    for power, count in enumerate(histogram.buckets):
        seen += count
        if count and seen >= wanted:
            return (1 << power) / 1000
    return 0.0


def take_totals(broker: Broker) -> Totals:
    """Read the counters. Loop thread."""
    metrics = broker.metrics
    timed = sum(histogram.count for _, histogram in metrics.histograms(REQUEST_TIMES))
    return Totals(
        broker.time.monotonic_ms() / 1000, metrics.bytes_in.count, metrics.bytes_out.count, metrics.messages_in.count,
        timed,
    )  # fmt: skip


def take_latencies(broker: Broker) -> list[Latency]:
    """Read the times of all APIs, those with most requests first. Loop thread."""
    found = [latency_of(labels["request"], one) for labels, one in broker.metrics.histograms(REQUEST_TIMES)]
    return sorted(found, key=lambda latency: -latency.timed)


class Sampler:
    """A task that takes samples while pages are requested. Loop thread only."""

    def __init__(self, broker: Broker, history: History) -> None:
        self._broker = broker
        self._history = history
        self._task: asyncio.Task[None] | None = None
        self._watched_until_s = 0.0

    def watch(self) -> None:
        """Take samples for the next UNWATCHED_S seconds, because a page is requested."""
        self._watched_until_s = self._now_s() + UNWATCHED_S
        if self._task is None or self._task.done():
            self._task = self._broker.loop.create_task(self._run())

    async def close(self) -> None:
        """Stop taking samples."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while self._now_s() < self._watched_until_s:
            await self.take()
            await asyncio.sleep(INTERVAL_S)

    async def take(self) -> None:
        """Take one sample."""
        broker = self._broker
        self._history.add_totals(take_totals(broker))
        commits, partitions = group_commits(broker), list(broker.replica_manager.known_partitions())
        found = await broker.loop.run_in_executor(None, lambda: list(lag_samples(commits, partitions)))
        self._history.add_lags(group_lags(found), partial_groups(commits, found))

    def _now_s(self) -> float:
        return self._broker.time.monotonic_ms() / 1000


def group_lags(samples: Iterable[Sample]) -> dict[str, int]:
    """Sum the lags of each group's partitions."""
    lags: dict[str, int] = {}
    for sample in samples:
        group = sample.labels["group"]
        lags[group] = lags.get(group, 0) + int(sample.value)
    return lags


def partial_groups(commits: Iterable[Commits], samples: Iterable[Sample]) -> set[str]:
    """Find the groups with committed offsets of partitions without a sample.

    Such a partition has no replica here, its log has not been used since the start, or ``group_commits`` left it out.
    """
    missing: Counter[str] = Counter()
    for one in commits:
        missing[one.group] += len(one.partitions) + one.has_more
    missing.subtract(sample.labels["group"] for sample in samples)
    return {group for group, count in missing.items() if count}
