"""Exceptions to the rule that the loop's thread opens no log, which ``tidelog.broker.loop.thread_rule`` checks.

They are in a module of their own, because ``thread_rule`` imports much and is needed in debug mode only. Loop thread
only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

expected = 0
"""Number of ``opening_expected`` contexts that are open."""


@contextmanager
def opening_expected() -> Iterator[None]:
    """Let the loop open or create a log within this context: for callers that cannot wait for a thread."""
    global expected
    expected += 1
    try:
        yield
    finally:
        expected -= 1
