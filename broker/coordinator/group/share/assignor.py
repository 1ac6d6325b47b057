"""The assignor of share groups, ``simple``: every partition has a reader, every member something to read.

    as many partitions as members, or more   each partition to one member, members within one of each other
    more members than partitions             each member one partition, partitions within one of each other

A member keeps what it has as far as that allows. Where members subscribe to different topics, each topic is given out
by itself among those who want it. Pure functions over values. Source: KIP-932.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from heapq import heapify, heapreplace

from tidelog.broker.coordinator.group.assignors import Assignment, Members, PartitionCounts

Place = tuple[bytes, int]


def assign_simple(members: Members, partition_counts: PartitionCounts) -> dict[str, Assignment]:
    """Member id -> partitions."""
    wanted = {member_id: frozenset(spec.topics & partition_counts.keys()) for member_id, spec in members.items()}
    places: dict[str, set[Place]] = {member_id: set() for member_id in members}
    for topics, readers in _parts(wanted):
        targets = [(topic, index) for topic in sorted(topics) for index in range(partition_counts[topic])]
        held = {
            member_id: [place for place in targets if place[1] in members[member_id].assigned.get(place[0], ())]
            for member_id in readers
        }
        for member_id, given in _shared_out(targets, held).items():
            places[member_id] |= given
    return {member_id: _by_topic(owned) for member_id, owned in places.items()}


def _parts(wanted: dict[str, frozenset[bytes]]) -> Iterable[tuple[Collection[bytes], list[str]]]:
    """Sets of topics that are given out together, with those who read them."""
    order = sorted(wanted)
    if len(set(wanted.values())) == 1:
        yield wanted[order[0]], order
        return
    for topic in sorted(frozenset().union(*wanted.values())):
        yield (topic,), [member_id for member_id in order if topic in wanted[member_id]]


def _shared_out(targets: list[Place], held: dict[str, list[Place]]) -> dict[str, set[Place]]:
    """Keep what fits, then fill up: partitions without a reader first, then members with nothing."""
    if not targets or not held:
        return {}
    if len(held) == 1:
        return {member_id: set(targets) for member_id in held}
    member_room = _Room(len(targets), len(held))
    place_room = _Room(len(held), len(targets))
    given: dict[str, set[Place]] = {}
    readers = dict.fromkeys(targets, 0)
    for member_id, places in held.items():
        kept: set[Place] = set()
        given[member_id] = kept
        for place in places:
            if member_room.has(len(kept)) and place_room.has(readers[place]):
                kept.add(place)
                member_room.take(len(kept))
                readers[place] += 1
                place_room.take(readers[place])
    by_load = [(len(kept), member_id) for member_id, kept in given.items()]
    heapify(by_load)
    for place in [place for place in targets if not readers[place]]:
        load, member_id = by_load[0]
        given[member_id].add(place)
        readers[place] = 1
        heapreplace(by_load, (load + 1, member_id))
    without = [places for places in given.values() if not places]
    if without:  # then there are more members than partitions, and each reads one
        by_readers = [(readers[place], number) for number, place in enumerate(targets)]
        heapify(by_readers)
        for reading in without:
            count, number = by_readers[0]
            reading.add(targets[number])
            heapreplace(by_readers, (count + 1, number))
    return given


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


def _by_topic(places: Collection[Place]) -> Assignment:
    topics: dict[bytes, set[int]] = {}
    for topic_id, index in places:
        topics.setdefault(topic_id, set()).add(index)
    return {topic_id: frozenset(indexes) for topic_id, indexes in topics.items()}
