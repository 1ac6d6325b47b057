"""Brokers of a failed test, whose output is shown beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.rivals.process import BrokerProcess


def brokers_of(values: Iterable[object]) -> Iterator[BrokerProcess]:
    """Yield the brokers among a test's arguments, and those that clusters of the tests have as attributes.

    Only types are looked at: a stand-in of a library may raise when it is asked for anything else.
    """
    for value in values:
        is_ours = type(value).__module__.startswith("tests.")
        held = [value, *vars(value).values()] if is_ours and hasattr(value, "__dict__") else [value]
        yield from (one for one in held if issubclass(type(one), BrokerProcess))  # type: ignore[misc]
