"""The histogram: bucket bounds, percentiles, merging."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.histogram import Histogram, bucket_of, highest_ns


@given(st.integers(0, 2**50))
def test_value_lies_in_its_bucket(ns: int) -> None:
    bucket = bucket_of(ns)
    below = highest_ns(bucket - 1) if bucket else -1
    assert below < ns <= highest_ns(bucket)


@given(st.integers(128, 2**50))
def test_bucket_bound_is_within_one_percent(ns: int) -> None:
    assert highest_ns(bucket_of(ns)) <= ns * 1.008


def test_percentile_is_the_value_of_the_nearest_rank() -> None:
    histogram = Histogram()
    for ns in range(1, 101):
        histogram.record(ns)
    assert [histogram.percentile_us(percent) * 1000 for percent in (1, 50, 99, 100)] == [1, 50, 99, 100]


def test_percentile_of_one_value_is_that_value() -> None:
    histogram = Histogram.from_pairs([(100, 1)])
    assert histogram.percentile_us(0) == histogram.percentile_us(99.9) == 0.1


def test_empty_histogram_has_percentile_zero() -> None:
    assert Histogram().percentile_us(99) == 0.0


def test_merge_adds_counts() -> None:
    histogram = Histogram.from_pairs([(5, 2), (7, 1)])
    histogram.merge(Histogram.from_pairs([(7, 3)]))
    assert histogram.count == 6
    assert histogram.percentile_us(100) == 0.007
