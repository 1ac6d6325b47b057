"""Log directories of a broker's replicas, as the metadata should tell them (KIP-858).

The controllers elect other leaders when a directory fails, so they have to know what lies in it. A replica whose
directory the image does not name, or names wrongly, is assigned; one that the controller refuses is tried again, after
the others. A request whose answer was lost may be taken after a newer one: so each change of a replica in the metadata
is compared with where its log is.

The loss of a copy is told late. A start may find a log empty that the metadata expect records in, or in another
directory while one has failed. Then only the old directory in the metadata keeps the controller from electing this
replica, and the other replicas from cutting their logs to its end. The new directory is told once this replica is in
sync again, or cannot be elected. Sans-io, not thread-safe.

Source: AssignmentsManager of Kafka 4.3, which tells of lost copies at once.
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
"""What the metadata say of a replica whose directory they do not know: the controllers elect it."""
MAX_ASSIGNMENTS = 2250
"""Most partitions in one request, as Kafka's broker sends them."""


class ReplicaDirectories:
    """Replicas of one broker whose directories the metadata may lack."""

    def __init__(self, node_id: int, directory_id_of: Callable[[TopicPartition], bytes | None]) -> None:
        """``directory_id_of`` is the directory of a log, None where there is no log."""
        self._node_id = node_id
        self._directory_id_of = directory_id_of
        self._unassigned: dict[TopicPartition, None] = {}
        self._empty: set[TopicPartition] = set()
        """Logs that were empty at the start, and of which there is still to be told."""
        self._displaced: set[TopicPartition] = set()
        """Logs that may be older copies of some in a directory that failed, and of which there is still to be told."""
        self._lost: set[TopicPartition] = set()
        """Replicas without a directory in the metadata that may lie in one that failed."""
        self._compared = EMPTY_IMAGE
        self.held_back = 0
        """How many logs the last request left out, which others' copies may be better than."""

    def note(self, partitions: Iterable[TopicPartition]) -> None:
        """Note logs that were made, or that lie here from before."""
        self._unassigned.update(dict.fromkeys(partitions))

    def note_empty(self, partitions: Iterable[TopicPartition]) -> None:
        """Note which logs that lie here from before have nothing in them."""
        self._empty.update(partitions)

    def note_displaced(self, partitions: Iterable[TopicPartition]) -> None:
        """Note which logs lie elsewhere than the metadata say while a directory has failed."""
        self._displaced.update(partitions)

    def note_lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Note replicas that were not found while a directory had failed: where the metadata name none they are told
        to be lost, for they could be elected."""
        listed = list(partitions)
        self._lost.update(listed)
        self.note(listed)

    def next_request(self, image: MetadataImage, broker_epoch: int) -> AssignReplicasToDirsRequest | None:
        """Return what to tell the controller by this image, None where it says all."""
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
            if self._is_counted_on(image, partition):
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
        """Return directory and topic id of a replica that lies elsewhere than the image says."""
        directory_id, topic = self._directory_id_of(partition), image.topic_named(partition.topic)
        if topic is None or partition.partition >= len(topic.partitions):
            return None
        state = topic.partitions[partition.partition]
        known = state.directory_of(self._node_id)
        if directory_id is None and partition in self._lost and known in _NOT_NAMED:
            directory_id = LOST_DIRECTORY
        if directory_id is None or directory_id == known or self._node_id not in state.replicas:
            return None
        return directory_id, topic.topic_id

    def _forget(self, partition: TopicPartition) -> None:
        self._empty.discard(partition)
        self._displaced.discard(partition)

    def _is_counted_on(self, image: MetadataImage, partition: TopicPartition) -> bool:
        """Return whether this replica could be elected though there are better copies, and it has not caught up."""
        topic, is_displaced = image.topic_named(partition.topic), partition in self._displaced
        if topic is None or not (is_displaced or partition in self._empty):
            return False
        state, own = topic.partitions[partition.partition], self._node_id
        return is_eligible(state, own) and (is_displaced or has_other_copies(state, own))


def is_eligible(state: PartitionState, node_id: int) -> bool:
    """Return whether the controller could elect a broker that has not caught up, if it knew of its log."""
    if state.leader != NO_LEADER:
        return node_id in state.elr
    return node_id in (*state.isr, *state.elr, *state.last_known_elr)


def has_other_copies(state: PartitionState, node_id: int) -> bool:
    """Return whether other brokers have replicas that stay; in the ELR of a partition with a leader one always has."""
    return state.leader != NO_LEADER or not {node_id, *state.removing}.issuperset(state.replicas)


def changed_partitions(before: MetadataImage, after: MetadataImage) -> Iterator[TopicPartition]:
    """Yield the partitions that an image has with other replicas, or in other directories, than an older one.

    Unchanged parts are shared. Elections are no news: they change all partitions of a cluster at once."""
    if before.topics is after.topics:
        return
    for topic_id, topic in after.topics.items():
        known = before.topics.get(topic_id)
        if known is not None and known is not topic:
            for number, (old, new) in enumerate(zip(known.partitions, topic.partitions, strict=False)):
                if old is not new and (old.directories != new.directories or old.replicas != new.replicas):
                    yield TopicPartition(topic.name, number)


def assigned_topics(topics: Mapping[bytes, Iterable[int]]) -> list[TopicData]:
    """Return partitions by topic id as a request has them."""
    return [
        TopicData(topic_id=topic_id, partitions=[PartitionData(partition_index=one) for one in found])
        for topic_id, found in topics.items()
    ]
