"""Waits for a state, with a limit that only a hang reaches."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 60.0


def wait_until(is_so: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Return once ``is_so()`` is true. Raises AssertionError when it never is."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
