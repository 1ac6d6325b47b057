"""Bounds of the columns that a schema describes: how many fields, and how deep within each other.

A schema names types, so a short text may stand for columns without end: thirty records that have the next one twice are
2^30 fields. Arrow itself reads a schema back to a depth of 64 only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidelog.pipeline.job_errors import BadRequestError

MOST_FIELDS, MOST_DEPTH = 10_000, 50


class ColumnBounds:
    """A count of a schema's fields and types while its columns are built. ``what``: the schema in errors."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._fields = self._depth = 0

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Count a type, and what is built inside as one level deeper. Raises BadRequestError for too many."""
        self._fields += 1
        self._depth += 1
        if self._fields > MOST_FIELDS or self._depth > MOST_DEPTH:
            raise BadRequestError(
                f"{self._what}: it describes over {MOST_FIELDS} columns, or some over {MOST_DEPTH} deep, where each "
                "name of a type stands for its fields"
            )
        yield
        self._depth -= 1
