"""The brokers of a failed test, whose output is shown with its failure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.rivals.process import BrokerProcess


def brokers_of(values: Iterable[object]) -> Iterator[BrokerProcess]:
    """Yield the brokers among a test's arguments, and those in attributes of arguments whose class is in ``tests``.

    Brokers are recognized by their type alone: other objects, such as mocks, may raise when an attribute is read.
    """
    for value in values:
        is_ours = type(value).__module__.startswith("tests.")
        held = [value, *vars(value).values()] if is_ours and hasattr(value, "__dict__") else [value]
        yield from (one for one in held if issubclass(type(one), BrokerProcess))  # type: ignore[misc]
