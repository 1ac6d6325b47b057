"""Bounds of a verdict of incompatibility: hostile schemas differ in many places, with long names."""

from __future__ import annotations

MAX_FAULTS = 100
"""Largest number of reasons that one comparison of two types returns."""
MAX_CHARACTERS = 500
"""Largest number of characters of a path or a description in a reason; the rest is cut off."""
TOO_COMPLEX = "{errorType:'TOO_COMPLEX_TO_COMPARE', path:'#'}"
"""The only reason of a comparison that was given up."""
NOT_READABLE = "{errorType:'REGISTERED_SCHEMA_NOT_READABLE', path:'#'}"
"""The only reason if this registry refuses the registered schema, which another one wrote into the topic."""


class TooComplexError(Exception):
    """A comparison that takes too long and is given up: combinations and unions multiply its work."""


def cut(text: str) -> str:
    """Return the text, without its end if it is too long."""
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."
