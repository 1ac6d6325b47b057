"""Committed offsets of the groups of one partition, and those of open transactions.

    committed   group -> topic -> partition -> OffsetAndMetadata
    pending     producer id -> group -> topic -> partition -> OffsetAndMetadata      (TxnOffsetCommit, no marker yet)
    producers   group -> producer ids with pending commits for it
    index       topic -> groups with a commit of either kind, so that deleting a topic need not search all groups

A transactional commit is a record of a transactional batch; it becomes visible when the marker of its producer is
replayed. If a partition has a plain and a transactional commit, the commit whose *record* is later is valid,
whatever the offset of the marker. So a load gives the same offset after compaction has removed the earlier record.

Only the ``replay`` methods change the offsets. Source: OffsetCommit v0-10, OffsetFetch v0-10, OffsetDelete v0; KIP-98,
KIP-211.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidelog.broker.coordinator.group.records import offset_tombstone
from tidelog.broker.coordinator.runtime.result import CoordinatorRecord
from tidelog.broker.metadata.image import base_of
from tidelog.protocol.coordinator_records.group import OffsetCommitKey, OffsetCommitValue

NO_PRODUCER_ID = -1


class OffsetAndMetadata(NamedTuple):
    """One committed offset. ``record_offset`` is the offset of its record in ``__consumer_offsets``; timestamps are
    wall-clock ms."""

    record_offset: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int


TopicOffsets = dict[str, dict[int, OffsetAndMetadata]]
"""Topic -> partition -> commit."""

NO_OFFSETS: TopicOffsets = {}


class OffsetIndex:
    """Groups by topic, and virtual topics (``orders?key=4711``) by the topic that they read. Loop thread only."""

    __slots__ = ("_groups", "_views")

    def __init__(self) -> None:
        self._groups: dict[str, set[str]] = {}
        self._views: dict[str, set[str]] = {}

    def groups_of(self, topic: str) -> list[str]:
        """Return all groups with offsets of a topic."""
        return list(self._groups.get(topic, ()))

    def views_of(self, topic: str) -> list[str]:
        """Return the names of a topic's virtual topics with offsets. An ordinary topic may have such a name."""
        return list(self._views.get(topic, ()))

    def add(self, topic: str, group_id: str) -> None:
        """Add a group that has an offset of a topic."""
        groups = self._groups.get(topic)
        if groups is None:
            groups = self._groups[topic] = set()
            base = base_of(topic)
            if base != topic:
                self._views.setdefault(base, set()).add(topic)
        groups.add(group_id)

    def remove(self, topic: str, group_id: str) -> None:
        """Remove a group that has no offset of a topic."""
        groups = self._groups.get(topic)
        if groups is None:
            return
        groups.discard(group_id)
        if not groups:
            del self._groups[topic]
            self._forget_view(topic)

    def _forget_view(self, topic: str) -> None:
        base = base_of(topic)
        views = self._views.get(base) if base != topic else None
        if views is not None:
            views.discard(topic)
            if not views:
                del self._views[base]


