"""Handlers' responses for tests that call handlers themselves: steps are done here and now."""

from __future__ import annotations

from types import GeneratorType
from typing import Any


def response_of(handled: Any) -> Any:
    """Return a handler's response, after its steps if it has any; they must have nothing to wait for."""
    if handled.__class__ is not GeneratorType:
        return handled
    while True:
        try:
            waiting = next(handled)
        except StopIteration as end:
            return end.value
        assert waiting is None or waiting.done, "these steps wait for something"
