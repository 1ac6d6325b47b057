"""Limits of the columns that a schema describes: their number, and the levels to which they are nested.

Each field of a record is a column, counted again wherever the record's type is named. A schema refers to types by
name, so a short text may describe any number of columns: thirty records, each with two fields of the next one, have
2^30. The fields of a record, the elements of a list, and the keys and values of a map are one level below it. Arrow
reads no Parquet file in which over 49 lists or maps are nested.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidelog.pipeline.job_errors import BadRequestError

MAX_COLUMNS, MAX_LEVELS = 10_000, 50


class ColumnBounds:
    """A count of a schema's columns and levels while its Arrow type is built. ``what``: the schema in errors."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._columns = self._level = 0

    @contextmanager
    def count_column(self) -> Iterator[None]:
        """Count a field of a record as a column; its type is built inside ``with``. Raises BadRequestError beyond a
        limit."""
        self._columns += 1
        if self._columns > MAX_COLUMNS:
            raise BadRequestError(
                f"{self._what}: it has over {MAX_COLUMNS} columns, with the fields of records inside it, counted at "
                "each place that names their type"
            )
        with self.enter_level():
            yield

    @contextmanager
    def enter_level(self) -> Iterator[None]:
        """Count a level, whose types are built inside ``with``. Raises BadRequestError beyond the limit."""
        self._level += 1
        if self._level > MAX_LEVELS:
            raise BadRequestError(
                f"{self._what}: it is over {MAX_LEVELS} levels deep, where a record, a list and a map each add one"
            )
        yield
        self._level -= 1
