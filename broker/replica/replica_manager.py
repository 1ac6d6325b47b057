"""Partitions of this broker by topic and index, created and removed as topics come and go.

A :class:`Partition` is created when it is first looked up, and its log is opened when it is first used. So an unused
partition of a lone node costs only its name; a member of a cluster opens all its logs at the start. Partitions are kept
by topic id: a topic that is deleted and created again is another topic, and the old object is never found under its
name. Loop thread only.
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
    KafkaError,
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
"""Largest number of logs that are created in EAGER_WINDOW_MS before requests that create partitions are answered. Each
takes a millisecond of a thread and three descriptors, and a request may create 10,000 partitions. The first log of each
topic is always created, so that the client learns of a disk that cannot be written to."""
EAGER_WINDOW_MS = 1000


class ReplicaManager:
    """Partitions of this broker; creates and removes them as topics come and go (a ``TopicListener``)."""

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
        """``make_way`` renames stray directories that have the names of a new topic's logs. ``on_index_configs`` is
        called with topics that are created, get more partitions or other configs. ``virtual_partition`` returns
        partitions of virtual topics (``metadata.virtual_names``)."""
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
        """Roles of partitions with several replicas; set before there are any."""

    def partition(self, topic: str, index: int) -> Partition:
        """Return the partition of that name. Raises UnknownTopicOrPartitionError, NotLeaderOrFollowerError if this
        broker has no replica of it, InvalidTopicError if a virtual topic's name has wrong fields."""
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
        """Return the partition of a topic id. Raises UnknownTopicIdError, and what ``partition`` raises."""
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
        """Iterate over the partitions that were looked up so far."""
        return chain.from_iterable(partitions.values() for partitions in self._partitions.values())

    def first_logs(self, image: TopicImage, first_partition: int) -> Callable[[], None]:
        """Return the function that creates the first logs of new partitions; others are created at their first use.

        The function may be called in any thread. Of an internal topic it creates one log, as a request waits for it.
        This call and the function both raise KafkaStorageError.
        """
        self._make_way(image.name)
        config, manager = self._log_config(image), self._log_manager
        share = 1 if image.is_internal else self._eager_share(image.partition_count - first_partition)

        def make() -> None:
            for index in range(first_partition, first_partition + share):
                manager.get_or_create_log(TopicPartition(image.name, index), image.topic_id, config, is_new=True)

        return make

    def topic_created(self, image: TopicImage, first_partition: int) -> None:
        """Pass a topic that is new, or has new partitions, to the indexer."""
        self._on_index_configs(image)

    def _eager_share(self, wanted: int) -> int:
        """Return how many of ``wanted`` logs to create now, and count them (EAGER_LOGS)."""
        now = self._log_manager.environment.time.monotonic_ms()
        if now >= self._eager_until_ms:
            self._eager_left, self._eager_until_ms = EAGER_LOGS, now + EAGER_WINDOW_MS
        share = min(wanted, max(self._eager_left, 1))
        self._eager_left -= share
        return share

    def checkpoint_log_starts(self) -> Deferred[None]:
        """Write to disk, in a thread, the log starts that DeleteRecords has moved, so that they survive a restart."""
        return self._in_thread(self._log_manager.checkpoint_log_start_offsets)

    def remove_logs(self, image: TopicImage) -> Callable[[], None]:
        """Return the function that deletes the topic's logs, in any thread, once no other work uses their files. It
        raises KafkaStorageError."""
        partitions = self._removed[image.topic_id] = self._partitions.pop(image.topic_id, {})
        for partition in partitions.values():
            partition.delete()
        manager = self._log_manager

        def remove() -> None:
            for index in range(image.partition_count):
                manager.delete_log(TopicPartition(image.name, index))
            # Before the metadata forget the deletion and the name is free: a power loss must not bring the old logs
            # back under a new topic of that name.
            for directory in manager.directories:
                if directory.is_online:
                    directory.state.sync_all_names(manager.environment.file_system)

        return remove

    def topic_deleted(self, image: TopicImage) -> bool:
        """Answer fetches parked on a deleted topic with an error. Return False if a directory is offline, which may
        have some of the topic's logs.
        """
        for index in range(image.partition_count):
            self._on_log_deleted(TopicPartition(image.name, index))
        for partition in self._removed.pop(image.topic_id, {}).values():
            self._purgatory.touch(partition)
        return self._log_manager.has_all_directories

    def topic_configs_changed(self, image: TopicImage) -> None:
        """Pass the new configuration to the open logs; closed ones read it when they open."""
        partitions = self._partitions.get(image.topic_id)
        if partitions:
            config = self._log_config(image)
            for partition in partitions.values():
                partition.update_config(config)
        self._on_index_configs(image)

    # Changes of the metadata image, in a member of a cluster

    def make_logs(
        self, image: TopicImage, indexes: Iterable[int], *, is_coming: bool = False, saves_epochs: bool = True
    ) -> Callable[[], None]:
        """Return the function that opens or creates the logs of these partitions, for any thread. ``is_coming``: the
        replicas were assigned to this broker just now. Without ``saves_epochs`` the caller saves those of
        ``unsaved_epochs`` before roles are taken. The function leaves out logs that are out of service or may be in a
        failed log directory, and logs one line about them.

        A log is created in the directory that the metadata name. Suppose it were in another one, which failed before
        the controllers knew that it has the log: the next start would create an empty log in the named directory. The
        function raises KafkaStorageError, InconsistentTopicIdError."""
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
            left_out: list[KafkaError] = []
            for partition, work in works.items():
                try:
                    work()
                except KafkaError as error:
                    if not manager.may_lie_offline(partition) and not manager.is_out_of_service(partition):
                        raise
                    left_out.append(error)
            if left_out:
                logger.error("%d partitions of %s are not served here: %s", len(left_out), image.name, left_out[0])

        return make

    def _cannot_lie_offline(self, state: PartitionState, *, is_coming: bool) -> bool:
        """Return whether no failed directory can have this replica's log: the metadata name an online one, or none yet
        because the replica is new."""
        named = state.directory_of(self._node_id)
        working = (one.directory_id for one in self._log_manager.directories if one.is_online)
        return named is not None and ((is_coming and named == UNASSIGNED_DIRECTORY) or named in working)

    def unsaved_epochs(self) -> list[LeaderEpochCache]:
        """Return the leader epochs of open logs whose changes are not in their files yet."""
        return [log.leader_epochs for log in self._log_manager.open_logs() if log.leader_epochs.is_unsaved]

    def empty_logs(self) -> list[TopicPartition]:
        """Return the partitions whose open logs end at offset 0."""
        return [log.topic_partition for log in self._log_manager.open_logs() if log.log_end_offset == 0]

    def take_roles(self, image: TopicImage, indexes: Iterable[int]) -> None:
        """Pass the states in a new image to these partitions of the topic, and try fetches that are parked on them
        again. Partitions with several replicas have a role from then on."""
        known = self._partitions.get(image.topic_id, {})
        for index in indexes:
            partition, state = known.get(index), image.partitions[index]
            if partition is not None:
                partition.take_over(state)
                self._purgatory.touch(partition)
            elif len(state.replicas) > 1 and self._node_id in state.replicas:
                self.partition_by_id(image.topic_id, index)

    def remove_replicas(self, image: TopicImage, indexes: Iterable[int]) -> Callable[[], None]:
        """Return the function that deletes the logs of partitions that moved to other brokers, for any thread. It
        raises KafkaStorageError."""
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
