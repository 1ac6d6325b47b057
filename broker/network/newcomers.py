"""Connections that are not authenticated yet: how many there may be, and how long a failed login waits for its answer.

The oldest of them is closed when there are more than ``max.unauthenticated.connections``. The oldest of an address is
closed when it has more than ``max.unauthenticated.connections.per.ip``; for IPv6, a /64 network counts as one address.
A client that can log in has usually done so before it is the oldest. Only brokers with a SASL listener, an admin
interface or a schema registry import this module. Loop thread only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple, Protocol

from tidelog.broker.security.client_address import source_of

MAX_ADDRESSES = 10_000
"""Largest number of addresses whose failed logins are counted; then the address that failed longest ago is dropped."""
MAX_DELAY_MS = 5_000
"""Longest delay of the answer to a failed login, unless the usual delay is longer."""
_WINDOW_MS = 1_000


class Newcomer(Protocol):
    """A connection that is not authenticated yet."""

    host: str

    def give_way(self) -> None:
        """Close the connection, which then drops itself from the newcomers."""
        ...


class Newcomers:
    """Connections of a broker that are not authenticated yet, the oldest first."""

    def __init__(self, read_limit: Callable[[], int], read_limit_per_host: Callable[[], int]) -> None:
        self._read_limit = read_limit
        self._read_limit_per_host = read_limit_per_host
        self._all: dict[Newcomer, str] = {}
        """Each connection with the address under which it is counted."""
        self._per_host: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, newcomer: Newcomer) -> None:
        """Add a connection; if that is one too many, the oldest has to give way."""
        source = self._all[newcomer] = source_of(newcomer.host)
        self._per_host[source] += 1
        if self._per_host[source] > self._read_limit_per_host():
            next(other for other, its in self._all.items() if its == source).give_way()
        elif len(self._all) > self._read_limit():
            next(iter(self._all)).give_way()

    def drop(self, newcomer: Newcomer) -> None:
        """Drop a connection that has authenticated, or closed."""
        source = self._all.pop(newcomer, None)
        if source is not None:
            self._per_host[source] -= 1
            if not self._per_host[source]:
                del self._per_host[source]


class _Failures(NamedTuple):
    """Failed logins of one address that still count: each second after ``since_ms`` takes ``rate`` of them away."""

    since_ms: float
    number: int


class FailedLogins:
    """Counter of failed logins by address: each one beyond ``rate`` a second doubles the delay of the answer, up to
    MAX_DELAY_MS.
    """

    def __init__(self, rate: Callable[[], int], monotonic_ms: Callable[[], float]) -> None:
        self._rate = rate
        self._monotonic_ms = monotonic_ms
        self._by_source: dict[str, _Failures] = {}

    def __len__(self) -> int:
        return len(self._by_source)

    def delay_ms(self, host: str, usual_ms: float) -> float:
        """Count a failure; return the milliseconds that its answer has to wait."""
        source, now = source_of(host), self._monotonic_ms()
        before = self._by_source.pop(source, _Failures(now, 0))
        fading = int((now - before.since_ms) // _WINDOW_MS) * self._rate()
        failures = _Failures(now if fading else before.since_ms, max(before.number - fading, 0) + 1)
        self._by_source[source] = failures
        if len(self._by_source) > MAX_ADDRESSES:
            for oldest in list(islice(self._by_source, len(self._by_source) - MAX_ADDRESSES)):
                del self._by_source[oldest]
        doublings = max(0, min(failures.number - self._rate(), 16))
        return min(usual_ms * (1 << doublings), max(usual_ms, MAX_DELAY_MS))
