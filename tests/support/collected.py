"""Collection of tests without the garbage collector: it rests meanwhile, and passes them over later.

Fifteen thousand tests and their modules are some millions of objects that live to the end. The collector would go
through them again and again: while they are made, and in tests that make many objects of their own. Once these are out
of its sight it takes so few for many, and would look at all others after each hundred tests: it comes more rarely.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

THRESHOLDS = (10_000, 10, 50)
"""New objects of a small collection, small ones of a middle one, middle ones of a full one. With Python's own (700, 10,
10) a tenth of the CPU time of unit tests was the collector's."""


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Inside, circles of dropped objects stay: for those who make very many objects and drop few."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Collect the tests without the garbage collector, which passes them over later and comes rarely."""
    with no_garbage_collection():
        result = yield
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    return result
