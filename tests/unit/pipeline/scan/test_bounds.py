"""Offsets, times and keys of a scan: accepted values, and their meaning."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.pipeline.errors import DataLossError, OptionError
from tidelog.pipeline.options.row_filter import MAX_TIME, MIN_TIME
from tidelog.pipeline.plan.log_watch import Partition
from tidelog.pipeline.plan.selection import PartitionDirectory
from tidelog.pipeline.scan.bounds import key_bytes, list_values, offset_ranges, time_filter


def partition(number: int, start: int, end: int) -> Partition:
    bounds = SimpleNamespace(start=start, last_stable=end)
    return Partition(PartitionDirectory("t", None, number, f"/t-{number}"), cast(Any, bounds))


PARTITIONS = [partition(0, 10, 20), partition(1, 0, 5)]


def ranges(offsets: Any, *, fail_on_data_loss: bool = True) -> dict[int, tuple[int, int]]:
    found = offset_ranges(PARTITIONS, offsets, fail_on_data_loss=fail_on_data_loss)
    return {each.directory.partition: (each.start, each.end) for each in found}


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        (None, {0: (10, 20), 1: (0, 5)}),
        ({1: (2, None)}, {1: (2, 5)}),
        ({0: (None, 15), 1: (1, 99)}, {0: (10, 15), 1: (1, 5)}),
        ({0: (18, 12)}, {0: (18, 18)}),
        ({0: (3, 3)}, {0: (3, 3)}),
    ],
)
def test_offsets_become_a_range_of_each_partition(offsets: Any, expected: dict[int, tuple[int, int]]) -> None:
    assert ranges(offsets) == expected


def test_a_begin_that_is_gone_is_a_loss_unless_that_is_allowed() -> None:
    with pytest.raises(DataLossError, match="t-0 begins at 10, records from 3 on are gone"):
        ranges((3, None))
    assert ranges((3, None), fail_on_data_loss=False) == {0: (10, 20), 1: (3, 5)}


@pytest.mark.parametrize("offsets", [5, (1,), (1, 2, 3), (-1, None), (None, True), ("1", None), {7: (0, 1)}])
def test_wrong_offsets_are_refused(offsets: Any) -> None:
    with pytest.raises(OptionError, match="offsets"):
        ranges(offsets)


def test_times_have_an_end_that_is_not_included() -> None:
    begin = datetime(2026, 1, 1, 0, 0, 0, 1500, tzinfo=UTC)
    found = time_filter((begin, 1_800_000_000_000), b"key")
    assert (found.min_time, found.max_time, found.key) == (1_767_225_600_002, 1_799_999_999_999, b"key")
    everything = time_filter((None, None), None)
    assert (everything.min_time, everything.max_time) == (MIN_TIME, MAX_TIME)


@pytest.mark.parametrize("times", [5, (1,), ("yesterday-ish", None), (None, True), (1.5, None), (None, MAX_TIME + 1),
                                   (datetime.min, None)])  # fmt: skip
def test_wrong_times_are_refused(times: Any) -> None:
    with pytest.raises(OptionError, match="times"):
        time_filter(times, None)


def test_keys_are_bytes_each_once() -> None:
    assert key_bytes("ä") == ["ä".encode()]
    assert key_bytes(b"\xff") == [b"\xff"]
    assert key_bytes(["a", b"b", b"a"]) == [b"a", b"b"]
    for keys in (5, [None], ["a", 1]):
        with pytest.raises(OptionError, match=r"keys: .* is no bytes or text"):
            key_bytes(keys)  # type: ignore[arg-type]


def test_an_argument_is_one_value_or_several() -> None:
    assert list_values("topic", "t", str) == ("t",)
    assert list_values("topic", ["t", "u"], str) == ("t", "u")
    for given in (None, 5, b"t", ["t", None]):
        with pytest.raises(OptionError, match=r"topic: .* is no text"):
            list_values("topic", given, str)
