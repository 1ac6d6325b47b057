"""Samples of the last minutes: rates, lags, latencies, and the limits of their number."""

from __future__ import annotations

from tidelog.broker.admin.prometheus import Commits
from tidelog.broker.coordinator.group.offsets import OffsetAndMetadata
from tidelog.broker.metrics.registry import Histogram, Sample
from tidelog.console.history import (
    KEPT,
    MAX_GROUPS,
    History,
    Latency,
    Rates,
    Totals,
    group_lags,
    latency_of,
    partial_groups,
)

OFFSET = OffsetAndMetadata(0, 0, -1, "", 0, -1)


def test_rates_are_changes_by_the_second() -> None:
    history = History()
    for totals in (Totals(10, 0, 0, 0, 0), Totals(12, 200, 100, 4, 2), Totals(14, 200, 100, 4, 4)):
        history.add_totals(totals)
    assert history.rates() == [Rates(100, 50, 2, 1), Rates(0, 0, 0, 1)]


def test_a_group_that_is_gone_is_forgotten_and_lags_are_bounded() -> None:
    history = History()
    for lag in range(KEPT + 10):
        history.add_lags({"a": lag, "b": 1})
    history.add_lags({"a": 7})
    assert len(history.lags("a")) == KEPT
    assert history.lags("a")[-1] == 7
    assert history.lags("b") == []
    history.add_lags({f"group-{number}": 1 for number in range(2 * MAX_GROUPS)})
    assert sum(bool(history.lags(f"group-{number}")) for number in range(2 * MAX_GROUPS)) == MAX_GROUPS


def test_lags_of_a_groups_partitions_are_summed() -> None:
    samples = [Sample("lag", "gauge", {"group": group}, lag) for group, lag in [("a", 1), ("b", 5), ("a", 2)]]
    assert group_lags(samples) == {"a": 3, "b": 5}


def test_a_group_with_partitions_that_are_not_known_here_is_partial() -> None:
    commits = [
        Commits("a", "t", {0: OFFSET, 1: OFFSET}),
        Commits("b", "t", {0: OFFSET}),
        Commits("b", "u", {4: OFFSET}),
    ]
    samples = [Sample("lag", "gauge", {"group": group}, 1) for group in ("a", "b", "b")]
    assert partial_groups(commits, samples) == {"a"}
    history = History()
    history.add_lags(group_lags(samples), partial_groups(commits, samples))
    assert (history.is_partial("a"), history.is_partial("b")) == (True, False)
    history.add_lags({"a": 1})
    assert not history.is_partial("a")


def test_a_group_of_which_offsets_were_left_out_is_partial() -> None:
    commits = [Commits("a", "t", {0: OFFSET}), Commits("b", "t", {0: OFFSET}, has_more=True)]
    samples = [Sample("lag", "gauge", {"group": group}, 1) for group in ("a", "b")]
    assert partial_groups(commits, samples) == {"b"}


def test_latencies_are_bounds_of_buckets() -> None:
    histogram = Histogram()
    for microseconds in [100] * 98 + [10_000] * 2:
        histogram.record(microseconds)
    assert latency_of("Fetch", histogram) == Latency("Fetch", 100, 0.128, 16.384)
    assert latency_of("Fetch", Histogram()) == Latency("Fetch", 0, 0.0, 0.0)
