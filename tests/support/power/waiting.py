"""A wait for a condition, with a limit that only a hang reaches."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 60.0


def wait_until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Wait until ``condition()`` is true. Raises AssertionError if it is not within ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not true within {limit_s} s"
        time.sleep(0.005)
