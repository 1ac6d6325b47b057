"""Look-ups in a key index while the broker writes to it: a result has all candidates, or the index is not used."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.finding import catch_up, indexer_of
from tests.support.pipelines import NOW_MS, TOPIC_ID, DataDirectory, write
from tidelog.log.find.index_checkpoint import read_checkpoint
from tidelog.pipeline.plan import key_lookup
from tidelog.pipeline.plan.key_lookup import find_key
from tidelog.pipeline.plan.selection import PartitionDirectory
from tidelog.protocol.record.record_batch import Record

KEYS = [b"a" if number % 3 else b"b" for number in range(30)]


@pytest.fixture
def partition(data: DataDirectory) -> PartitionDirectory:
    """The directory of a partition whose records have KEYS."""
    for key in KEYS:
        write(data.log("t"), [Record(0, NOW_MS, key, b"v")])
    return PartitionDirectory("t", TOPIC_ID, 0, str(data.path / "t-0"))


@pytest.fixture
def data(tmp_path: Any) -> DataDirectory:
    return DataDirectory(tmp_path / "data", **{"index.keys": "true", "index.keys.slots": 4, "index.keys.entries": 100})


def test_candidates_are_those_of_the_checkpoint(data: DataDirectory, partition: PartitionDirectory) -> None:
    assert find_key(partition, b"b", 0, 30) is None
    indexer_of(data.log("t")).checkpoint()
    found = find_key(partition, b"b", 0, 30)
    assert found is not None
    assert (found.offsets, found.indexed_to) == (tuple(range(0, 30, 3)), 30)


@pytest.mark.parametrize("steps", [1, 10, 30])
def test_an_index_that_is_rebuilt_after_its_checkpoint_was_read_is_not_used(
    data: DataDirectory, partition: PartitionDirectory, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """The new file has the name of the old one, and at first no entry: it has no candidate."""
    indexer = indexer_of(data.log("t"))
    indexer.checkpoint()

    def read_before_rebuild(*arguments: Any) -> object:
        found = read_checkpoint(*arguments)
        indexer.rebuild()
        for _ in range(steps):
            indexer.step(1)
        return found

    monkeypatch.setattr(key_lookup, "read_checkpoint", read_before_rebuild)
    assert find_key(partition, b"b", 0, 30) is None
    catch_up(indexer)
    indexer.checkpoint()
    monkeypatch.undo()
    assert find_key(partition, b"b", 0, 30) is not None
