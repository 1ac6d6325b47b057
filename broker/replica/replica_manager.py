"""The partitions this broker holds, by topic and index; the listener through which topics come, change and go.

A :class:`Partition` is made when first asked for and its log is opened when that is first touched. So a partition
that is never used costs nothing beyond its name. Partitions are filed under their topic's id: a topic that is deleted
and made again is another topic, and a stale object can never be found under its name. Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.metadata.image import UNASSIGNED_DIRECTORY, MetadataCache, TopicImage
from tidelog.broker.replica.group_flush import InThread
from tidelog.broker.replica.index_proofs import IndexProofs
from tidelog.broker.replica.partition import Partition
from tidelog.broker.replica.purgatory import Purgatory
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.protocol.errors import (
    KafkaStorageError,
    NotLeaderOrFollowerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from tidelog.broker.metadata.metadata_image import PartitionState
    from tidelog.broker.replica.replication.roles import Roles
    from tidelog.log.config import LogConfig
    from tidelog.log.leader_epochs import LeaderEpochCache
    from tidelog.log.manager import LogManager

logger = logging.getLogger(__name__)

EAGER_LOGS = 64
"""Logs made each EAGER_WINDOW_MS before requests that create partitions are answered: each costs a millisecond of a
thread and three descriptors, and a request may create 10,000, of one topic or of a hundred. The first of each is
always made, so that a disk that takes nothing is told to who creates the topic."""
EAGER_WINDOW_MS = 1000


class ReplicaManager:
    """Finds partitions; makes and removes them as topics come and go (a ``TopicListener``)."""

    __slots__ = (
        "_eager_left",
        "_eager_until_ms",
        "_in_thread",
        "_log_config",
        "_log_manager",
        "_make_way",
        "_metadata",
        "_node_id",
        "_on_index_configs",
        "_on_log_deleted",
        "_partitions",
        "_proofs",
        "_purgatory",
        "_removed",
        "_topics",
        "_virtual_partition",
        "roles",
    )

    def __init__(
        self,
        *,
        metadata: MetadataCache,
        log_manager: LogManager,
        purgatory: Purgatory,
        log_config: Callable[[TopicImage], LogConfig],
        in_thread: InThread,
        node_id: int,
        make_way: Callable[[str], object],
        on_log_deleted: Callable[[TopicPartition], object],
        on_index_configs: Callable[[TopicImage], object],
        virtual_partition: Callable[[TopicImage, int], Partition],
    ) -> None:
        """``make_way`` moves what lies where a new topic's logs go; ``on_index_configs`` is told of topics that are
        made, widened or get other configs; ``virtual_partition`` finds those of virtual topics."""
        self._metadata = metadata
        self._topics = metadata.topics
        self._log_manager = log_manager
        self._purgatory = purgatory
        self._log_config = log_config
        self._in_thread = in_thread
        self._proofs = IndexProofs(in_thread)
        self._node_id = node_id
        self._partitions: dict[bytes, dict[int, Partition]] = {}
        self._removed: dict[bytes, dict[int, Partition]] = {}
        """Partitions whose logs are being removed."""
        self._eager_left = EAGER_LOGS
        self._eager_until_ms = 0.0
        self._make_way = make_way
        self._on_log_deleted = on_log_deleted
        self._on_index_configs = on_index_configs
        self._virtual_partition = virtual_partition
        self.roles: Roles | None = None
        """Decides about partitions with several replicas; set before there are any."""

    def partition(self, topic: str, index: int) -> Partition:
        """Return the partition of that name. Raises UnknownTopicOrPartitionError."""
        image = self._topics.get(topic)
        if image is None:
            image = self._metadata.find(topic)
            if image is None:
                raise UnknownTopicOrPartitionError
        partitions = self._partitions.get(image.topic_id)
        if partitions is not None:
            partition = partitions.get(index)
            if partition is not None:
                return partition
        return self._make(image, index)

    def partition_by_id(self, topic_id: bytes, index: int) -> Partition:
        """Return the partition of a topic id. Raises UnknownTopicIdError, UnknownTopicOrPartitionError."""
        partitions = self._partitions.get(topic_id)
        if partitions is not None:
            partition = partitions.get(index)
            if partition is not None:
                return partition
        image = self._metadata.topic_by_id(topic_id)
        if image is None:
            raise UnknownTopicIdError
        return self._make(image, index)

    def known_partitions(self) -> Iterator[Partition]:
        """Iterate over the partitions that were asked for so far."""
        return chain.from_iterable(partitions.values() for partitions in self._partitions.values())

    def first_logs(self, image: TopicImage, first_partition: int) -> Callable[[], None]:
        """Return the step that makes new partitions' first logs; others come when touched. Raises KafkaStorageError.

        An internal topic is created by a request that waits on the loop: one log.
        """
        self._make_way(image.name)
        config, manager = self._log_config(image), self._log_manager
        share = 1 if image.is_internal else self._eager_share(image.partition_count - first_partition)

        def make() -> None:
            for index in range(first_partition, first_partition + share):
                manager.get_or_create_log(TopicPartition(image.name, index), image.topic_id, config, is_new=True)

        return make

    def topic_created(self, image: TopicImage, first_partition: int) -> None:
        """Have the indexer look at a topic that is new or wider."""
        self._on_index_configs(image)

    def _eager_share(self, wanted: int) -> int:
        """Return how many of ``wanted`` logs are made now."""
        now = self._log_manager.environment.time.monotonic_ms()
        if now >= self._eager_until_ms:
            self._eager_left, self._eager_until_ms = EAGER_LOGS, now + EAGER_WINDOW_MS
        share = min(wanted, max(self._eager_left, 1))
        self._eager_left -= share
        return share

    def checkpoint_log_starts(self) -> Deferred[None]:
        """Write the log starts that DeleteRecords moved, in a thread, so that a start keeps them."""
        return self._in_thread(self._log_manager.checkpoint_log_start_offsets)

    def remove_logs(self, image: TopicImage) -> Callable[[], None]:
        """Return the work that removes the topic's logs, in any thread, after work on their files. Raises
        KafkaStorageError."""
        partitions = self._removed[image.topic_id] = self._partitions.pop(image.topic_id, {})
        for partition in partitions.values():
            partition.delete()
        manager = self._log_manager

        def remove() -> None:
            for index in range(image.partition_count):
                manager.delete_log(TopicPartition(image.name, index))
            # Before the name is free, and the store forgets the deletion: a power loss must not bring the old logs back
            # under a new topic of that name.
            for directory in manager.directories:
                if directory.is_online:
                    directory.state.sync_all_names(manager.environment.file_system)

        return remove

    def topic_deleted(self, image: TopicImage) -> bool:
        """Answer fetches parked on the logs of a deleted topic with the error. Returns false when a directory is
        offline, which may hold some.
        """
        for index in range(image.partition_count):
            self._on_log_deleted(TopicPartition(image.name, index))
        for partition in self._removed.pop(image.topic_id, {}).values():
            self._purgatory.touch(partition)
        return self._log_manager.has_all_directories

    def topic_configs_changed(self, image: TopicImage) -> None:
        """Give the open logs their new configuration; closed ones read it when they open."""
        partitions = self._partitions.get(image.topic_id)
        if partitions:
            config = self._log_config(image)
            for partition in partitions.values():
                partition.update_config(config)
        self._on_index_configs(image)

    # What a member of a cluster is told by images

    def make_logs(
        self, image: TopicImage, indexes: Iterable[int], *, is_coming: bool = False, saves_epochs: bool = True
    ) -> Callable[[], None]:
        """Return the step that makes the logs of these partitions, which may exist, for any thread. ``is_coming``: this
        broker has got the replicas just now. Without ``saves_epochs`` those in ``unsaved_epochs`` are to be saved
        before roles are taken. Those of a log directory that failed are left out.

        A log is made where the metadata say that it lies: were it made elsewhere, and that directory failed before the
        controllers heard of it, a start would make an empty one that they take for it. Raises KafkaStorageError."""
        config, manager = self._log_config(image), self._log_manager
        works = {
            (partition := TopicPartition(image.name, index)): partial(
                manager.get_or_create_log,
                partition,
                image.topic_id,
                config,
                is_new=self._cannot_lie_offline(image.partitions[index], is_coming=is_coming),
                directory_id=image.partitions[index].directory_of(self._node_id),
                saves_epochs=saves_epochs,
            )
            for index in indexes
        }

        def make() -> None:
            left_out = []
            for partition, work in works.items():
                try:
                    work()
                except KafkaStorageError as error:
                    if not manager.may_lie_offline(partition):
                        raise
                    left_out.append(error)
            if left_out:
                logger.error("%d partitions of %s are not served here: %s", len(left_out), image.name, left_out[0])

        return make

    def _cannot_lie_offline(self, state: PartitionState, *, is_coming: bool) -> bool:
        """Return whether a replica here has no log in a directory that failed: the metadata name one that works, or
        none yet because it is new."""
        place = state.directory_of(self._node_id)
        working = (one.directory_id for one in self._log_manager.directories if one.is_online)
        return place is not None and ((is_coming and place == UNASSIGNED_DIRECTORY) or place in working)

    def unsaved_epochs(self) -> list[LeaderEpochCache]:
        """Return the leader epochs of open logs that their files lack."""
        return [log.leader_epochs for log in self._log_manager.open_logs() if log.leader_epochs.is_unsaved]

    def empty_logs(self) -> list[TopicPartition]:
        """Return the partitions whose open logs end at offset 0."""
        return [log.topic_partition for log in self._log_manager.open_logs() if log.log_end_offset == 0]

    def take_roles(self, image: TopicImage) -> None:
        """Give the partitions of a topic their states in a new image; fetches that are parked on them are tried
        again. Those with several replicas have a role from then on."""
        for index, partition in self._partitions.get(image.topic_id, {}).items():
            partition.take_over(image.partitions[index])
            self._purgatory.touch(partition)
        for index, state in enumerate(image.partitions):
            if len(state.replicas) > 1 and self._node_id in state.replicas:
                self.partition_by_id(image.topic_id, index)

    def remove_replicas(self, image: TopicImage, indexes: Iterable[int]) -> Callable[[], None]:
        """Return the step that removes the logs of partitions that went to other brokers, for any thread. Raises
        KafkaStorageError."""
        manager, listed = self._log_manager, list(indexes)
        known = self._partitions.get(image.topic_id, {})
        for index in listed:
            partition = known.pop(index, None)
            if partition is not None:
                partition.delete()
                self._purgatory.touch(partition)

        def remove() -> None:
            for index in listed:
                manager.delete_log(TopicPartition(image.name, index))

        return remove

    def _make(self, image: TopicImage, index: int) -> Partition:
        if not 0 <= index < image.partition_count:
            raise UnknownTopicOrPartitionError
        if image.source is not None:
            return self._virtual_partition(image, index)
        if self._node_id not in image.partitions[index].replicas:
            raise NotLeaderOrFollowerError
        topic_partition = TopicPartition(image.name, index)
        partition = Partition(
            topic_partition,
            image.topic_id,
            image.partitions[index],
            node_id=self._node_id,
            is_internal=image.is_internal,
            purgatory=self._purgatory,
            in_thread=self._in_thread,
            proofs=self._proofs,
            is_unopened=partial(self._log_manager.is_unopened, topic_partition),
            open_log=lambda: self._log_manager.get_or_create_log(
                topic_partition,
                image.topic_id,
                self._log_config(self._topics.get(image.name, image)),
                is_wanted=partition.is_wanted,
            ),
        )
        self._partitions.setdefault(image.topic_id, {})[index] = partition
        if self.roles is not None:
            partition.join(self.roles, image.partitions[index])
        return partition
