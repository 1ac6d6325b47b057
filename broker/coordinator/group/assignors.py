"""Server-side assignors of consumer groups: they assign partitions to members.

    uniform   all members get the same number of partitions, or one more, as far as subscriptions allow; a member keeps
              its partitions unless it has too many
    range     for each topic, neighbouring partitions to each member, in the order of instance ids (of member ids, for
              members without): topics with equal partition counts and subscribers are assigned alike, so that an
              application can join them

Pure functions over values. ``uniform`` first removes partitions that a member may not keep. It then assigns each free
partition to the subscribed member with the fewest. Finally it moves single partitions from a member with more to one
with fewer, as long as the two differ by two or more. Each move lowers the sum of squares of the members' counts, so the
moves come to an end. Source: KIP-848.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

Assignment = Mapping[bytes, frozenset[int]]
"""Topic id -> partitions."""

EMPTY_ASSIGNMENT: Assignment = {}


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """Input of an assignor for one member: the ids of its subscribed topics, its instance id, and its current target
    assignment."""

    topics: frozenset[bytes]
    instance_id: str | None = None
    assigned: Assignment = field(default_factory=dict)


Members = Mapping[str, MemberSpec]
PartitionCounts = Mapping[bytes, int]
"""Topic id -> number of partitions."""
Assignor = Callable[[Members, PartitionCounts], dict[str, Assignment]]

_Owned = dict[str, set[tuple[bytes, int]]]
"""Member id -> its partitions, as pairs of topic id and index."""


def assign_range(members: Members, partition_counts: PartitionCounts) -> dict[str, Assignment]:
    """Assign neighbouring partitions of each topic; with a remainder, the first members get one more."""
    order = sorted(members, key=lambda member_id: (members[member_id].instance_id or member_id, member_id))
    assigned: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic_id, count in partition_counts.items():
        readers = [member_id for member_id in order if topic_id in members[member_id].topics]
        if not readers:
            continue
        share, extra = divmod(count, len(readers))
        begin = 0
        for index, member_id in enumerate(readers):
            end = begin + share + (index < extra)
            if end > begin:
                assigned[member_id][topic_id] = frozenset(range(begin, end))
            begin = end
    return dict(assigned)


def assign_uniform(members: Members, partition_counts: PartitionCounts) -> dict[str, Assignment]:
    """Assign partitions evenly. A member loses only partitions that it may not keep or of which it has too many."""
    owned = _keep_owned(members, partition_counts)
    taken = {partition for partitions in owned.values() for partition in partitions}
    subscribers: dict[frozenset[bytes], list[str]] = {}
    for member_id, spec in members.items():
        subscribers.setdefault(spec.topics, []).append(member_id)

    def order(topic_id: bytes) -> tuple[int, bytes]:
        return sum(len(found) for topics, found in subscribers.items() if topic_id in topics), topic_id

    for topic_id in sorted(partition_counts, key=order):
        free = [(topic_id, index) for index in range(partition_counts[topic_id]) if (topic_id, index) not in taken]
        if free:
            readers = [one for topics, found in subscribers.items() if topic_id in topics for one in found]
            _assign_free(owned, readers, free)
    _move_to_equal(owned, members)
    return {member_id: _group_by_topic(partitions) for member_id, partitions in owned.items()}


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}


def _keep_owned(members: Members, partition_counts: PartitionCounts) -> _Owned:
    """Return the partitions that each member keeps: those of its topics that exist, each with one owner."""
    taken: set[tuple[bytes, int]] = set()
    owned: _Owned = {}
    for member_id, spec in members.items():
        kept = {
            (topic_id, index)
            for topic_id, indexes in spec.assigned.items()
            if topic_id in spec.topics
            for index in indexes
            if index < partition_counts.get(topic_id, 0)
        } - taken
        taken |= kept
        owned[member_id] = kept
    return owned


def _assign_free(owned: _Owned, readers: Collection[str], free: list[tuple[bytes, int]]) -> None:
    """Assign each free partition to the reader that has the fewest partitions."""
    if not readers:
        return
    heap = [(len(owned[member_id]), member_id) for member_id in readers]
    heapify(heap)
    for partition in free:
        load, member_id = heappop(heap)
        owned[member_id].add(partition)
        heappush(heap, (load + 1, member_id))


def _move_to_equal(owned: _Owned, members: Members) -> None:
    """Move partitions from members with many to members with few, while that makes their numbers more equal.

    Each partition goes to the member with the fewest: a member with more would have to give it up again later.
    """
    moves = _Moves(owned, members)
    moved = True
    while moved:
        moved = False
        heap = [(len(partitions), member_id) for member_id, partitions in owned.items()]
        heapify(heap)
        while heap:
            load, receiver = heappop(heap)
            if load == len(owned[receiver]) and moves.take_one(receiver):
                heappush(heap, (load + 1, receiver))
                moved = True


class _Moves:
    """Partitions of members that may give some. They are in order, so that a move need not look at all of a member's
    partitions."""

    def __init__(self, owned: _Owned, members: Members) -> None:
        self._owned = owned
        self._members = members
        self._givers = [(-len(partitions), member_id) for member_id, partitions in owned.items()]
        """A heap, the member with the most partitions first. An entry with another number than the member's is
        obsolete."""
        heapify(self._givers)
        self._ordered: dict[str, _OrderedPartitions] = {}
        """Partitions of each member that was asked for one."""

    def take_one(self, receiver: str) -> bool:
        """Move one partition of the receiver's topics to it. The giver is the member with the most partitions among
        those that have such a partition. Returns False if none of these has at least two partitions more than the
        receiver."""
        minimum = len(self._owned[receiver]) + 2
        passed_over = []
        found = None
        while self._givers and found is None and -self._givers[0][0] >= minimum:
            entry = heappop(self._givers)
            if -entry[0] == len(self._owned[entry[1]]):
                passed_over.append(entry)
                found = self._ordered_of(entry[1]).find_last(self._members[receiver].topics)
        if found is not None:
            self._move(passed_over.pop()[1], receiver, found)
        for entry in passed_over:
            heappush(self._givers, entry)
        return found is not None

    def _ordered_of(self, member_id: str) -> _OrderedPartitions:
        ordered = self._ordered.get(member_id)
        if ordered is None:
            ordered = self._ordered[member_id] = _OrderedPartitions(self._owned[member_id])
        return ordered

    def _move(self, giver: str, receiver: str, partition: tuple[bytes, int]) -> None:
        self._ordered[giver].remove(partition)
        if receiver in self._ordered:
            self._ordered[receiver].add(partition)
        self._owned[giver].discard(partition)
        self._owned[receiver].add(partition)
        for member_id in (giver, receiver):
            heappush(self._givers, (-len(self._owned[member_id]), member_id))


class _OrderedPartitions:
    """Partitions of one member: its topics in order, and of each topic the indexes in order."""

    def __init__(self, partitions: Iterable[tuple[bytes, int]]) -> None:
        self._indexes: dict[bytes, list[int]] = {}
        for topic_id, index in sorted(partitions):
            self._indexes.setdefault(topic_id, []).append(index)
        self._topics = list(self._indexes)

    def find_last(self, wanted: Container[bytes]) -> tuple[bytes, int] | None:
        """Return the last partition of the wanted topics, or None."""
        topic_id = next((one for one in reversed(self._topics) if one in wanted), None)
        return None if topic_id is None else (topic_id, self._indexes[topic_id][-1])

    def add(self, partition: tuple[bytes, int]) -> None:
        """Add a partition that is not among these."""
        topic_id, index = partition
        if topic_id not in self._indexes:
            insort(self._topics, topic_id)
        insort(self._indexes.setdefault(topic_id, []), index)

    def remove(self, partition: tuple[bytes, int]) -> None:
        """Remove a partition that ``find_last`` has returned."""
        topic_id, _ = partition
        self._indexes[topic_id].pop()
        if not self._indexes[topic_id]:
            del self._indexes[topic_id], self._topics[bisect_left(self._topics, topic_id)]


def _group_by_topic(partitions: Collection[tuple[bytes, int]]) -> Assignment:
    topics: dict[bytes, set[int]] = {}
    for topic_id, index in partitions:
        topics.setdefault(topic_id, set()).add(index)
    return {topic_id: frozenset(indexes) for topic_id, indexes in topics.items()}