class OffsetStore:
    """Offsets of the groups of one partition. Only ``replay`` and ``replay_end_transaction`` change them. Loop thread
    only.
    """

    __slots__ = ("_committed", "_pending", "_producers", "index")

    def __init__(self) -> None:
        self._committed: dict[str, TopicOffsets] = {}
        self._pending: dict[int, dict[str, TopicOffsets]] = {}
        self._producers: dict[str, set[int]] = {}
        self.index = OffsetIndex()
        """Topics with offsets, committed or pending."""

    # -- reading ------------------------------------------------------------------------------------------------

    def of_group(self, group_id: str) -> TopicOffsets:
        """Return all committed offsets of a group. The caller must not change them."""
        return self._committed.get(group_id, NO_OFFSETS)

    def get(self, group_id: str, topic: str, partition: int) -> OffsetAndMetadata | None:
        topics = self._committed.get(group_id)
        partitions = topics.get(topic) if topics is not None else None
        return partitions.get(partition) if partitions is not None else None

    def count(self, group_id: str) -> int:
        """Count the group's committed offsets."""
        return sum(map(len, self.of_group(group_id).values()))

    def has_open_transactions(self, group_id: str) -> bool:
        return group_id in self._producers

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Return whether an open transaction has committed an offset for this partition."""
        producers = self._producers.get(group_id)
        if not producers:
            return False
        return any(
            partition in self._pending[producer_id].get(group_id, NO_OFFSETS).get(topic, ())
            for producer_id in producers
        )

    def pending_partitions(self, group_id: str) -> Iterator[tuple[str, int]]:
        """Yield topic and partition of each pending commit of the group, possibly more than once."""
        for producer_id in self._producers.get(group_id, ()):
            for topic, partitions in self._pending[producer_id].get(group_id, NO_OFFSETS).items():
                for partition in partitions:
                    yield topic, partition

    def partitions_of(self, group_id: str, topic: str) -> list[int]:
        """Return the partitions of a topic for which the group has an offset, committed or pending."""
        return sorted({partition for commits in self._commits_of(group_id, topic) for partition in commits})

    def is_older(self, group_id: str, topic: str, partition: int, end_offset: int) -> bool:
        """Return whether all records of the group's commits for a partition, of either kind, are below
        ``end_offset``."""
        found = (commits.get(partition) for commits in self._commits_of(group_id, topic))
        return all(commit is None or commit.record_offset < end_offset for commit in found)

    def _commits_of(self, group_id: str, topic: str) -> Iterator[dict[int, OffsetAndMetadata]]:
        yield self.of_group(group_id).get(topic, {})
        for producer_id in self._producers.get(group_id, ()):
            yield self._pending[producer_id].get(group_id, NO_OFFSETS).get(topic, {})

    # -- deciding -----------------------------------------------------------------------------------------------

    def tombstones(self, group_id: str) -> list[CoordinatorRecord]:
        """Build tombstones for all offsets of the group, committed and pending."""
        partitions = dict.fromkeys(
            (topic, partition) for topic, found in self.of_group(group_id).items() for partition in found
        )
        partitions.update(dict.fromkeys(self.pending_partitions(group_id)))
        return [offset_tombstone(group_id, topic, partition) for topic, partition in partitions]

    # -- changing -----------------------------------------------------------------------------------------------

    def replay(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, *, record_offset: int, producer_id: int
    ) -> None:
        """Apply one offset record, which is in a transaction if ``producer_id`` is not -1."""
        if value is None:
            self._remove(key)
            return
        commit = OffsetAndMetadata(
            record_offset,
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
        )
        if producer_id == NO_PRODUCER_ID:
            topics = self._committed.get(key.group)
            if topics is None:
                topics = self._committed[key.group] = {}
        else:
            topics = self._pending.setdefault(producer_id, {}).setdefault(key.group, {})
            self._producers.setdefault(key.group, set()).add(producer_id)
        partitions = topics.get(key.topic)
        if partitions is None:
            partitions = topics[key.topic] = {}
            self.index.add(key.topic, key.group)
        partitions[key.partition] = commit

    def replay_end_transaction(self, producer_id: int, *, committed: bool) -> list[str]:
        """Apply a transaction marker: pending commits of the producer become visible or are dropped. Returns the groups
        that had any.
        """
        pending = self._pending.pop(producer_id, None)
        if pending is None:
            return []
        for group_id, topics in pending.items():
            self._forget_producer(group_id, producer_id)
            if committed:
                self._materialize(group_id, topics)
            else:
                self._forget_unused(group_id, topics)
        return list(pending)

    def _forget_unused(self, group_id: str, topics: Iterable[str]) -> None:
        """Remove the group from the index of each topic for which it no longer has an offset."""
        for topic in topics:
            if topic in self.of_group(group_id):
                continue
            if any(topic in self._pending[one].get(group_id, NO_OFFSETS) for one in self._producers.get(group_id, ())):
                continue
            self.index.remove(topic, group_id)

    def _materialize(self, group_id: str, topics: TopicOffsets) -> None:
        group = self._committed.setdefault(group_id, {})
        for topic, partitions in topics.items():
            current = group.setdefault(topic, {})
            for partition, commit in partitions.items():
                existing = current.get(partition)
                if existing is None or existing.record_offset < commit.record_offset:
                    current[partition] = commit

    def _remove(self, key: OffsetCommitKey) -> None:
        _remove_from(self._committed, key)
        for producer_id in list(self._producers.get(key.group, ())):
            _remove_from(self._pending[producer_id], key)
            if key.group not in self._pending[producer_id]:
                self._forget_producer(key.group, producer_id)
        self._forget_unused(key.group, (key.topic,))

    def _forget_producer(self, group_id: str, producer_id: int) -> None:
        """Remove a producer that has no pending commits for the group any more."""
        producers = self._producers[group_id]
        producers.discard(producer_id)
        if not producers:
            del self._producers[group_id]


def _remove_from(groups: dict[str, TopicOffsets], key: OffsetCommitKey) -> None:
    topics = groups.get(key.group)
    partitions = topics.get(key.topic) if topics is not None else None
    if topics is None or partitions is None:
        return
    partitions.pop(key.partition, None)
    if not partitions:
        del topics[key.topic]
    if not topics:
        del groups[key.group]
