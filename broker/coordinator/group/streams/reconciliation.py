"""Reconciliation: steps of a streams group's member from its current assignment to its target.

    keep = current tasks in the target, revoke = current tasks not in it, free = other tasks of the target that are free

    the member is in UnrevokedTasks and
    still owns tasks that it must revoke  -> no change
    the member still owns tasks of revoke -> UnrevokedTasks, with keep, in its current epoch, or the next one if
                                             it has just given up the previous tasks to revoke
    else                                  -> the target's epoch, with keep and free: UnreleasedTasks while other tasks
                                             of the target are not free, else Stable

An active task is free when no other member has it active, and no other member of the same process has it in any role. A
standby or warm-up task is free when no other member of the same process has it: a process has one state directory for
a task. A member that does not report its tasks still owns all of them. Pure functions. Source: KIP-1071.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tidelog.broker.coordinator.group.streams.group import (
    NO_TASKS,
    StreamsAssignment,
    StreamsMember,
    StreamsMemberState,
    TaskId,
    Tasks,
    TaskSet,
    each_task,
    is_reconciled,
)


@dataclass(slots=True)
class HeldTasks:
    """Tasks of other members, also those that they must still revoke. ``active`` has the active tasks of all of them,
    ``in_process`` the tasks in any role of those in one process."""

    active: set[TaskId] = field(default_factory=set)
    in_process: set[TaskId] = field(default_factory=set)


def find_held_by_others(members: Iterable[StreamsMember], member_id: str, process_id: str) -> HeldTasks:
    """Return the tasks of all members except one, which belongs to this process."""
    held = HeldTasks()
    for member in members:
        if member.member_id == member_id:
            continue
        for tasks in (member.current.assigned, member.current.pending_revocation):
            held.active.update(each_task(tasks.active))
            if member.spec.process_id == process_id:
                for role in tasks:
                    held.in_process.update(each_task(role))
    return held


def reconcile_tasks(
    current: StreamsAssignment,
    find_held_by_others: Callable[[], HeldTasks],
    *,
    target: TaskSet,
    target_epoch: int,
    owned: TaskSet | None,
) -> StreamsAssignment:
    """Compute a member's next assignment; the same object if nothing changes. ``owned`` is its report, or None.

    ``find_held_by_others`` iterates over all members, so it is only called if the assignment may change.
    """
    if is_reconciled(current, target_epoch):
        return current
    epoch = current.epoch
    if current.state is StreamsMemberState.UNREVOKED_TASKS:
        if owned is None or owned.intersects(current.pending_revocation):
            return current
        epoch = min(epoch + 1, target_epoch)
    keep = TaskSet(*map(_common, current.assigned, target))
    revoke = TaskSet(*map(_subtract, current.assigned, keep))
    if any(revoke) and (owned is None or owned.intersects(revoke)):
        return _move(current, epoch, StreamsMemberState.UNREVOKED_TASKS, keep, revoke)
    wanted = TaskSet(*map(_subtract, target, keep))
    held = find_held_by_others()
    free = TaskSet(
        _free(wanted.active, held.active | held.in_process),
        _free(wanted.standby, held.in_process),
        _free(wanted.warmup, held.in_process),
    )
    state = StreamsMemberState.STABLE if free == wanted else StreamsMemberState.UNRELEASED_TASKS
    return _move(current, target_epoch, state, TaskSet(*map(_merge, keep, free)), NO_TASKS)


def _common(mine: Tasks, theirs: Tasks) -> Tasks:
    return _drop_empty({name: partitions & theirs.get(name, frozenset()) for name, partitions in mine.items()})


def _subtract(mine: Tasks, taken: Tasks) -> Tasks:
    return _drop_empty({name: partitions - taken.get(name, frozenset()) for name, partitions in mine.items()})


def _free(wanted: Tasks, held: Collection[TaskId]) -> Tasks:
    return _drop_empty(
        {
            name: frozenset(partition for partition in partitions if (name, partition) not in held)
            for name, partitions in wanted.items()
        }
    )


def _drop_empty(tasks: Mapping[str, frozenset[int]]) -> Tasks:
    return {name: partitions for name, partitions in tasks.items() if partitions}


def _merge(first: Tasks, second: Tasks) -> Tasks:
    return {name: first.get(name, frozenset()) | second.get(name, frozenset()) for name in {**first, **second}}


def _move(
    current: StreamsAssignment, epoch: int, state: StreamsMemberState, assigned: TaskSet, revoke: TaskSet
) -> StreamsAssignment:
    previous = current.epoch if epoch != current.epoch else current.previous_epoch
    epochs = {task: current.epochs.get(task, epoch) for tasks in (assigned, revoke) for task in each_task(tasks.active)}
    moved = StreamsAssignment(epoch, previous, state, assigned, revoke, epochs)
    return current if moved == current else moved
