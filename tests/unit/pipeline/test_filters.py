"""Filters that Spark pushes down: what is taken, what goes back, and how bounds between milliseconds round."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from pipeline.filters import PushedFilters, push
from pipeline.plan_rows import OffsetRange, RowFilter
from pipeline.selection import PartitionDirectory

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def taken(*conditions: Filter) -> PushedFilters:
    pushed, left = push(conditions)
    assert not left
    return pushed


@pytest.mark.parametrize(
    ("kind", "microseconds", "low", "high"),
    [
        (GreaterThan, 5000, 6, None), (GreaterThan, 5001, 6, None),
        (GreaterThanOrEqual, 5000, 5, None), (GreaterThanOrEqual, 5001, 6, None),
        (LessThan, 5000, None, 4), (LessThan, 5001, None, 5),
        (LessThanOrEqual, 5000, None, 5), (LessThanOrEqual, 5999, None, 5),
        (EqualTo, 5000, 5, 5), (EqualTo, 5001, 6, 5), (GreaterThan, -1, 0, None), (LessThan, -1, None, -1),
    ],
)  # fmt: skip
def test_times_round_towards_what_they_keep(kind: Any, microseconds: int, low: int | None, high: int | None) -> None:
    rows = taken(kind(("timestamp",), EPOCH + timedelta(microseconds=microseconds))).rows
    assert rows.min_time == (RowFilter().min_time if low is None else low)
    assert rows.max_time == (RowFilter().max_time if high is None else high)


def test_offsets_topics_partitions_and_a_key() -> None:
    pushed = taken(
        IsNotNull(("offset",)),
        GreaterThan(("offset",), 4),
        LessThanOrEqual(("offset",), 9),
        In(("topic",), ("a", "b")),
        EqualTo(("topic",), "b"),
        EqualNullSafe(("partition",), 3),
        In(("partition",), (3, 4)),
        EqualTo(("key",), bytearray(b"k")),
    )
    assert pushed.topics == frozenset({"b"})
    assert pushed.partitions == frozenset({3})
    assert pushed.rows.key == b"k"
    ranges = [OffsetRange(PartitionDirectory(topic, None, 3, "/"), 0, 100) for topic in ("a", "b")]
    narrowed = pushed.narrowed([*ranges, OffsetRange(PartitionDirectory("b", None, 4, "/"), 0, 100)])
    assert narrowed == (OffsetRange(ranges[1].directory, 5, 10),)
    assert pushed.narrowed([OffsetRange(ranges[1].directory, 10, 100)]) == ()


@pytest.mark.parametrize(
    "condition",
    [
        IsNotNull(("key",)),
        IsNull(("key",)),
        In(("key",), (b"a",)),
        In(("offset",), (1, 2)),
        GreaterThan(("partition",), 1),
        GreaterThan(("value",), b"x"),
        Not(EqualTo(("offset",), 1)),
        StringStartsWith(("topic",), "a"),
        EqualNullSafe(("key",), None),
        EqualTo(("timestamp",), datetime(1970, 1, 1)),
        EqualTo(("headers", "key"), "x"),
    ],
)
def test_the_rest_is_sparks(condition: Filter) -> None:
    assert push([condition]) == (PushedFilters(), [condition])


def test_a_second_key_is_sparks() -> None:
    first, second = EqualTo(("key",), b"a"), EqualTo(("key",), b"b")
    pushed, left = push([first, second])
    assert (pushed.rows.key, left) == (b"a", [second])
    assert push([second], b"a") == (PushedFilters(rows=RowFilter(key=b"a")), [second])
