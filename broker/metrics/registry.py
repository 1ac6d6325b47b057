"""Counters, gauges and histograms with Kafka's names, in plain Python: counting is one integer addition.

A hot path holds its :class:`Counter` and writes ``counter.count += n``. Gauges are functions that are called only when
metrics are read. A histogram of times has power-of-two buckets: recording is one ``bit_length`` and one list addition.

Names follow Kafka's MBeans in short form: ``BytesInPerSec`` is the counter
``kafka_server_brokertopicmetrics_bytesin_total``. An exporter (``/metrics``) walks :meth:`Metrics.collect` on the
loop, and :meth:`Metrics.collect_shared` in a worker, for metrics that take time for each log or index. Loop thread
only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

MICROSECONDS = 1_000_000
_BUCKETS = 64
_FIRST_SHOWN, _LAST_SHOWN = 7, 25
"""Exponents of the smallest and the largest bucket bound that are exported: 128 µs and 34 s."""


class Sample(NamedTuple):
    """One value to export. ``kind`` is ``counter``, ``gauge`` or ``histogram``."""

    name: str
    kind: str
    labels: Mapping[str, str]
    value: float


class Counter:
    """A number that only grows; add to ``count`` directly."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Histogram:
    """Counts of times in microseconds, in power-of-two buckets: bucket ``i`` counts the times below ``2**i`` that no
    lower bucket counts."""

    __slots__ = ("buckets", "count", "total")

    def __init__(self) -> None:
        self.buckets = [0] * _BUCKETS
        self.count = 0
        self.total = 0

    def record(self, value: int) -> None:
        """Add a non-negative number of microseconds."""
        self.buckets[min(value.bit_length(), _BUCKETS - 1)] += 1
        self.count += 1
        self.total += value

    def bounds(self) -> Iterator[tuple[str, int]]:
        """Yield upper bounds in seconds, as Prometheus writes them, each with the count of values below it."""
        seen = sum(self.buckets[:_FIRST_SHOWN])
        for power in range(_FIRST_SHOWN, _LAST_SHOWN + 1):
            seen += self.buckets[power]
            yield repr((1 << power) / MICROSECONDS), seen
        yield "+Inf", self.count


class Metrics:
    """All metrics of one broker, by name and labels."""

    __slots__ = (
        "_counters",
        "_gauges",
        "_histograms",
        "_shared_sources",
        "_sources",
        "bytes_in",
        "bytes_out",
        "messages_in",
    )

    def __init__(self) -> None:
        self._counters: dict[tuple[str, tuple[tuple[str, str], ...]], Counter] = {}
        self._histograms: dict[tuple[str, tuple[tuple[str, str], ...]], Histogram] = {}
        self._gauges: dict[tuple[str, tuple[tuple[str, str], ...]], Callable[[], float]] = {}
        self._sources: list[Callable[[], Iterable[Sample]]] = []
        self._shared_sources: list[Callable[[], Iterable[Sample]]] = []
        self.bytes_in = self.counter("kafka_server_brokertopicmetrics_bytesin_total")
        self.bytes_out = self.counter("kafka_server_brokertopicmetrics_bytesout_total")
        self.messages_in = self.counter("kafka_server_brokertopicmetrics_messagesin_total")

    def counter(self, name: str, **labels: str) -> Counter:
        """Return the counter of that name and labels, the same object each time."""
        return self._counters.setdefault((name, tuple(sorted(labels.items()))), Counter())

    def histogram(self, name: str, **labels: str) -> Histogram:
        """Return the histogram of that name and labels, the same object each time."""
        return self._histograms.setdefault((name, tuple(sorted(labels.items()))), Histogram())

    def histograms(self, name: str) -> list[tuple[Mapping[str, str], Histogram]]:
        """Return all histograms of that name, each with its labels."""
        return [(dict(labels), one) for (other, labels), one in self._histograms.items() if other == name]

    def add_gauge(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Add a gauge, whose value is ``read()`` whenever metrics are collected. Replaces one of the same name and
        labels."""
        self._gauges[name, tuple(sorted(labels.items()))] = read

    def add_source(self, read: Callable[[], Iterable[Sample]]) -> None:
        """Add a function that yields samples whenever metrics are collected, for labels that are only known then."""
        self._sources.append(read)

    def add_shared_source(self, read: Callable[[], Iterable[Sample]]) -> None:
        """Add a function that yields samples, as ``add_source`` does, but for calls by any thread."""
        self._shared_sources.append(read)

    def collect_shared(self) -> Iterator[Sample]:
        """Yield all samples of the shared sources. Any thread; with many logs it is too slow for the loop."""
        for read_all in list(self._shared_sources):
            yield from read_all()

    def collect(self) -> Iterator[Sample]:
        """Yield all samples that ``collect_shared`` does not; for a histogram its buckets, count and sum, in
        seconds."""
        for (name, labels), counter in self._counters.items():
            yield Sample(name, "counter", dict(labels), counter.count)
        for (name, labels), read in self._gauges.items():
            yield Sample(name, "gauge", dict(labels), read())
        for (name, labels), histogram in self._histograms.items():
            for bound, count in histogram.bounds():
                yield Sample(f"{name}_bucket", "histogram", {**dict(labels), "le": bound}, count)
            yield Sample(f"{name}_count", "histogram", dict(labels), histogram.count)
            yield Sample(f"{name}_sum", "histogram", dict(labels), histogram.total / MICROSECONDS)
        for read_all in self._sources:
            yield from read_all()
