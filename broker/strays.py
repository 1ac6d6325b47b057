"""Partition directories that belong to no topic: what a crash left of deleted topics, and what somebody put there.

A deletion commits to the store before any directory is renamed, and the same transaction notes the topic's id as being
deleted. So a directory found at the start without a topic is one of two things:

  partition.metadata has the id of a deletion   the deletion was cut short: it is finished now
  anything else                                 not ours to judge (a lost store, a copied directory): reported, left
                                                alone, and renamed to ``<topic>-<n>.<id>-stray``, as Kafka does, when a
                                                new topic needs the name

Loop thread only.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable
from functools import partial

from log.checkpoints import CheckpointCorruptError, read_partition_metadata
from log.manager import DELETE_DIRECTORY_SUFFIX, LogManager, name_aside
from log.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

STRAY_SUFFIX = "-stray"


class StrayLogs:
    """The strays of all log directories, by topic."""

    __slots__ = ("_file_system", "_left", "_log_manager")

    def __init__(self, log_manager: LogManager) -> None:
        self._log_manager = log_manager
        self._file_system = log_manager.environment.file_system
        self._left: dict[str, list[tuple[str, TopicPartition]]] = {}

    def sweep(self, found: Iterable[TopicPartition], deleted_ids: Collection[bytes]) -> None:
        """Finish the deletion of those with a deleted topic's id, keep the places of the others.

        ``found`` is what ``LogManager.startup`` returned. Raises KafkaStorageError.
        """
        for partition in dict.fromkeys(found):
            for directory in self._log_manager.directories:
                path = os.path.join(directory.path, partition.directory_name)
                if not directory.is_online or not self._file_system.exists(path):
                    continue
                if self._topic_id(path) in deleted_ids:
                    self._delete(path, partition)
                else:
                    self._left.setdefault(partition.topic, []).append((path, partition))

    def make_way(self, topic: str) -> None:
        """Rename what lies where the logs of a new topic go. Raises KafkaStorageError."""
        for path, partition in self._left.pop(topic, ()):
            if self._file_system.exists(path):
                aside = os.path.join(os.path.dirname(path), name_aside(partition, STRAY_SUFFIX))
                self._file_system.rename(path, aside)
                logger.warning("%s belongs to no known topic; kept as %s", path, aside)

    def _topic_id(self, path: str) -> bytes | None:
        try:
            return read_partition_metadata(self._file_system, path)
        except CheckpointCorruptError:
            return None

    def _delete(self, path: str, partition: TopicPartition) -> None:
        gone = os.path.join(os.path.dirname(path), name_aside(partition, DELETE_DIRECTORY_SUFFIX))
        self._file_system.rename(path, gone)
        logger.info("%s is of a topic that was being deleted when the broker stopped; removed", path)
        self._log_manager.environment.deletions.schedule(0, partial(self._file_system.remove_directory, gone))
