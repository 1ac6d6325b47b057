"""The assignor of share groups: every member and every partition is assigned, evenly, and few partitions move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.broker.stepping import response_of
from tidelog.broker.coordinator.group.assignors import Assignment, MemberSpec
from tidelog.broker.coordinator.group.share.assignor import ComputedAssignment, Subscriptions, assign_simple
from tidelog.broker.loop.steps import ITEMS_PER_STEP

T, U = b"t" * 16, b"u" * 16


def assign(members: dict[str, MemberSpec], counts: dict[bytes, int]) -> Mapping[str, Assignment]:
    """Run all steps of the assignor; return the assignment by member id."""
    assigned = response_of(assign_simple(Subscriptions(members, counts)))
    assert isinstance(assigned, ComputedAssignment)
    return assigned.target


def specs(*names: str, topics: frozenset[bytes] = frozenset({T})) -> dict[str, MemberSpec]:
    return {name: MemberSpec(topics) for name in names}


def places(assignment: Assignment) -> set[tuple[bytes, int]]:
    return {(topic, index) for topic, indexes in assignment.items() for index in indexes}


def test_one_member_reads_everything() -> None:
    assert assign(specs("a"), {T: 3}) == {"a": {T: frozenset({0, 1, 2})}}


def test_more_members_than_partitions_share_them() -> None:
    target = assign(specs("a", "b", "c", "d"), {T: 2})
    assert all(len(places(assignment)) == 1 for assignment in target.values())
    assert Counter(place for assignment in target.values() for place in places(assignment)) == {(T, 0): 2, (T, 1): 2}


def test_missing_topics_are_not_assigned() -> None:
    assert assign(specs("a", "b"), {}) == {"a": {}, "b": {}}
    assert assign(specs("a"), {U: 3}) == {"a": {}}
    assert assign({}, {T: 3}) == {}


def test_different_subscriptions_are_given_out_topic_by_topic() -> None:
    members = {**specs("a"), **specs("b", topics=frozenset({T, U}))}
    target = assign(members, {T: 2, U: 2})
    assert places(target["a"]) < {(T, 0), (T, 1)}
    assert {(U, 0), (U, 1)} < places(target["b"])


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_the_assignment_is_even_and_stable(first_members: int, first_count: int, members: int, count: int) -> None:
    before = assign(specs(*(f"m{number}" for number in range(first_members))), {T: first_count})
    now = {f"m{number}": MemberSpec(frozenset({T}), assigned=before.get(f"m{number}", {})) for number in range(members)}
    target = assign(now, {T: count})
    sizes = [len(places(assignment)) for assignment in target.values()]
    readers = Counter(place for assignment in target.values() for place in places(assignment))
    assert set(readers) == {(T, index) for index in range(count)}, "a partition without a reader"
    assert min(sizes) >= 1, "a member with nothing to read"
    assert max(sizes) - min(sizes) <= 1
    assert max(readers.values()) - min(readers.values()) <= 1
    settled = {name: MemberSpec(frozenset({T}), assigned=target[name]) for name in target}
    assert assign(settled, {T: count}) == target, "what is even stays as it is"


def test_no_step_is_long() -> None:
    members = {name: MemberSpec(frozenset({T})) for name in "abc"}
    steps = sum(1 for _ in assign_simple(Subscriptions(members, {T: 10_000})))
    assert steps >= 3 * (10_000 // ITEMS_PER_STEP), "places, what is given out, what it comes to"
