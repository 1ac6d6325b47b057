"""Reconciliation: steps of a member from its current assignment to its target, so that no partition has two owners.

    keep    current partitions that are in the target
    revoke  current partitions that are not
    gain    partitions of the target that no other member owns

    the member still owns partitions of revoke -> UnrevokedPartitions, with keep, in its current epoch; in the next one
                                                  if it has just given up the partitions it had to revoke before
    else                                       -> the target's epoch, with keep and gain: UnreleasedPartitions while
                                                  other members own partitions of the target, else Stable

A member reports its partitions in each heartbeat in which they have changed. Without a report it is assumed to own all
of them still. Pure function. Source: KIP-848.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.broker.coordinator.group.assignors import Assignment
from tidelog.broker.coordinator.group.consumer.group import CurrentAssignment, MemberState

OwnedPartitions = Mapping[bytes, frozenset[int]] | None
"""Topic id -> partitions that a member reports to own; None if its request has no report."""


def reconcile(
    group_owners: Mapping[tuple[bytes, int], str],
    member_id: str,
    current: CurrentAssignment,
    *,
    target: Assignment,
    target_epoch: int,
    owned: OwnedPartitions,
) -> CurrentAssignment:
    """Compute a member's next assignment; the same object if nothing changes. ``owned`` is its report, or None."""
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    epoch = current.epoch
    if current.state is MemberState.UNREVOKED_PARTITIONS:
        if _holds(owned, current.pending_revocation):
            return current
        epoch = min(epoch + 1, target_epoch)
    keep, revoke, gain, must_wait = _split(group_owners, member_id, current.assigned, target)
    if revoke and _holds(owned, revoke):
        return _change(current, epoch, MemberState.UNREVOKED_PARTITIONS, keep, revoke)
    state = MemberState.UNRELEASED_PARTITIONS if must_wait else MemberState.STABLE
    return _change(current, target_epoch, state, _merge(keep, gain), {})


def _holds(owned: OwnedPartitions, partitions: Assignment) -> bool:
    """Return whether the member may still own one of these partitions."""
    if owned is None:
        return True
    return any(not indexes.isdisjoint(owned.get(topic_id, frozenset())) for topic_id, indexes in partitions.items())


def _split(
    owners: Mapping[tuple[bytes, int], str], member_id: str, assigned: Assignment, target: Assignment
) -> tuple[dict[bytes, frozenset[int]], dict[bytes, frozenset[int]], dict[bytes, frozenset[int]], bool]:
    """Return keep, revoke, gain, and whether other members own partitions of the target."""
    keep: dict[bytes, frozenset[int]] = {}
    revoke: dict[bytes, frozenset[int]] = {}
    gain: dict[bytes, frozenset[int]] = {}
    must_wait = False
    for topic_id in dict.fromkeys([*target, *assigned]):
        wanted, has = target.get(topic_id, frozenset()), assigned.get(topic_id, frozenset())
        new = wanted - has
        free = frozenset(index for index in new if owners.get((topic_id, index), member_id) == member_id)
        must_wait = must_wait or len(free) < len(new)
        for found, part in ((keep, has & wanted), (revoke, has - wanted), (gain, free)):
            if part:
                found[topic_id] = part
    return keep, revoke, gain, must_wait


def _merge(first: Assignment, second: Assignment) -> Assignment:
    merged = dict(first)
    for topic_id, indexes in second.items():
        merged[topic_id] = merged.get(topic_id, frozenset()) | indexes
    return merged


def _change(
    current: CurrentAssignment, epoch: int, state: MemberState, assigned: Assignment, revoke: Assignment
) -> CurrentAssignment:
    previous = current.epoch if epoch != current.epoch else current.previous_epoch
    epochs = {
        (topic_id, index): current.epochs.get((topic_id, index), epoch)
        for assignment in (assigned, revoke)
        for topic_id, indexes in assignment.items()
        for index in indexes
    }
    changed = CurrentAssignment(epoch, previous, state, assigned, revoke, epochs)
    return current if changed == current else changed


def is_subset(owned: OwnedPartitions, assigned: Assignment) -> bool:
    """Return whether the member reports only partitions of ``assigned``; False without a report."""
    if owned is None:
        return False
    return all(indexes <= assigned.get(topic_id, frozenset()) for topic_id, indexes in owned.items())
