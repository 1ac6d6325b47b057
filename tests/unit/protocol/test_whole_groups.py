"""Groups whose offsets a request asks for more than once."""

from __future__ import annotations

from tidelog.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tidelog.protocol.whole_groups import leave_out_repetitions


def request_for(group_id: str, *topics: str) -> OffsetFetchRequestGroup:
    names = [OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in topics]
    return OffsetFetchRequestGroup(group_id=group_id, topics=names or None)


def test_all_offsets_of_a_group_are_asked_once() -> None:
    assert list(leave_out_repetitions([request_for("a"), request_for("b"), request_for("a")])) == [
        request_for("a"),
        request_for("b"),
    ]


def test_chosen_topics_of_a_group_may_be_asked_each_time() -> None:
    groups = [request_for("a", "t"), request_for("a", "u"), request_for("a"), request_for("a", "t")]
    assert list(leave_out_repetitions(groups)) == groups
