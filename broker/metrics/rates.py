"""Rates over the samples of a window, as quotas measure them. Times are milliseconds of the monotonic clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """Window of a rate: ``samples`` samples of ``sample_ms`` milliseconds each."""

    samples: int
    sample_ms: int

    @property
    def length_ms(self) -> int:
        return self.samples * self.sample_ms


class _Sample:
    """Usage that was counted from ``start_ms`` to ``last_ms``."""

    __slots__ = ("last_ms", "start_ms", "value")

    def __init__(self, now_ms: float) -> None:
        self.start_ms = self.last_ms = now_ms
        self.value = 0.0


class Rate:
    """Usage per second, over the samples of a window. A sample that overlaps the window's beginning counts in full."""

    __slots__ = ("_samples", "_window", "limit")

    def __init__(self, window: Window, limit: float) -> None:
        self._window = window
        self._samples: deque[_Sample] = deque(maxlen=window.samples + 1)
        self.limit = limit

    def record(self, value: float, now_ms: float) -> None:
        """Count ``value`` as used now: bytes, connections, or hundredths of a second of the loop's thread."""
        samples = self._samples
        if not samples or now_ms - samples[-1].start_ms >= self._window.sample_ms:
            samples.append(_Sample(now_ms))
        samples[-1].value += value
        samples[-1].last_ms = now_ms

    def wait_ms(self, now_ms: float) -> float:
        """Return Kafka's throttle time: (rate - limit) / limit * window; 0 if the rate is not above the limit.

        Without use the rate is then back at the limit, unless the window is not full yet: then it may still be above.
        """
        total = self.total(now_ms)
        elapsed_ms = now_ms - self._samples[0].start_ms if self._samples else 0.0
        # The window counts as at least samples - 1 full samples long: a rate over its first moments would be far too
        # high.
        missing = max(self._window.samples - 1 - int(elapsed_ms // self._window.sample_ms), 0)
        window_ms = max(elapsed_ms + missing * self._window.sample_ms, 1.0)
        rate = total / window_ms * 1000
        return (rate - self.limit) / self.limit * window_ms if rate > self.limit else 0.0

    def per_second(self, now_ms: float) -> float:
        """Return the usage per second since the window's first sample began; less time than one sample's length counts
        as that length."""
        total = self.total(now_ms)
        elapsed_ms = now_ms - self._samples[0].start_ms if self._samples else 0.0
        return total / max(elapsed_ms, self._window.sample_ms) * 1000

    def total(self, now_ms: float) -> float:
        """Return the usage in the window."""
        samples = self._samples
        while samples and now_ms - samples[0].last_ms >= self._window.length_ms:
            samples.popleft()
        return sum(sample.value for sample in samples)

    def is_idle(self, now_ms: float) -> bool:
        """Return whether nothing was used in the window, so that a new rate could replace this one."""
        return not self.total(now_ms)
