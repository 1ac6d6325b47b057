"""Server-side assignors of consumer groups: who gets which partition.

    uniform   every member the same number of partitions, give or take one, as far as subscriptions allow; what a member
              has it keeps unless it has too many
    range     per topic, neighbouring partitions to each member in the order of instance id, then member id: topics
              with equally many partitions are assigned alike, so that they can be joined

Pure functions over values. ``uniform`` first drops what may not stay, then hands out what is free to the member
with the least. Then it moves single partitions from the fullest to the emptiest member until they differ by one
at most. Each move lowers the sum of squares, so it ends. Source: KIP-848.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

#: Topic id -> partitions.
Assignment = Mapping[bytes, frozenset[int]]

EMPTY_ASSIGNMENT: Assignment = {}


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """An assignor's view of a member: the topic ids it wants, and the target it has now."""

    topics: frozenset[bytes]
    instance_id: str | None = None
    assigned: Assignment = field(default_factory=dict)


Members = Mapping[str, MemberSpec]
PartitionCounts = Mapping[bytes, int]
Assignor = Callable[[Members, PartitionCounts], dict[str, Assignment]]

_Places = dict[str, set[tuple[bytes, int]]]


def assign_range(members: Members, partition_counts: PartitionCounts) -> dict[str, Assignment]:
    """Assign neighbouring partitions of each topic; the first members get one more where the number does not divide."""
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
    """Assign partitions evenly, and with as little movement as that allows."""
    places = _keep_owned(members, partition_counts)
    taken = {place for owned in places.values() for place in owned}
    for topic_id in sorted(partition_counts, key=lambda topic: (_reader_count(members, topic), topic)):
        readers = [member_id for member_id, spec in members.items() if topic_id in spec.topics]
        free = [(topic_id, index) for index in range(partition_counts[topic_id]) if (topic_id, index) not in taken]
        _hand_out(places, readers, free)
    _level(places, members)
    return {member_id: _by_topic(owned) for member_id, owned in places.items()}


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}


def _keep_owned(members: Members, partition_counts: PartitionCounts) -> _Places:
    """Return the partitions that each member may keep: topics it still wants, partitions that exist, one owner each."""
    taken: set[tuple[bytes, int]] = set()
    places: _Places = {}
    for member_id, spec in members.items():
        owned = {
            (topic_id, index)
            for topic_id, indexes in spec.assigned.items()
            if topic_id in spec.topics
            for index in indexes
            if index < partition_counts.get(topic_id, 0)
        } - taken
        taken |= owned
        places[member_id] = owned
    return places


def _reader_count(members: Members, topic_id: bytes) -> int:
    return sum(topic_id in spec.topics for spec in members.values())


def _hand_out(places: _Places, readers: Collection[str], free: list[tuple[bytes, int]]) -> None:
    if not readers:
        return
    heap = [(len(places[member_id]), member_id) for member_id in readers]
    heapify(heap)
    for place in free:
        load, member_id = heappop(heap)
        places[member_id].add(place)
        heappush(heap, (load + 1, member_id))


def _level(places: _Places, members: Members) -> None:
    """Move partitions from full to empty members while that makes them more alike.

    Always to the emptiest: a fuller member that took one first would have to give it away again.
    """
    moved = True
    while moved:
        moved = False
        heap = [(len(owned), member_id) for member_id, owned in places.items()]
        heapify(heap)
        while heap:
            load, receiver = heappop(heap)
            if load == len(places[receiver]) and _take_one(places, members, receiver):
                heappush(heap, (load + 1, receiver))
                moved = True


def _take_one(places: _Places, members: Members, receiver: str) -> bool:
    """Let the member take a partition of the fullest one that has any it wants and at least two more than it."""
    wanted = members[receiver].topics
    least = len(places[receiver]) + 2
    for giver in sorted(places, key=lambda member_id: (-len(places[member_id]), member_id)):
        if len(places[giver]) < least:
            return False
        place = max((found for found in places[giver] if found[0] in wanted), default=None)
        if place is not None:
            places[giver].discard(place)
            places[receiver].add(place)
            return True
    return False


def _by_topic(places: Collection[tuple[bytes, int]]) -> Assignment:
    topics: dict[bytes, set[int]] = {}
    for topic_id, index in places:
        topics.setdefault(topic_id, set()).add(index)
    return {topic_id: frozenset(indexes) for topic_id, indexes in topics.items()}
