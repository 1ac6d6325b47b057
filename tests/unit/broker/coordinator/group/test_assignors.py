"""Server-side assignors: tables, and properties over arbitrary groups."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.depth import DEPTH
from tidelog.broker.coordinator.group.assignors import ASSIGNORS, Assignment, MemberSpec, assign_range, assign_uniform

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
BOTH = {A: 10_000, B: 10_000}


def spec(*topics: bytes, instance_id: str | None = None, **assigned: set[int]) -> MemberSpec:
    """Build a member that subscribes to these topics; ``a={0, 1}`` is its present assignment."""
    owned = {name.encode() * 16: frozenset(indexes) for name, indexes in assigned.items()}
    return MemberSpec(frozenset(topics), instance_id, owned)


def sizes(assignment: dict[str, Assignment]) -> list[int]:
    return sorted(sum(len(indexes) for indexes in each.values()) for each in assignment.values())


def test_range_gives_neighbours_and_the_first_one_more() -> None:
    found = assign_range({"m2": spec(A), "m1": spec(A), "m3": spec(A)}, {A: 7})
    assert found == {"m1": {A: {0, 1, 2}}, "m2": {A: {3, 4}}, "m3": {A: {5, 6}}}


def test_range_assigns_equal_topics_alike() -> None:
    found = assign_range({"m1": spec(A, B), "m2": spec(A, B)}, {A: 4, B: 4})
    assert all(each[A] == each[B] for each in found.values())


def test_range_orders_static_members_by_their_instance() -> None:
    found = assign_range({"x": spec(A, instance_id="1"), "a": spec(A, instance_id="2")}, {A: 2})
    assert found["x"] == {A: {0}}


def test_range_assigns_nothing_to_a_member_without_an_existing_topic() -> None:
    assert assign_range({"m1": spec(A), "m2": spec(B)}, {A: 2, C: 3}) == {"m1": {A: {0, 1}}, "m2": {}}


def test_uniform_keeps_a_balanced_assignment() -> None:
    members = {"m1": spec(A, a={1, 3}), "m2": spec(A, a={0, 2})}
    assert assign_uniform(members, {A: 4}) == {"m1": {A: {1, 3}}, "m2": {A: {0, 2}}}


def test_uniform_moves_only_the_share_of_a_new_member() -> None:
    members = {"m1": spec(A, a={0, 1, 2}), "m2": spec(A, a={3, 4, 5}), "m3": spec(A)}
    found = assign_uniform(members, {A: 6})
    assert sizes(found) == [2, 2, 2]
    assert found["m1"][A] < {0, 1, 2}
    assert found["m2"][A] < {3, 4, 5}


def test_members_that_come_together_take_no_more_than_they_keep() -> None:
    found = assign_uniform({"m1": spec(A, a={0, 1, 2, 3}), "m2": spec(A), "m3": spec(A)}, {A: 4})
    assert [len(found[name][A]) for name in ("m1", "m2", "m3")] == [2, 1, 1]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 9))
def test_uniform_among_equals_moves_as_little_as_can_be(had: list[int], free: int) -> None:
    ends = [sum(had[: number + 1]) for number in range(len(had))]
    owned = [set(range(end - count, end)) for end, count in zip(ends, had, strict=True)]
    members = {f"m{number}": spec(A, a=partitions) for number, partitions in enumerate(owned)}
    found = assign_uniform(members, {A: sum(had) + free})
    kept = sum(len(found[f"m{number}"].get(A, set()) & partitions) for number, partitions in enumerate(owned))
    quota, extra = divmod(sum(had) + free, len(had))
    assert kept == sum(min(count, quota) for count in had) + min(extra, sum(count > quota for count in had))


def test_a_second_member_of_very_many_partitions_gets_its_half_fast() -> None:
    """A heartbeat is decided in one turn of the loop. Each move looked at all partitions of the giver."""
    began = time.process_time()
    found = assign_uniform({"m1": spec(A, B, a=set(range(10_000)), b=set(range(10_000))), "m2": spec(A, B)}, BOTH)
    assert time.process_time() - began < 1
    assert sizes(found) == [10_000, 10_000]
    assert set(found["m1"]) == {A}, "the last partitions are given"


def test_a_second_member_of_very_many_topics_gets_its_half_fast() -> None:
    counts = {number.to_bytes(16, "big"): 6 for number in range(2_000)}
    first = MemberSpec(frozenset(counts), None, {topic_id: frozenset(range(6)) for topic_id in counts})
    began = time.process_time()
    found = assign_uniform({"m1": first, "m2": MemberSpec(frozenset(counts))}, counts)
    assert time.process_time() - began < 1
    assert sizes(found) == [6_000, 6_000]


def test_uniform_balances_over_topics() -> None:
    assert sizes(assign_uniform({"m1": spec(A, B), "m2": spec(A, B)}, {A: 1, B: 1})) == [1, 1]


def test_uniform_with_different_subscriptions_is_as_even_as_can_be() -> None:
    found = assign_uniform({"m1": spec(A), "m2": spec(A, B), "m3": spec(B)}, {A: 2, B: 4})
    assert sizes(found) == [2, 2, 2]


def test_uniform_drops_partitions_that_are_gone() -> None:
    assert assign_uniform({"m1": spec(A, a={0, 5}, b={0})}, {A: 1}) == {"m1": {A: {0}}}


SPECS = st.builds(
    MemberSpec,
    st.frozensets(st.sampled_from([A, B, C])),
    st.none(),
    st.dictionaries(st.sampled_from([A, B, C]), st.frozensets(st.integers(0, 9), min_size=1)),
)
MEMBERS = st.dictionaries(st.text("mno", min_size=1, max_size=3), SPECS, min_size=1, max_size=8)
COUNTS = st.dictionaries(st.sampled_from([A, B, C]), st.integers(1, 9))


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("name", ASSIGNORS)
@settings(max_examples=50 * DEPTH)
@given(members=MEMBERS, counts=COUNTS)
def test_every_subscribed_partition_has_one_owner_that_subscribes_to_it(
    name: str, members: dict[str, MemberSpec], counts: dict[bytes, int], part: int
) -> None:
    found = ASSIGNORS[name](members, counts)
    assert found.keys() == members.keys()
    places = [(topic, index) for each in found.values() for topic, indexes in each.items() for index in indexes]
    wanted = {topic for member in members.values() for topic in member.topics}
    assert sorted(places) == sorted((t, i) for t, count in counts.items() if t in wanted for i in range(count))
    assert all(topic in members[member_id].topics for member_id, each in found.items() for topic in each)


@pytest.mark.parametrize("part", range(2))
@settings(max_examples=50 * DEPTH)
@given(members=MEMBERS, counts=COUNTS)
def test_uniform_is_even_among_equals_and_settles(
    members: dict[str, MemberSpec], counts: dict[bytes, int], part: int
) -> None:
    alike = {member_id: MemberSpec(frozenset(counts), None, each.assigned) for member_id, each in members.items()}
    found = assign_uniform(alike, counts)
    assert sizes(found)[-1] - sizes(found)[0] <= 1
    again = {member_id: MemberSpec(frozenset(counts), None, found[member_id]) for member_id in alike}
    assert assign_uniform(again, counts) == found
