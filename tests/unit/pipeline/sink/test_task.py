"""A sink task: the partitions in which its rows without key begin."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tidelog.pipeline.options.sink_options import SinkOptions
from tidelog.pipeline.sink.staging import TaskIdentity
from tidelog.pipeline.sink.task import PartitionCounts, stage_rows


@pytest.mark.parametrize("largest", [0, 2**63 - 9])
def test_small_batches_without_keys_do_not_all_go_to_the_first_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    """Each batch of a stream with one task began, and ended, with partition 0."""
    monkeypatch.setattr(PartitionCounts, "of", lambda *_: 3)
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"v"], pa.binary())})
    options = SinkOptions("", tmp_path, topic="t")
    found = [
        stage_rows(iter([rows]), TaskIdentity("query", largest + number, 0, 0), options, {"value": 0})
        for number in range(6)
    ]
    assert {batch.partition for file in found for batch in file.batches} == {0, 1, 2}
