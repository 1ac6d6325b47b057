"""Trace functions for tests, which see the lines that a block runs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def traced(look: Callable[[FrameType, str, Any], Any]) -> Iterator[None]:
    """Trace this thread by ``sys.settrace`` inside the block.

    Meanwhile no garbage is collected: generators of earlier tests may be part of it, whose lines would be seen when
    they are closed.
    """
    before = sys.gettrace()
    gc.disable()
    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)
        gc.enable()
