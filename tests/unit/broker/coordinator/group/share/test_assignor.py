"""The assignor of share groups: every member reads something, everything is read, evenly, with little movement."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.coordinator.group.assignors import Assignment, MemberSpec
from tidelog.broker.coordinator.group.share.assignor import assign_simple

T, U = b"t" * 16, b"u" * 16


def specs(*names: str, topics: frozenset[bytes] = frozenset({T})) -> dict[str, MemberSpec]:
    return {name: MemberSpec(topics) for name in names}


def places(assignment: Assignment) -> set[tuple[bytes, int]]:
    return {(topic, index) for topic, indexes in assignment.items() for index in indexes}


def test_one_member_reads_everything() -> None:
    assert assign_simple(specs("a"), {T: 3}) == {"a": {T: frozenset({0, 1, 2})}}


def test_more_members_than_partitions_share_them() -> None:
    target = assign_simple(specs("a", "b", "c", "d"), {T: 2})
    assert all(len(places(assignment)) == 1 for assignment in target.values())
    assert Counter(place for assignment in target.values() for place in places(assignment)) == {(T, 0): 2, (T, 1): 2}


def test_nobody_gets_what_is_not_there() -> None:
    assert assign_simple(specs("a", "b"), {}) == {"a": {}, "b": {}}
    assert assign_simple(specs("a"), {U: 3}) == {"a": {}}
    assert assign_simple({}, {T: 3}) == {}


def test_different_subscriptions_are_given_out_topic_by_topic() -> None:
    members = {**specs("a"), **specs("b", topics=frozenset({T, U}))}
    target = assign_simple(members, {T: 2, U: 2})
    assert places(target["a"]) < {(T, 0), (T, 1)}
    assert {(U, 0), (U, 1)} < places(target["b"])


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_it_comes_out_even_and_stays(first_members: int, first_count: int, members: int, count: int) -> None:
    before = assign_simple(specs(*(f"m{number}" for number in range(first_members))), {T: first_count})
    now = {f"m{number}": MemberSpec(frozenset({T}), assigned=before.get(f"m{number}", {})) for number in range(members)}
    target = assign_simple(now, {T: count})
    sizes = [len(places(assignment)) for assignment in target.values()]
    readers = Counter(place for assignment in target.values() for place in places(assignment))
    assert set(readers) == {(T, index) for index in range(count)}, "a partition without a reader"
    assert min(sizes) >= 1, "a member with nothing to read"
    assert max(sizes) - min(sizes) <= 1
    assert max(readers.values()) - min(readers.values()) <= 1
    settled = {name: MemberSpec(frozenset({T}), assigned=target[name]) for name in target}
    assert assign_simple(settled, {T: count}) == target, "what is even stays as it is"
