"""Latency histograms as the load client prints them: log-linear, 128 buckets for each power of two of nanoseconds.

Buckets below 128 ns hold one value each; bucket ``(k + 1) * 128 + j`` holds the values from ``(128 + j) << k`` up to
the beginning of the next bucket. ``benchmarks/loadgen/histogram.h`` counts by the same rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

SUB_BITS = 7
SUB_BUCKETS = 1 << SUB_BITS


def bucket_of(ns: int) -> int:
    """Return the bucket that counts a latency of ``ns`` nanoseconds."""
    if ns < SUB_BUCKETS:
        return ns
    shift = ns.bit_length() - 1 - SUB_BITS
    return (shift + 1) * SUB_BUCKETS + (ns >> shift) - SUB_BUCKETS


def highest_ns(bucket: int) -> int:
    """Return the largest latency in nanoseconds that a bucket counts."""
    if bucket < SUB_BUCKETS:
        return bucket
    shift = bucket // SUB_BUCKETS - 1
    return ((SUB_BUCKETS + bucket % SUB_BUCKETS + 1) << shift) - 1


@dataclass(slots=True)
class Histogram:
    """Counts of latencies by bucket."""

    buckets: Counter[int] = field(default_factory=Counter)

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[int, int]]) -> Histogram:
        """Build a histogram from ``(bucket, count)`` pairs."""
        histogram = cls()
        for bucket, count in pairs:
            histogram.buckets[bucket] += count
        return histogram

    def record(self, ns: int) -> None:
        """Count one latency."""
        self.buckets[bucket_of(ns)] += 1

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram."""
        self.buckets.update(other.buckets)

    @property
    def count(self) -> int:
        """Number of latencies counted."""
        return self.buckets.total()

    def percentile_us(self, percent: float) -> float:
        """Find the smallest latency in microseconds that ``percent`` of all values do not exceed; 0 in an empty
        histogram.

        It is the upper bound of its bucket: never too low, and at most 0.8 % too high.
        """
        wanted = max(1, -(-self.count * percent // 100))
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                return highest_ns(bucket) / 1000
        return 0.0
