"""Limits of the columns that a schema describes: the number of fields, and the depth to which they are nested.

A schema refers to types by name, so a short text may describe any number of columns: thirty records, each with two
fields of the next one, have 2^30 fields. Arrow itself reads a schema back only to a depth of 64.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidelog.pipeline.job_errors import BadRequestError

MAX_FIELDS, MAX_DEPTH = 10_000, 50


class ColumnBounds:
    """A count of a schema's fields and types while its columns are built. ``what``: the schema in errors."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._fields = self._depth = 0

    @contextmanager
    def count_type(self) -> Iterator[None]:
        """Count a type; types that are counted inside ``with`` are one level deeper. Raises BadRequestError beyond a
        limit."""
        self._fields += 1
        self._depth += 1
        if self._fields > MAX_FIELDS or self._depth > MAX_DEPTH:
            raise BadRequestError(
                f"{self._what}: with the fields of all types that it names, it has over {MAX_FIELDS} columns or is "
                f"over {MAX_DEPTH} levels deep"
            )
        yield
        self._depth -= 1
