from __future__ import annotations

import pytest

from tidelog.broker.metrics.registry import Histogram, Metrics, Sample


def test_counters_of_one_name_are_one_object() -> None:
    metrics = Metrics()
    metrics.counter("a", topic="t").count += 2
    metrics.counter("a", topic="t").count += 3
    assert Sample("a", "counter", {"topic": "t"}, 5) in list(metrics.collect())


def test_gauges_are_asked_when_collected() -> None:
    metrics = Metrics()
    values = [1.0, 2.0]
    metrics.add_gauge("g", lambda: values.pop(0))
    assert [sample.value for _ in range(2) for sample in metrics.collect() if sample.name == "g"] == [1.0, 2.0]


def test_shared_sources_are_collected_apart_from_those_of_the_loop() -> None:
    metrics = Metrics()
    shared = Sample("s", "gauge", {}, 1)
    metrics.add_shared_source(lambda: [shared])
    assert list(metrics.collect_shared()) == [shared]
    assert shared not in list(metrics.collect())


def bounds(*values: int) -> dict[str, int]:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return dict(histogram.bounds())


@pytest.mark.parametrize("value", [0, 1, 127, 128, 129, 1_000_000, 2**25, 2**25 + 1, 2**80])
def test_a_value_is_counted_from_the_first_bound_that_is_not_below_it(value: int) -> None:
    """The first bound that counts a value is at most twice the value."""
    found = bounds(value)
    counted = [float(bound) for bound, count in found.items() if count]
    assert list(found.values()) == sorted(found.values()), "buckets are cumulative"
    assert found["+Inf"] == 1
    assert min(counted) * 1_000_000 >= value
    if 128 <= value < 2**25:
        assert min(counted) * 1_000_000 <= 2 * value


def test_histograms_are_collected_in_seconds() -> None:
    metrics = Metrics()
    for microseconds in (500, 2_000_000):
        metrics.histogram("h", request="Fetch").record(microseconds)
    samples = {
        (sample.name, sample.labels.get("le")): sample.value
        for sample in metrics.collect()
        if sample.kind == "histogram"
    }
    assert samples["h_count", None] == 2
    assert samples["h_sum", None] == 2.0005
    assert samples["h_bucket", "0.000512"] == 1
    assert samples["h_bucket", "+Inf"] == 2
