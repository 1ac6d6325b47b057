"""Filters that Spark pushes down (option ``pushFilters=true``), as far as they spare reading.

    topic, partition        = and in                 partitions left out
    offset                  = < <= > >=              ranges narrowed
    timestamp               = < <= > >=              segments left out by time index, rows left out while decoding
    key                     =                        the key index, rows left out while decoding

What is taken is exact: Spark does not check it again. Everything else goes back to Spark. Spark's timestamps count
microseconds and a log's milliseconds, so bounds between two milliseconds are rounded towards the records they keep.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from pipeline.plan_rows import OffsetRange, RowFilter

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")
_MAX_OFFSET = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """What was taken of a query's filters. Offsets and times include both ends; None: any topic, any partition."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    min_offset: int = 0
    max_offset: int = _MAX_OFFSET
    rows: RowFilter = field(default_factory=RowFilter)

    def narrowed(self, ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
        """The ranges that are left to read."""
        kept = []
        for wanted in ranges:
            place = wanted.directory
            if self.topics is not None and place.topic not in self.topics:
                continue
            if self.partitions is not None and place.partition not in self.partitions:
                continue
            start, end = max(wanted.start, self.min_offset), min(wanted.end, self.max_offset + 1)
            if start < end:
                kept.append(replace(wanted, start=start, end=end))
        return tuple(kept)


def push(filters: Iterable[Filter], key: bytes | None = None) -> tuple[PushedFilters, list[Filter]]:
    """What is taken of ``filters``, and those that Spark must check. ``key`` is one that an option asks for."""
    pushed, left = PushedFilters(rows=RowFilter(key=key)), []
    for condition in filters:
        taken = _take(pushed, condition)
        if taken is None:
            left.append(condition)
        else:
            pushed = taken
    return pushed, left


def _take(pushed: PushedFilters, condition: Filter) -> PushedFilters | None:
    """``pushed`` with one more condition; None when it cannot be taken."""
    name = ".".join(getattr(condition, "attribute", ()))
    if isinstance(condition, IsNotNull):
        return pushed if name in _NEVER_NULL else None
    if isinstance(condition, In):
        return _take_set(pushed, name, frozenset(condition.value))
    value = getattr(condition, "value", None)
    if value is None:
        return None
    if name in ("topic", "partition", "key"):
        return _take_equal(pushed, name, value) if isinstance(condition, EqualTo | EqualNullSafe) else None
    if name == "offset":
        return _take_offset(pushed, condition, int(value))
    if name == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        return _take_time(pushed, condition, (value - _EPOCH) // timedelta(microseconds=1))
    return None


def _take_equal(pushed: PushedFilters, name: str, value: Any) -> PushedFilters | None:
    if name != "key":
        return _take_set(pushed, name, frozenset((value,)))
    if pushed.rows.key not in (None, bytes(value)):
        return None
    return replace(pushed, rows=replace(pushed.rows, key=bytes(value)))


def _take_set(pushed: PushedFilters, name: str, values: frozenset[Any]) -> PushedFilters | None:
    if name == "topic":
        return replace(pushed, topics=values if pushed.topics is None else pushed.topics & values)
    if name == "partition":
        return replace(pushed, partitions=values if pushed.partitions is None else pushed.partitions & values)
    return None


def _take_offset(pushed: PushedFilters, condition: Filter, value: int) -> PushedFilters | None:
    bounds = _bounds(condition, value, value)
    if bounds is None:
        return None
    return replace(pushed, min_offset=max(pushed.min_offset, bounds[0]), max_offset=min(pushed.max_offset, bounds[1]))


def _take_time(pushed: PushedFilters, condition: Filter, microseconds: int) -> PushedFilters | None:
    floor, ceiling = microseconds // 1000, -(-microseconds // 1000)
    bounds = _bounds(condition, floor, ceiling)
    if bounds is None:
        return None
    rows = pushed.rows
    low, high = max(rows.min_time, bounds[0]), min(rows.max_time, bounds[1])
    return replace(pushed, rows=replace(rows, min_time=low, max_time=high))


def _bounds(condition: Filter, floor: int, ceiling: int) -> tuple[int, int] | None:
    """The whole numbers that a comparison with a number between ``floor`` and ``ceiling`` admits, both included."""
    least, most = -(1 << 63), (1 << 63) - 1
    if isinstance(condition, EqualTo | EqualNullSafe):
        return ceiling, floor
    if isinstance(condition, GreaterThan):
        return floor + 1, most
    if isinstance(condition, GreaterThanOrEqual):
        return ceiling, most
    if isinstance(condition, LessThan):
        return least, ceiling - 1
    if isinstance(condition, LessThanOrEqual):
        return least, floor
    return None
