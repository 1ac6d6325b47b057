"""Expected openings of logs by the loop's thread, which ``tidelog.broker.loop.thread_rule`` lets pass.

A module of its own, because the check imports much and stands in the debug mode alone. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

expected = 0
"""How many of them the loop is within."""


@contextmanager
def opening_expected() -> Iterator[None]:
    """Within this the loop may open or make a log: where a request cannot wait for a thread yet."""
    global expected
    expected += 1
    try:
        yield
    finally:
        expected -= 1
