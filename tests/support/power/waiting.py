"""A wait for a condition, with a limit that only a hang reaches."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 60.0


def wait_until(is_so: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Wait until ``is_so()`` is true. Raises AssertionError if it is not within ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
