"""Replicas of a broker whose log directories the metadata lack or name wrongly (KIP-858).

The controllers elect other leaders when a directory fails, so they have to know which replicas are in it. Each replica
whose directory the image lacks or names wrongly is assigned; one that the controller refuses is tried again, after the
others. A request whose answer was lost may take effect after a newer one. So each change of a replica in the metadata
is compared with the directory of its log.

The loss of a copy is reported late. At its start a broker may find a log empty that should have records, or in another
directory while one has failed. Then only the old directory in the metadata keeps the controller from electing this
replica, whose followers would truncate their logs to its end. The new directory is reported once this replica is in
sync again, or cannot be elected.

A replica whose log cannot be served, though its directory works, is reported as lost if another replica can lead. Then
the controller removes it from the ISR and elects another leader. Sans-io, not thread-safe.

Source: AssignmentsManager of Kafka 4.3, which reports lost copies at once. Kafka's broker takes the whole directory
offline if one log fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from tidelog.broker.metadata.image import LOST_DIRECTORY, MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY
from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE, NO_LEADER, MetadataImage, PartitionState
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    DirectoryData,
    PartitionData,
    TopicData,
)

_NOT_NAMED = (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY)
"""Directory ids of replicas whose directory the metadata do not know: the controllers may elect these."""
MAX_ASSIGNMENTS = 2250
"""Largest number of partitions in one request, as in Kafka."""


class ReplicaDirectories:
    """Replicas of one broker whose directories the metadata may lack or name wrongly."""

    def __init__(self, node_id: int, directory_id_of: Callable[[TopicPartition], bytes | None]) -> None:
        """``directory_id_of`` returns the id of a log's directory, LOST_DIRECTORY if the log cannot be served; None if
        there is no log.
        """
        self._node_id = node_id
        self._directory_id_of = directory_id_of
        self._unassigned: dict[TopicPartition, None] = {}
        self._empty: set[TopicPartition] = set()
        """Logs that were empty at the start, and whose directories are not reported yet."""
        self._displaced: set[TopicPartition] = set()
        """Logs that may be older copies of logs in a failed directory, and whose directories are not reported yet."""
        self._lost: set[TopicPartition] = set()
        """Replicas that may be in a failed directory, where the metadata name none."""
        self._compared = EMPTY_IMAGE
        self.held_back = 0
        """Number of logs that the last request left out because other copies may be better."""

    def note(self, partitions: Iterable[TopicPartition]) -> None:
        """Note logs that were created, or found at the start."""
        self._unassigned.update(dict.fromkeys(partitions))

    def note_empty(self, partitions: Iterable[TopicPartition]) -> None:
        """Note the logs that were found empty at the start."""
        self._empty.update(partitions)

    def note_displaced(self, partitions: Iterable[TopicPartition]) -> None:
        """Note the logs that are not in the directory that the metadata name, while a directory has failed."""
        self._displaced.update(partitions)

    def note_lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Note replicas that were not found while a directory had failed. Where the metadata name no directory, they
        are reported as lost, because they could be elected."""
        listed = list(partitions)
        self._lost.update(listed)
        self.note(listed)

    def next_request(self, image: MetadataImage, broker_epoch: int) -> AssignReplicasToDirsRequest | None:
        """Return the assignments that this image lacks as a request, MAX_ASSIGNMENTS at most; None if there is none to
        report now. Until an image has an assignment, later requests repeat it."""
        self.note(changed_partitions(self._compared, image))
        self._compared = image
        self.held_back = 0
        wanted: dict[bytes, dict[bytes, list[int]]] = {}
        for partition in list(islice(self._unassigned, MAX_ASSIGNMENTS)):
            del self._unassigned[partition]
            assignment = self._assignment(image, partition)
            if assignment is None:
                self._forget(partition)
                continue
            self._unassigned[partition] = None
            if self._leads_alone(image, partition):
                continue
            if self._may_be_elected_wrongly(image, partition):
                self.held_back += 1
                continue
            self._forget(partition)
            directory_id, topic_id = assignment
            wanted.setdefault(directory_id, {}).setdefault(topic_id, []).append(partition.partition)
        if not wanted:
            return None
        directories = [DirectoryData(id=one, topics=assigned_topics(topics)) for one, topics in wanted.items()]
        return AssignReplicasToDirsRequest(broker_id=self._node_id, broker_epoch=broker_epoch, directories=directories)

    def _assignment(self, image: MetadataImage, partition: TopicPartition) -> tuple[bytes, bytes] | None:
        """Return the directory id and topic id to report for a replica. None if the image has that directory and no
        election waits for the report, or if this broker has no such log or replica.
        """
        directory_id, topic = self._directory_id_of(partition), image.topic_by_name(partition.topic)
        if topic is None or partition.partition >= len(topic.partitions):
            return None
        state = topic.partitions[partition.partition]
        known = state.directory_of(self._node_id)
        if directory_id is None and partition in self._lost and known in _NOT_NAMED:
            directory_id = LOST_DIRECTORY
        if directory_id is None or self._node_id not in state.replicas:
            return None
        if directory_id == known and (directory_id == LOST_DIRECTORY or not self._awaits_election(image, state)):
            return None
        return directory_id, topic.topic_id

    def _awaits_election(self, image: MetadataImage, state: PartitionState) -> bool:
        """Return whether a partition has no leader although this broker could lead it. When a broker assigns a replica,
        Kafka's controller elects a leader by the replica's former directory. So if that was lost, a second assignment
        is needed.
        """
        own = image.brokers.get(self._node_id)
        is_active = own is not None and not own.is_fenced
        return is_active and state.leader == NO_LEADER and is_eligible(state, self._node_id)

    def _leads_alone(self, image: MetadataImage, partition: TopicPartition) -> bool:
        """Return whether a log cannot be served, and no other replica could lead if that was reported: then the report
        would help no client.
        """
        topic = image.topic_by_name(partition.topic)
        if topic is None or self._directory_id_of(partition) != LOST_DIRECTORY:
            return False
        state = topic.partitions[partition.partition]
        able = {*state.isr, *state.elr}
        others = (image.brokers.get(one) for one in able if one != self._node_id)
        return self._node_id in able and all(
            one is None or one.is_fenced or one.in_controlled_shutdown for one in others
        )

    def _forget(self, partition: TopicPartition) -> None:
        self._empty.discard(partition)
        self._displaced.discard(partition)

    def _may_be_elected_wrongly(self, image: MetadataImage, partition: TopicPartition) -> bool:
        """Return whether a report could get this replica elected, though other copies are better."""
        topic, is_displaced = image.topic_by_name(partition.topic), partition in self._displaced
        if topic is None or not (is_displaced or partition in self._empty):
            return False
        state, own = topic.partitions[partition.partition], self._node_id
        return is_eligible(state, own) and (is_displaced or has_other_copies(state, own))


