"""Durations of requests, by API: from the turn in which they arrived to the end of the turn that answered them.

Answers of a turn of the loop leave together at its end, so a request that is answered in its turn takes as long as the
turn. Such turns are sampled: only those are recorded that begin when the turn clock reads the CPU clock anyway, at most
one a millisecond. A turn that receives into the connection's own reader, as for a frame in parts, is not recorded.
Answers that come in a later turn (a long poll, a sync, work in steps) are all recorded as they come, with their wait,
as in Kafka's ``TotalTimeMs``. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.broker.metrics.registry import Histogram
from tidelog.protocol.api_keys import ApiKey

NAME = "kafka_network_requestmetrics_totaltime_seconds"


class RequestTimes:
    """One histogram of microseconds for each API."""

    __slots__ = ("_histogram", "_of_api")

    def __init__(self, histogram: Callable[..., Histogram]) -> None:
        self._histogram = histogram
        self._of_api: dict[int, Histogram] = {}

    def record(self, api_key: int, milliseconds: float) -> None:
        """Record the duration of one request. A negative key stands for no request, and nothing is recorded."""
        if api_key < 0:
            return
        found = self._of_api.get(api_key)
        if found is None:
            name = "".join(word.capitalize() for word in ApiKey(api_key).name.split("_"))
            found = self._of_api[api_key] = self._histogram(NAME, request=name)
        found.record(max(0, int(milliseconds * 1000)))
