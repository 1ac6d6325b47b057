"""Collection of tests without the garbage collector: it rests meanwhile, and passes them over later.

Fifteen thousand tests and their modules are some millions of objects that live to the end. The collector would go
through them again and again: while they are made, and in tests that make many objects of their own.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest


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
    """Collect the tests without the garbage collector, which passes them over later."""
    with no_garbage_collection():
        result = yield
    gc.freeze()
    return result
