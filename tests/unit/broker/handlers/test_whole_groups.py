"""Groups whose offsets a request asks for more than once."""

from __future__ import annotations

from tests.unit.broker.handlers.test_coordinator_handlers import World
from tidelog.broker.handlers.offset_fetch import leave_out_repeated_partitions
from tidelog.broker.handlers.whole_groups import leave_out_repetitions
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics


def asked(group_id: str, *topics: str) -> OffsetFetchRequestGroup:
    names = [OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in topics]
    return OffsetFetchRequestGroup(group_id=group_id, topics=names or None)


def test_all_offsets_of_a_group_are_asked_once() -> None:
    assert list(leave_out_repetitions([asked("a"), asked("b"), asked("a")])) == [asked("a"), asked("b")]


def test_chosen_topics_of_a_group_may_be_asked_each_time() -> None:
    groups = [asked("a", "t"), asked("a", "u"), asked("a"), asked("a", "t")]
    assert list(leave_out_repetitions(groups)) == groups


def test_a_request_that_names_a_group_often_gets_its_offsets_once() -> None:
    """Else a request of a megabyte has all offsets of one group in its answer 100,000 times."""
    request = OffsetFetchRequest(groups=[asked("a"), asked("b")] * 100)
    assert [group.group_id for group in World().ask(request, 8).groups] == ["a", "b"]


def test_many_topics_without_partitions_are_looked_at_in_steps() -> None:
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[]) for _ in range(100)]
    assert len(list(leave_out_repeated_partitions("g", topics, set()))) == 100
