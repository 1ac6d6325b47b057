"""The sticky assignor: each task has one owner, tasks are divided evenly, and stay with their owner."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.coordinator.group.streams.assignor import TaskMember, _Work, assign_sticky
from tidelog.broker.coordinator.group.streams.group import NO_TASKS, TaskSet, each_task
from tidelog.broker.coordinator.group.streams.topology import ConfiguredSubtopology, InternalTopic

STATE = (InternalTopic("state", 1),)


def subtopologies(*tasks: int, stateful: bool = True) -> list[ConfiguredSubtopology]:
    changelogs = STATE if stateful else ()
    return [ConfiguredSubtopology(str(n), count, ("t",), changelogs=changelogs) for n, count in enumerate(tasks)]


def members_with(found: dict[str, TaskSet], processes: dict[str, str]) -> dict[str, TaskMember]:
    return {name: TaskMember(process, found.get(name, NO_TASKS)) for name, process in processes.items()}


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.dictionaries(st.sampled_from("abcdefg"), st.sampled_from("xyz"), min_size=1),
    st.dictionaries(st.sampled_from("abcdefg"), st.sampled_from("xyz"), min_size=1),
    st.integers(0, 3),
)
def test_every_task_once_and_copies_elsewhere(
    tasks: list[int], before: dict[str, str], after: dict[str, str], replicas: int
) -> None:
    topology = subtopologies(*tasks)
    found = assign_sticky(members_with({}, before), topology, replicas)
    found = assign_sticky(members_with(found, after), topology, replicas)
    active = Counter(task for tasks_of in found.values() for task in each_task(tasks_of.active))
    assert active == Counter((str(n), index) for n, count in enumerate(tasks) for index in range(count))
    in_process = Counter(
        (after[name], task) for name, given_to in found.items() for role in given_to for task in each_task(role)
    )
    assert set(in_process.values()) == {1}, "a process has a task once"
    copies = Counter(task for tasks_of in found.values() for task in each_task(tasks_of.standby))
    wanted = min(replicas, len(set(after.values())) - 1)
    assert all(copies[task] == wanted for task in active)


def test_few_members_are_compared_for_each_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat is decided in one turn of the loop: 1,000 tasks with a standby each took 42 ms for 100 members."""
    compared = []
    load = _Work._load

    def count(work: _Work, name: str) -> tuple[float, int]:
        compared.append(name)
        return load(work, name)

    monkeypatch.setattr(_Work, "_load", count)
    found = assign_sticky(members_with({}, {f"m{n}": f"p{n // 2}" for n in range(100)}), subtopologies(1_000), 1)
    assert {len(list(each_task(tasks.active))) for tasks in found.values()} == {10}
    assert {len(list(each_task(tasks.standby))) for tasks in found.values()} == {10}
    assert len(compared) < 2_000 * 10


def test_a_repeated_assignment_changes_nothing() -> None:
    processes = {"a": "x", "b": "y", "c": "z"}
    first = assign_sticky(members_with({}, processes), subtopologies(4, 5), 1)
    assert assign_sticky(members_with(first, processes), subtopologies(4, 5), 1) == first


def test_tasks_are_divided_evenly() -> None:
    found = assign_sticky(members_with({}, {"a": "x", "b": "x", "c": "y"}), subtopologies(3, 3, stateful=False), 2)
    assert [len(list(each_task(tasks.active))) for tasks in found.values()] == [2, 2, 2], "by member, not by process"
    found = assign_sticky(members_with({}, {"a": "x", "b": "y", "c": "z"}), subtopologies(3, 3, stateful=False), 2)
    assert [len(list(each_task(tasks.active))) for tasks in found.values()] == [2, 2, 2]
    assert all(not tasks.standby for tasks in found.values()), "without a state there is nothing to copy"


def test_a_new_member_gets_only_its_share() -> None:
    first = assign_sticky(members_with({}, {"a": "x"}), subtopologies(4), 0)
    second = assign_sticky(members_with(first, {"a": "x", "b": "y"}), subtopologies(4), 0)
    assert second["a"].active["0"] < first["a"].active["0"]
    assert len(second["b"].active["0"]) == 2


def test_a_group_without_members_has_no_assignment() -> None:
    assert assign_sticky({}, subtopologies(4), 1) == {}
