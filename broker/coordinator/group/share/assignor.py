"""The assignor of share groups, ``simple``: every partition gets a member, and every member a partition.

    as many partitions as members, or more   each partition has one member; any two members' numbers of partitions
                                             differ by one at most
    more members than partitions             each member has one partition; any two partitions' numbers of members
                                             differ by one at most

A member keeps its partitions as far as these limits allow. If members subscribe to different topics, each topic is
assigned by itself to its subscribers. Pure functions over values, in steps, as topics may have very many partitions.
Source: KIP-932.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heapreplace
from typing import NamedTuple

from tidelog.broker.coordinator.group.assignors import Assignment, Members, PartitionCounts
from tidelog.broker.loop.steps import ITEMS_PER_STEP, Steps

Partition = tuple[bytes, int]
"""Topic id and index of a partition."""


class Subscriptions(NamedTuple):
    """Input of the assignor: the members, and the partition counts of topics."""

    members: Members
    partition_counts: PartitionCounts


class ComputedAssignment(NamedTuple):
    """Result of the assignor: member id -> partitions, and the input from which it was computed."""

    subscriptions: Subscriptions
    target: Mapping[str, Assignment]


def assign_simple(subscriptions: Subscriptions) -> Steps[ComputedAssignment]:
    """Assign partitions to all members."""
    members, counts = subscriptions
    wanted = {member_id: frozenset(spec.topics & counts.keys()) for member_id, spec in members.items()}
    assigned: dict[str, set[Partition]] = {member_id: set() for member_id in members}
    for topics, readers in _split_by_readers(wanted):
        targets = yield from _list_partitions({topic: range(counts[topic]) for topic in sorted(topics)})
        current = {}
        for member_id in readers:
            topic_counts = {topic: counts[topic] for topic in topics}
            current[member_id] = yield from _list_current(members[member_id].assigned, topic_counts)
        for member_id, partitions in (yield from _distribute(targets, current)).items():
            assigned[member_id] |= partitions
            yield None
    target = {}
    for member_id, owned in assigned.items():
        target[member_id] = yield from _group_by_topic(owned)
    return ComputedAssignment(subscriptions, target)


def _list_partitions(topics: Mapping[bytes, Iterable[int]]) -> Steps[list[Partition]]:
    """List the partitions of topics in order."""
    found = []
    for topic, indexes in topics.items():
        for index in indexes:
            found.append((topic, index))
            if not index % ITEMS_PER_STEP:
                yield None
    return found


def _list_current(assigned: Assignment, counts: PartitionCounts) -> Steps[list[Partition]]:
    """List the partitions of these topics that a member has, in order."""
    return _list_partitions(
        {
            topic: sorted(index for index in assigned[topic] if index < counts[topic])
            for topic in sorted(counts.keys() & assigned.keys())
        }
    )


def _split_by_readers(wanted: dict[str, frozenset[bytes]]) -> Iterable[tuple[Collection[bytes], list[str]]]:
    """Yield sets of topics that are assigned together, each with its subscribers."""
    order = sorted(wanted)
    if len(set(wanted.values())) == 1:
        yield wanted[order[0]], order
        return
    for topic in sorted(frozenset().union(*wanted.values())):
        yield (topic,), [member_id for member_id in order if topic in wanted[member_id]]


def _distribute(targets: list[Partition], current: dict[str, list[Partition]]) -> Steps[dict[str, set[Partition]]]:
    """Keep what members may keep, then assign partitions without a member, then give one to each member without any."""
    if not targets or not current:
        return {}
    if len(current) == 1:
        return {member_id: set(targets) for member_id in current}
    readers = dict.fromkeys(targets, 0)
    assigned = yield from _keep_current(current, readers)
    by_load = [(len(kept), member_id) for member_id, kept in assigned.items()]
    heapify(by_load)
    for number, partition in enumerate(targets):
        if not readers[partition]:
            load, member_id = by_load[0]
            assigned[member_id].add(partition)
            readers[partition] = 1
            heapreplace(by_load, (load + 1, member_id))
        if not number % ITEMS_PER_STEP:
            yield None
    without = [partitions for partitions in assigned.values() if not partitions]
    if without:  # then there are more members than partitions, and each reads one
        yield from _assign_readers(without, targets, readers)
    return assigned


def _keep_current(
    current: dict[str, list[Partition]], readers: dict[Partition, int]
) -> Steps[dict[str, set[Partition]]]:
    """Return what each member keeps, and count it in ``readers``, the number of members of each partition."""
    member_quota = _Quota(len(readers), len(current))
    partition_quota = _Quota(len(current), len(readers))
    assigned: dict[str, set[Partition]] = {}
    for member_id, partitions in current.items():
        kept = assigned[member_id] = set()
        for number, partition in enumerate(partitions):
            if member_quota.allows_more(len(kept)) and partition_quota.allows_more(readers[partition]):
                kept.add(partition)
                member_quota.note(len(kept))
                readers[partition] += 1
                partition_quota.note(readers[partition])
            if not number % ITEMS_PER_STEP:
                yield None
    return assigned


def _assign_readers(
    without: list[set[Partition]], targets: list[Partition], readers: dict[Partition, int]
) -> Steps[None]:
    """Assign to each member without partitions the partition that has the fewest members."""
    by_readers = [(readers[partition], number) for number, partition in enumerate(targets)]
    heapify(by_readers)
    for assigned in without:
        count, number = by_readers[0]
        assigned.add(targets[number])
        heapreplace(by_readers, (count + 1, number))
        yield None


class _Quota:
    """Equal division of ``count`` items among ``takers``: at least one for each; with a remainder, the first ones
    get one more."""

    def __init__(self, count: int, takers: int) -> None:
        self._minimum, self._extras = divmod(count, takers)
        if not self._minimum:
            self._minimum, self._extras = 1, 0

    def allows_more(self, taken: int) -> bool:
        """Return whether a taker with ``taken`` items may have one more."""
        return taken < self._minimum or (taken == self._minimum and self._extras > 0)

    def note(self, taken: int) -> None:
        """Note that a taker now has ``taken`` items, one more than before."""
        self._extras -= taken > self._minimum


def _group_by_topic(partitions: Collection[Partition]) -> Steps[Assignment]:
    topics: dict[bytes, set[int]] = {}
    for number, (topic_id, index) in enumerate(partitions):
        topics.setdefault(topic_id, set()).add(index)
        if not number % ITEMS_PER_STEP:
            yield None
    return {topic_id: frozenset(indexes) for topic_id, indexes in topics.items()}
