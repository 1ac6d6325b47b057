"""OffsetFetch requests that name a group or a topic very often."""

from __future__ import annotations

from tests.unit.broker.handlers.test_coordinator_handlers import World
from tidelog.broker.handlers.offset_fetch import leave_out_repeated_partitions
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics


def test_a_request_that_names_a_group_often_gets_its_offsets_once() -> None:
    """Else a request of a megabyte has all offsets of one group in its answer 100,000 times."""
    groups = [OffsetFetchRequestGroup(group_id=group_id, topics=None) for group_id in ("a", "b")]
    assert [group.group_id for group in World().ask(OffsetFetchRequest(groups=groups * 100), 8).groups] == ["a", "b"]


def test_each_topic_without_partitions_is_a_step() -> None:
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[]) for _ in range(100)]
    assert len(list(leave_out_repeated_partitions("g", topics, set()))) == 100
