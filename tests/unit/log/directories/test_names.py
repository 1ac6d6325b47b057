"""Names of partition directories: parsed, and built for deleted partitions."""

from __future__ import annotations

import pytest

from tidelog.log.directories.names import DELETE_DIRECTORY_SUFFIX, name_aside, partition_of_name
from tidelog.log.files.topic_partition import TopicPartition


@pytest.mark.parametrize("topic", ["a", "topic-with-dashes", "x" * 249])
def test_a_name_aside_fits_a_file_system_is_its_own_and_no_partitions(topic: str) -> None:
    names = {name_aside(TopicPartition(topic, 12), DELETE_DIRECTORY_SUFFIX) for _ in range(20)}
    assert len(names) == 20
    assert all(len(name) <= 255 and name.endswith(DELETE_DIRECTORY_SUFFIX) for name in names)
    assert {partition_of_name(name) for name in names} == {None}


def test_a_directory_name_is_its_partitions_or_none() -> None:
    assert partition_of_name("topic-with-dashes-3") == TopicPartition("topic-with-dashes", 3)
    assert [partition_of_name(name) for name in ("meta.properties", "t-x", "t-0.abc-stray", "t-0-future")] == [None] * 4