def is_eligible(state: PartitionState, node_id: int) -> bool:
    """Return whether the controller could elect this broker, though its replica is not in sync, once the metadata have
    the replica's directory. While there is a leader, the replicas in the ISR are in sync."""
    if state.leader != NO_LEADER:
        return node_id in state.elr
    return node_id in (*state.isr, *state.elr, *state.last_known_elr)


def has_other_copies(state: PartitionState, node_id: int) -> bool:
    """Return whether other brokers have replicas that are not being removed. If there is a leader, it has one."""
    return state.leader != NO_LEADER or not {node_id, *state.removing}.issuperset(state.replicas)


def changed_partitions(before: MetadataImage, after: MetadataImage) -> Iterator[TopicPartition]:
    """Yield the partitions of both images whose replicas or directories differ.

    The images share unchanged parts. Elections are left out: they may change all partitions of a cluster at once."""
    if before.topics is after.topics:
        return
    for topic_id, topic in after.topics.items():
        known = before.topics.get(topic_id)
        if known is not None and known is not topic:
            for number, (old, new) in enumerate(zip(known.partitions, topic.partitions, strict=False)):
                if old is not new and (old.directories != new.directories or old.replicas != new.replicas):
                    yield TopicPartition(topic.name, number)


def assigned_topics(topics: Mapping[bytes, Iterable[int]]) -> list[TopicData]:
    """Build the topics of a request from partitions by topic id."""
    return [
        TopicData(topic_id=topic_id, partitions=[PartitionData(partition_index=one) for one in found])
        for topic_id, found in topics.items()
    ]
