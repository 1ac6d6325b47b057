"""Partition directories that belong to no topic: remains of deleted topics after a crash, or directories put there by
hand.

A deletion is committed to the metadata before any directory is renamed, with the topic's id. So a directory found at
the start without a topic is one of two things:

  partition.metadata has the id of a deletion   the deletion was interrupted, or the directory was offline: the log
                                                manager has finished it, even if a new topic has that name
  anything else                                 unknown (lost metadata, a copied directory): reported, kept, and renamed
                                                to Kafka's ``<topic>-<n>.<id>-stray`` when a new topic needs the name

A member of a cluster renames all its strays at the start (``member.directories``). Loop thread only.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from tidelog.log.directories.log_directory import LogDirectory
from tidelog.log.directories.names import name_aside
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager

logger = logging.getLogger(__name__)

STRAY_SUFFIX = "-stray"


class StrayLogs:
    """Stray logs of all log directories, by topic."""

    __slots__ = ("_file_system", "_left", "_log_manager")

    def __init__(self, log_manager: LogManager) -> None:
        self._log_manager = log_manager
        self._file_system = log_manager.environment.file_system
        self._left: dict[str, list[tuple[LogDirectory, TopicPartition]]] = {}

    def note(self, found: Iterable[TopicPartition]) -> None:
        """Note the log directories of stray logs. ``found`` is the result of ``LogManager.startup``."""
        for partition in dict.fromkeys(found):
            for directory in self._log_manager.directories:
                path = os.path.join(directory.path, partition.directory_name)
                if directory.is_online and self._file_system.exists(path):
                    self._left.setdefault(partition.topic, []).append((directory, partition))

    def make_way(self, topic: str) -> None:
        """Rename stray logs that have the name of a new topic. Raises KafkaStorageError, and the next call goes on."""
        for directory, partition in self._left.get(topic, ()):
            path = os.path.join(directory.path, partition.directory_name)
            if directory.is_online and self._file_system.exists(path):
                aside = os.path.join(directory.path, name_aside(partition, STRAY_SUFFIX))
                self._file_system.rename(path, aside)
                logger.warning("%s belongs to no known topic; kept as %s", path, aside)
        self._left.pop(topic, None)  # only now: a stray that is left would give its records to the new topic
