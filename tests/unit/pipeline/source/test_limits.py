"""Limits of a trigger: which options and which limit of Spark apply, and how long a trigger waits for enough
records."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from tidelog.pipeline.errors import OptionError, PipelineError
from tidelog.pipeline.plan.selection import PartitionDirectory
from tidelog.pipeline.source.limits import DEFAULT_TRIGGER_DELAY_MS, Patience, TriggerLimits, limited_ends


def options(**given: int) -> Any:
    names = ("max_offsets_per_trigger", "min_offsets_per_trigger", "max_trigger_delay_ms", "max_bytes_per_trigger")
    return SimpleNamespace(**dict.fromkeys(names) | given)


def test_the_limits_of_the_options() -> None:
    assert TriggerLimits.of(options()) == TriggerLimits(None, None, None, DEFAULT_TRIGGER_DELAY_MS)
    given = options(max_offsets_per_trigger=5, min_offsets_per_trigger=2, max_trigger_delay_ms=7)
    assert TriggerLimits.of(given) == TriggerLimits(max_offsets=5, min_offsets=2, max_delay_ms=7)


def test_a_minimum_above_the_maximum_is_refused() -> None:
    with pytest.raises(OptionError, match="minOffsetsPerTrigger=3 is above maxOffsetsPerTrigger=2"):
        TriggerLimits.of(options(max_offsets_per_trigger=2, min_offsets_per_trigger=3))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (TriggerLimits(), ReadAllAvailable),
        (TriggerLimits(min_offsets=1), ReadMinRows),
        (TriggerLimits(min_offsets=1, max_bytes=2), ReadMaxBytes),
        (TriggerLimits(min_offsets=1, max_bytes=2, max_offsets=3), ReadMaxRows),
    ],
)
def test_the_limit_that_spark_is_given(limits: TriggerLimits, expected: type[ReadLimit]) -> None:
    assert isinstance(limits.default(), expected)


def test_sparks_limit_stands_for_its_own_kind_and_leaves_the_others() -> None:
    limits = TriggerLimits(max_offsets=9, max_bytes=8, min_offsets=1)
    assert limits.combine(ReadMaxRows(5)) == TriggerLimits(max_offsets=5, max_bytes=8, min_offsets=1)
    assert limits.combine(ReadMaxBytes(5)) == TriggerLimits(max_offsets=9, max_bytes=5, min_offsets=1)
    assert limits.combine(ReadMinRows(5)) == TriggerLimits(max_offsets=9, max_bytes=8, min_offsets=5)
    assert limits.combine(ReadAllAvailable()) == TriggerLimits()


def test_a_limit_that_a_log_does_not_have_is_refused() -> None:
    with pytest.raises(PipelineError, match="read limit int"):
        TriggerLimits().combine(cast(ReadLimit, 5))


def test_a_trigger_waits_for_enough_or_for_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    patience, limits = Patience(), TriggerLimits(min_offsets=10, max_delay_ms=1000)
    assert patience.is_enough(limits, 0), "the first trigger always reads"
    now[0] = 0.9
    assert not patience.is_enough(limits, 9)
    assert patience.is_enough(limits, 10)
    now[0] = 1.8
    assert not patience.is_enough(limits, 9), "the time counts from the last trigger"
    now[0] = 2.0
    assert patience.is_enough(limits, 0)


def test_offsets_are_divided_and_no_end_lies_before_its_start() -> None:
    one, other = (PartitionDirectory("t", None, number, f"/t-{number}") for number in (0, 1))
    ranges = {one: (10, 20), other: (7, 3)}
    assert limited_ends(ranges, TriggerLimits()) == {one: 20, other: 7}
    assert limited_ends(ranges, TriggerLimits(max_offsets=4)) == {one: 14, other: 7}


def test_a_partition_that_is_deleted_meanwhile_is_named(tmp_path: Path) -> None:
    directory = PartitionDirectory("t", None, 0, str(tmp_path / "t-0"))
    with pytest.raises(PipelineError, match="t-0 was deleted: its topic is gone"):
        limited_ends({directory: (0, 9)}, TriggerLimits(max_bytes=1))
