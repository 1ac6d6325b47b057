"""The assignor of share groups, ``simple``: every partition has a reader, every member something to read.

    as many partitions as members, or more   each partition to one member, members within one of each other
    more members than partitions             each member one partition, partitions within one of each other

A member keeps what it has as far as that allows. Where members subscribe to different topics, each topic is given out
by itself among those who want it. Pure functions over values, in steps: 10,000 partitions take 20 ms. Source: KIP-932.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heapreplace
from typing import NamedTuple

from tidelog.broker.coordinator.group.assignors import Assignment, Members, PartitionCounts
from tidelog.broker.loop.steps import ITEMS_PER_STEP, Steps

Place = tuple[bytes, int]


class Subscriptions(NamedTuple):
    """The assignor's input."""

    members: Members
    partition_counts: PartitionCounts


class Assigned(NamedTuple):
    """A result of the assignor: member id -> partitions, and what it was worked out for."""

    subscriptions: Subscriptions
    target: Mapping[str, Assignment]


def assign_simple(subscriptions: Subscriptions) -> Steps[Assigned]:
    """Give every member its partitions."""
    members, counts = subscriptions
    wanted = {member_id: frozenset(spec.topics & counts.keys()) for member_id, spec in members.items()}
    places: dict[str, set[Place]] = {member_id: set() for member_id in members}
    for topics, readers in _parts(wanted):
        targets = yield from _places({topic: range(counts[topic]) for topic in sorted(topics)})
        held = {}
        for member_id in readers:
            held[member_id] = yield from _held(members[member_id].assigned, {topic: counts[topic] for topic in topics})
        for member_id, given in (yield from _shared_out(targets, held)).items():
            places[member_id] |= given
            yield None
    target = {}
    for member_id, owned in places.items():
        target[member_id] = yield from _by_topic(owned)
    return Assigned(subscriptions, target)


def _places(topics: Mapping[bytes, Iterable[int]]) -> Steps[list[Place]]:
    """List partitions in order."""
    found = []
    for topic, indexes in topics.items():
        for index in indexes:
            found.append((topic, index))
            if not index % ITEMS_PER_STEP:
                yield None
    return found


def _held(assigned: Assignment, counts: PartitionCounts) -> Steps[list[Place]]:
    """List the partitions that a member has of these topics, in order."""
    return _places(
        {
            topic: sorted(index for index in assigned[topic] if index < counts[topic])
            for topic in sorted(counts.keys() & assigned.keys())
        }
    )


def _parts(wanted: dict[str, frozenset[bytes]]) -> Iterable[tuple[Collection[bytes], list[str]]]:
    """Yield sets of topics that are given out together, with those who read them."""
    order = sorted(wanted)
    if len(set(wanted.values())) == 1:
        yield wanted[order[0]], order
        return
    for topic in sorted(frozenset().union(*wanted.values())):
        yield (topic,), [member_id for member_id in order if topic in wanted[member_id]]


def _shared_out(targets: list[Place], held: dict[str, list[Place]]) -> Steps[dict[str, set[Place]]]:
    """Keep what fits, then fill up: partitions without a reader first, then members with nothing."""
    if not targets or not held:
        return {}
    if len(held) == 1:
        return {member_id: set(targets) for member_id in held}
    readers = dict.fromkeys(targets, 0)
    given = yield from _kept(held, readers)
    by_load = [(len(kept), member_id) for member_id, kept in given.items()]
    heapify(by_load)
    for number, place in enumerate(targets):
        if not readers[place]:
            load, member_id = by_load[0]
            given[member_id].add(place)
            readers[place] = 1
            heapreplace(by_load, (load + 1, member_id))
        if not number % ITEMS_PER_STEP:
            yield None
    without = [places for places in given.values() if not places]
    if without:  # then there are more members than partitions, and each reads one
        yield from _joined(without, targets, readers)
    return given


def _kept(held: dict[str, list[Place]], readers: dict[Place, int]) -> Steps[dict[str, set[Place]]]:
    """Return what each member keeps, and count it in ``readers``."""
    member_room = _Room(len(readers), len(held))
    place_room = _Room(len(held), len(readers))
    given: dict[str, set[Place]] = {}
    for member_id, places in held.items():
        kept = given[member_id] = set()
        for number, place in enumerate(places):
            if member_room.has(len(kept)) and place_room.has(readers[place]):
                kept.add(place)
                member_room.take(len(kept))
                readers[place] += 1
                place_room.take(readers[place])
            if not number % ITEMS_PER_STEP:
                yield None
    return given


def _joined(without: list[set[Place]], targets: list[Place], readers: dict[Place, int]) -> Steps[None]:
    """Have each member that has nothing read a partition with the fewest readers."""
    by_readers = [(readers[place], number) for number, place in enumerate(targets)]
    heapify(by_readers)
    for reading in without:
        count, number = by_readers[0]
        reading.add(targets[number])
        heapreplace(by_readers, (count + 1, number))
        yield None


class _Room:
    """Quota of ``count`` things for each of ``takers``: the same number, and at least one; some one more."""

    def __init__(self, count: int, takers: int) -> None:
        self._least, self._extras = divmod(count, takers)
        if not self._least:
            self._least, self._extras = 1, 0

    def has(self, taken: int) -> bool:
        """Return whether one who has ``taken`` may have another."""
        return taken < self._least or (taken == self._least and self._extras > 0)

    def take(self, taken: int) -> None:
        """Note that one more came to ``taken``."""
        self._extras -= taken > self._least


def _by_topic(places: Collection[Place]) -> Steps[Assignment]:
    topics: dict[bytes, set[int]] = {}
    for number, (topic_id, index) in enumerate(places):
        topics.setdefault(topic_id, set()).add(index)
        if not number % ITEMS_PER_STEP:
            yield None
    return {topic_id: frozenset(indexes) for topic_id, indexes in topics.items()}
