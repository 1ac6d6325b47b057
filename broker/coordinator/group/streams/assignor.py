"""The assignor of streams groups, ``sticky``: tasks stay with their member, or move to one with a copy of their state.

    active tasks   1. to the member that had it   2. to one that had its standby task   3. to the least loaded process
                   and member
    standby tasks  1. to a member that had it, active or standby   2. to the least loaded process without the task

Before the last step of each list no member gets more than its share: the number of active tasks (for standby tasks, of
active and standby tasks) divided by the number of members, rounded up. When a member has its share, the share of the
others is computed again. The load of a process is its number of tasks divided by its number of members. A process has
each task once at most, so with few processes there are fewer standby tasks than configured.

Pure function; the same input gives the same assignment. Source: KIP-1071 (StickyTaskAssignor).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

from tidelog.broker.coordinator.group.streams.group import TaskId, Tasks, TaskSet, each_task
from tidelog.broker.coordinator.group.streams.topology import ConfiguredSubtopology

logger = logging.getLogger(__name__)

_ByLoad = list[tuple[tuple[float, int], str]]
"""A heap of members by load."""
_Find = Callable[[TaskId], str | None]
"""Function from a task to the member that should get it; None if there is no such member."""


@dataclass(frozen=True, slots=True)
class TaskMember:
    """Input of the assignor for one member: its process, and its previous target tasks."""

    process_id: str
    previous: TaskSet


def assign_sticky(
    members: Mapping[str, TaskMember], topology: Iterable[ConfiguredSubtopology], num_standby_replicas: int
) -> dict[str, TaskSet]:
    """Return the tasks of each member."""
    if not members:
        return {}
    parts = list(topology)
    work = _Work(members, parts, num_standby_replicas)
    work.assign_active([(part.subtopology_id, index) for part in parts for index in range(part.tasks)])
    if num_standby_replicas:
        stateful = [part for part in parts if part.is_stateful]
        work.assign_standby([(part.subtopology_id, index) for part in stateful for index in range(part.tasks)])
    return {name: TaskSet(_group_tasks(work.active[name]), _group_tasks(work.standby[name])) for name in members}


class _Share:
    """Largest number of tasks for one member: tasks divided by members, rounded up.

    A member that reaches this number leaves the division with its tasks; then the number is computed again for the
    others.
    """

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks, self._members = tasks, members
        self.max_tasks = -(-tasks // members)

    def note_taken(self, count: int) -> None:
        """Note that a member now has ``count`` tasks."""
        if count == self.max_tasks:
            self._members -= 1
            self._tasks -= count
            self.max_tasks = -(-self._tasks // self._members) if self._members else 0


class _Work:
    """One run of the assignor: the tasks that each member has so far."""

    def __init__(
        self, members: Mapping[str, TaskMember], parts: list[ConfiguredSubtopology], num_standby_replicas: int
    ) -> None:
        self.active: dict[str, set[TaskId]] = {name: set() for name in sorted(members)}
        self.standby: dict[str, set[TaskId]] = {name: set() for name in self.active}
        self._replicas = num_standby_replicas
        self._process_of = {name: members[name].process_id for name in self.active}
        self._members_of: dict[str, list[str]] = {}
        self._had_active: dict[TaskId, str] = {}
        self._had_standby: dict[TaskId, list[str]] = {}
        for name, process in self._process_of.items():
            self._members_of.setdefault(process, []).append(name)
            self._had_active.update(dict.fromkeys(each_task(members[name].previous.active), name))
            for task in each_task(members[name].previous.standby):
                self._had_standby.setdefault(task, []).append(name)
        self._tasks_of: dict[str, set[TaskId]] = {process: set() for process in self._members_of}
        self._counts = dict.fromkeys(self.active, 0)
        self._process_counts = dict.fromkeys(self._members_of, 0)
        count = sum(part.tasks for part in parts)
        copies = num_standby_replicas * sum(part.tasks for part in parts if part.is_stateful)
        self._active_share = _Share(count, len(members))
        self._share = _Share(count + copies, len(members))

    def assign_active(self, tasks: list[TaskId]) -> None:
        tasks = self._give_back(sorted(tasks, key=lambda task: (task[1], task[0])), self._previous_active)
        tasks = self._give_back(tasks, lambda task: self._least_loaded_of(self._had_standby.get(task, ())))
        by_load = self._order_by_load()
        for task in sorted(tasks):
            self._give(self._find_least_loaded(by_load), task, self.active)

    def _give_back(self, tasks: list[TaskId], find: _Find) -> list[TaskId]:
        """Assign each task to the member that ``find`` returns, if that has less than its share. Returns the others."""
        left = []
        for task in tasks:
            name = find(task)
            if name is not None and self._counts[name] < self._active_share.max_tasks:
                self._give(name, task, self.active)
            else:
                left.append(task)
        return left

    def _previous_active(self, task: TaskId) -> str | None:
        return self._had_active.get(task)

    def assign_standby(self, tasks: list[TaskId]) -> None:
        lacking: list[tuple[TaskId, int]] = []
        for task in sorted(tasks, key=lambda task: (task[1], task[0]), reverse=True):
            for number in range(self._replicas):
                name = self._standby_before(task)
                if name is None:
                    lacking.append((task, self._replicas - number))
                    break
                self._give(name, task, self.standby)
        by_load = self._order_by_load()
        for task, count in sorted(lacking, reverse=True):
            self._spread(task, count, by_load)

    def _standby_before(self, task: TaskId) -> str | None:
        """Return a member that has state of the task and may get it: its process lacks the task, and the member has
        fewer tasks than its share.

        The candidates are the member that had the task active, then the least loaded of those that had its standby
        task. Returns None if neither may get the task.
        """
        active = self._had_active.get(task)
        for name in (active, self._least_loaded_of(self._exclude_holders(task, self._had_standby.get(task, ())))):
            if name is not None and self._lacks(name, task) and self._counts[name] < self._share.max_tasks:
                return name
        return None

    def _spread(self, task: TaskId, count: int, by_load: _ByLoad) -> None:
        holders = []
        for number in range(count):
            while by_load and not self._lacks(self._find_least_loaded(by_load), task):
                holders.append(heappop(by_load))
            if not by_load:
                logger.info("streams task %s_%d: no process is left for %d of its standby tasks", *task, count - number)
                break
            self._give(by_load[0][1], task, self.standby)
        for holder in holders:
            heappush(by_load, holder)

    def _order_by_load(self) -> _ByLoad:
        """Return a heap of all members by their load."""
        by_load = [(self._load(name), name) for name in self._counts]
        heapify(by_load)
        return by_load

    def _find_least_loaded(self, by_load: _ByLoad) -> str:
        """Return the member with the lowest load, which is the first in the heap then. Loads only grow: a load in the
        heap may be lower than the member's, never higher."""
        while (load := self._load(by_load[0][1])) != by_load[0][0]:
            heapreplace(by_load, (load, by_load[0][1]))
        return by_load[0][1]

    def _exclude_holders(self, task: TaskId, names: Iterable[str]) -> Iterable[str]:
        return (name for name in names if self._lacks(name, task))

    def _lacks(self, name: str, task: TaskId) -> bool:
        return task not in self._tasks_of[self._process_of[name]]

    def _least_loaded_of(self, names: Iterable[str]) -> str | None:
        return min(names, key=self._load, default=None)

    def _load(self, name: str) -> tuple[float, int]:
        """Return the load of the member's process, then the member's number of tasks."""
        process = self._process_of[name]
        return self._process_counts[process] / len(self._members_of[process]), self._counts[name]

    def _give(self, name: str, task: TaskId, role: dict[str, set[TaskId]]) -> None:
        role[name].add(task)
        self._tasks_of[self._process_of[name]].add(task)
        self._process_counts[self._process_of[name]] += 1
        self._counts[name] += 1
        if role is self.active:
            self._active_share.note_taken(self._counts[name])
        self._share.note_taken(self._counts[name])


def _group_tasks(tasks: Iterable[TaskId]) -> Tasks:
    """Group tasks by subtopology."""
    found: dict[str, set[int]] = {}
    for name, partition in sorted(tasks):
        found.setdefault(name, set()).add(partition)
    return {name: frozenset(partitions) for name, partitions in found.items()}
