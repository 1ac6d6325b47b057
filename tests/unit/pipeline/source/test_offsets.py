"""A stream's position: Spark's JSON with the topics' ids, and limits divided over partitions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.plan.selection import PartitionDirectory
from tidelog.pipeline.source.offsets import StreamOffset, shares

ID = bytes(range(16))


def test_a_position_is_written_as_by_sparks_kafka_source_and_names_the_topics() -> None:
    position = StreamOffset({"b": {10: 5, 2: 7}, "a": {0: 0}}, {"b": ID})
    assert json.dumps(position.to_json()) == (
        '{"a": {"0": 0}, "b": {"2": 7, "10": 5}, "@topicIds": {"b": "AAECAwQFBgcICQoLDA0ODw"}}'
    )
    assert StreamOffset.from_json(json.loads(json.dumps(position.to_json()))) == position


def test_a_checkpoint_of_sparks_kafka_source_is_understood() -> None:
    assert StreamOffset.from_json({"t": {"0": 12}}) == StreamOffset({"t": {0: 12}}, {})


@pytest.mark.parametrize("found", [{"t": 5}, {"t": {"x": 1}}, {"t": {"0": None}}, {"@topicIds": {"t": "short"}}])
def test_anything_else_is_refused(found: dict[str, object]) -> None:
    with pytest.raises(PipelineError, match="the checkpoint holds the offset"):
        StreamOffset.from_json(found)


def test_a_position_has_ids_of_its_own_topics_only() -> None:
    directories = [PartitionDirectory("t", ID, 0, "/t-0"), PartitionDirectory("u", ID, 0, "/u-0")]
    position = StreamOffset.of(directories, {"t": {0: 4}})
    assert position == StreamOffset({"t": {0: 4}}, {"t": ID})
    assert [position.get(directory) for directory in directories] == [4, None]


@given(st.dictionaries(st.integers(), st.integers(0, 10_000), max_size=8), st.integers(1, 5000))
def test_shares_keep_the_limit_and_starve_no_partition(waiting: dict[int, int], limit: int) -> None:
    taken = shares(waiting, limit)
    assert all((taken[key] > 0) == (size > 0) and taken[key] <= size for key, size in waiting.items())
    assert sum(taken.values()) <= max(limit, 0) + len(waiting)
    if sum(waiting.values()) <= limit:
        assert taken == waiting
