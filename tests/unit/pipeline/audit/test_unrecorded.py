"""Rows outside the ranges of offsets that a table's state names."""

from __future__ import annotations

import pyarrow as pa

from tidelog.pipeline.audit.unrecorded import RecordedRanges, UnrecordedRows, find_outside, sum_partitions


def test_a_row_without_partition_or_offset_is_reported() -> None:
    schema = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
    rows = pa.table({"topic": [None, "orders"], "partition": [0, None], "offset": [1, 2]}, schema)
    recorded: RecordedRanges = {("orders", 0): ((0, 5),)}
    found = find_outside(rows.to_batches(), recorded)
    assert found == [UnrecordedRows("orders", None, 1, (2,)), UnrecordedRows(None, 0, 1, (1,))]
    rows = pa.table({"topic": ["orders"] * 2, "partition": [0, 0], "offset": [None, 2]}, schema)
    assert find_outside(rows.to_batches(), recorded) == [UnrecordedRows("orders", 0, 1, ())]


def test_batches_of_one_place_are_summed() -> None:
    parts = [
        UnrecordedRows("orders", 0, 2, (7, 9)),
        UnrecordedRows("a", 1, 1, (3,)),
        UnrecordedRows("orders", 0, 1, (8,)),
    ]
    assert sum_partitions(parts) == [UnrecordedRows("a", 1, 1, (3,)), UnrecordedRows("orders", 0, 3, (7, 8, 9))]
