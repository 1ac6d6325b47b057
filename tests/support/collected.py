"""Hooks that collect tests with the garbage collector off, and freeze them, so that later collections skip them.

Fifteen thousand tests and their modules are some millions of objects that live until the process ends. The collector
would traverse them again and again: while they are created, and in tests that create many objects. It does not count
frozen objects, so a full collection would seem cheap to it and run after each hundred tests: its thresholds are raised.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

THRESHOLDS = (10_000, 10, 50)
"""Thresholds of the three generations. With Python's own (700, 10, 10) the collector took a tenth of the CPU time of
unit tests."""


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A block without garbage collection, for code that creates very many objects and drops few."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Collect the tests with the garbage collector off; then freeze them, and raise the thresholds."""
    with no_garbage_collection():
        result = yield
        gc.freeze()  # before the collector is enabled: it would begin with a collection of all these objects
    gc.set_threshold(*THRESHOLDS)
    return result
