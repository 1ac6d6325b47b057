"""Expected openings of logs by the loop's thread, which ``tidelog.broker.loop.thread_rule`` lets pass.

A module of its own: the check imports much, and runs in debug mode alone. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

expected = 0
"""How many ``opening_expected`` the loop is within."""


@contextmanager
def opening_expected() -> Iterator[None]:
    """Let the loop open or make a log within this context, where a request cannot wait for a thread yet."""
    global expected
    expected += 1
    try:
        yield
    finally:
        expected -= 1
