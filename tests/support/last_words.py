"""Brokers of a failed test, whose output is shown beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.rivals.process import BrokerProcess


def brokers_of(values: Iterable[object]) -> Iterator[BrokerProcess]:
    """Yield the brokers among a test's arguments, and those that clusters among them have as attributes."""
    for value in values:
        held = [value] if isinstance(value, BrokerProcess) else list(getattr(value, "__dict__", {}).values())
        yield from (one for one in held if isinstance(one, BrokerProcess))
