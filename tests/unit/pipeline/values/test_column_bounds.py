"""Limits of columns: how many there may be, and how deeply they may be nested."""

from __future__ import annotations

import pytest

from tidelog.pipeline.job_errors import BadRequestError
from tidelog.pipeline.values.column_bounds import MAX_DEPTH, MAX_FIELDS, ColumnBounds


def nest(bounds: ColumnBounds, levels: int) -> None:
    if levels:
        with bounds.count_type():
            nest(bounds, levels - 1)


def test_as_many_as_allowed_side_by_side() -> None:
    bounds = ColumnBounds("schema 7")
    for _ in range(MAX_FIELDS):
        nest(bounds, 1)
    with pytest.raises(
        BadRequestError, match="schema 7: with the fields of all types that it names, it has over 10000 columns"
    ):
        nest(bounds, 1)


def test_as_deep_as_allowed() -> None:
    nest(ColumnBounds("schema 7"), MAX_DEPTH)
    with pytest.raises(BadRequestError, match="over 50 levels deep"):
        nest(ColumnBounds("schema 7"), MAX_DEPTH + 1)
