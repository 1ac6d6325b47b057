"""Assignment of logs to log directories in the metadata of a lone node that has several directories.

A new partition has no directory, because the broker chooses one when it creates the log, which may be much later. Then
the choice is written to the metadata, so that an Apache Kafka that takes over the directories finds each replica where
the metadata say. Assignments that a kill prevents are made at the next start; Kafka would do the same. With one
directory there is nothing to choose: the record of a new partition names it. Loop thread only.

Source: AssignmentsManager and ReplicationControlManager.handleAssignReplicasToDirs of Kafka 4.3, KIP-858.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.broker.metadata.image_records import VersionedRecord, change_version, has_directories
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.metadata_records.records import PartitionChangeRecord

if TYPE_CHECKING:
    from tidelog.broker.controller.metadata_controller import MetadataController
    from tidelog.broker.loop.timers import TimerQueue
    from tidelog.log.manager import LogManager

logger = logging.getLogger(__name__)

ASSIGN_MS = 500
"""Interval at which directories of new logs are written to the metadata, as in Kafka 3.7."""
MAX_AT_ONCE = 500
"""Largest number of assignments of new logs in one commit, so that it takes a few milliseconds of the loop."""


class DirectoryAssignments:
    """Writer of each log's directory into the metadata."""

    def __init__(self, controller: MetadataController, log_manager: LogManager, timers: TimerQueue) -> None:
        self._controller = controller
        self._log_manager = log_manager
        self._timers = timers

    def begin(self) -> None:
        """Assign the directories of all logs, and from now on those of new ones."""
        self._log_manager.placed.clear()
        for topic in self._controller.image.topics.values():
            self._commit(TopicPartition(topic.name, number) for number in range(len(topic.partitions)))
        self._timers.schedule(ASSIGN_MS, self._assign_periodically)

    def assign_new(self) -> None:
        """Assign the directories of the first MAX_AT_ONCE new logs that have none in the metadata yet."""
        placed = self._log_manager.placed
        listed = list(islice(placed, MAX_AT_ONCE))
        if self._commit(listed):
            for _ in listed:
                placed.popleft()

    def _assign_periodically(self) -> None:
        self.assign_new()
        self._timers.schedule(ASSIGN_MS, self._assign_periodically)

    def _commit(self, partitions: Iterable[TopicPartition]) -> bool:
        """Commit the assignments that the image lacks; return whether they could be written."""
        try:
            self._controller.commit(self._records(partitions))
        except KafkaStorageError as error:  # a full disk, for example: tried again later, or at the next start
            logger.debug("directories are not assigned: %s", error)
            return False
        return True

    def _records(self, partitions: Iterable[TopicPartition]) -> Iterator[VersionedRecord]:
        """Yield a change for each partition whose log is not in the directory that the image names."""
        image, level = self._controller.image, self._controller.level
        if not has_directories(level):
            return
        for partition in partitions:
            directory_id = self._log_manager.directory_id_of(partition)
            topic = image.topic_by_name(partition.topic)
            if directory_id is None or topic is None or partition.partition >= len(topic.partitions):
                continue
            if topic.partitions[partition.partition].directories != (directory_id,):
                change = PartitionChangeRecord(
                    partition_id=partition.partition, topic_id=topic.topic_id, directories=[directory_id]
                )
                yield VersionedRecord(change, change_version(level))
