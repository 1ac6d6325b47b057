from __future__ import annotations

from tidelog.broker.metrics.registry import Histogram, Metrics, Sample


def test_counters_of_one_name_are_one_object() -> None:
    metrics = Metrics()
    metrics.counter("a", topic="t").count += 2
    metrics.counter("a", topic="t").count += 3
    assert Sample("a", "counter", {"topic": "t"}, 5) in list(metrics.collect())


def test_gauges_are_asked_when_collected() -> None:
    metrics = Metrics()
    values = [1.0, 2.0]
    metrics.gauge("g", lambda: values.pop(0))
    assert [sample.value for _ in range(2) for sample in metrics.collect() if sample.name == "g"] == [1.0, 2.0]


def test_shared_sources_are_asked_apart_from_what_is_the_loops() -> None:
    metrics = Metrics()
    shared = Sample("s", "gauge", {}, 1)
    metrics.shared_source(lambda: [shared])
    assert list(metrics.collect_shared()) == [shared]
    assert shared not in list(metrics.collect())


def test_a_histogram_bounds_its_quantiles() -> None:
    histogram = Histogram()
    for value in [1] * 99 + [1000]:
        histogram.record(value)
    assert histogram.quantile(0.5) == 1
    assert 1000 <= histogram.quantile(1.0) < 2048
    assert Histogram().quantile(0.5) == 0


def test_histograms_are_collected_as_count_sum_and_quantiles() -> None:
    metrics = Metrics()
    metrics.histogram("h").record(7)
    samples = {
        (sample.name, sample.labels.get("quantile")): sample.value
        for sample in metrics.collect()
        if sample.kind == "histogram"
    }
    assert samples == {("h_count", None): 1, ("h_sum", None): 7, ("h", "0.5"): 7, ("h", "0.99"): 7, ("h", "0.999"): 7}
