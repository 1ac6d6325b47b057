"""Parsed schema: its canonical text, and the model for the rules of compatibility."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

MAX_DEPTH = 200
"""Largest number of levels of lists and objects in a schema: the parsers recurse, and Python's limit is 1,000 calls."""


class InvalidSchemaError(Exception):
    """A text that is not a schema of its type."""


class Source(NamedTuple):
    """A schema's text, and the texts of all that it refers to, each after those it refers to itself."""

    schema_type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    """Names with texts, as they are stored."""


@dataclass(frozen=True, slots=True)
class ParsedSchema:
    """A valid schema. Any thread."""

    source: Source
    canonical: str
    """The text that is stored."""
    identity: str
    """A key that equal schemas share."""
    model: Mapping[str, Any]
    """The parsed schema, as the format's rules of compatibility read it; never changed."""
    normalized: str
    """The text that is stored with ``normalize``: equal for schemas that differ only in an order without meaning."""


def parse_json(text: str) -> Any:
    """Parse JSON of a bounded depth. Raises InvalidSchemaError."""
    try:
        found = json.loads(text, parse_float=_finite_number, parse_constant=_finite_number)
    except RecursionError:
        raise InvalidSchemaError("it is nested too deeply") from None
    except ValueError as error:
        raise InvalidSchemaError(f"it is not JSON: {error}") from None
    check_depth(found)
    return found


def _finite_number(text: str) -> float:
    """Read a number. Raises ValueError for NaN, for an infinity, and for a number that a float cannot hold."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:50]} cannot be stored")
    return number


def check_depth(value: Any) -> None:
    """Raise InvalidSchemaError for more than MAX_DEPTH levels."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [one for each in level for one in _inner(each)]
        if not level:
            return
    raise InvalidSchemaError(f"it is nested more than {MAX_DEPTH} levels deep")


def _inner(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def compact(value: Any, *, is_sorted: bool = False) -> str:
    """Write JSON without spaces, with names in their own order or in alphabetical order."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=is_sorted)
