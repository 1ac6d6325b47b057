"""Collection of tests with the garbage collector off, and collected tests that later garbage collections skip.

Fifteen thousand tests and their modules are some millions of objects that live to the end. The collector would go
through them again and again: while they are created, and in tests that create many objects. Frozen objects do not count
for the collector. It would then think that there are few, and run a full collection after each hundred tests. So its
thresholds are higher.
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
    """No garbage collection in the block, for code that creates very many objects and drops few."""
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
        gc.freeze()  # before it is enabled: it would begin with all that was made meanwhile
    gc.set_threshold(*THRESHOLDS)
    return result
