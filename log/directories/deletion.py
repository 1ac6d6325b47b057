"""Deletion of a partition's directory: it is renamed at once and its files are removed later."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping
from functools import partial

from tidelog.log.directories.entries import Entry
from tidelog.log.directories.names import DELETE_DIRECTORY_SUFFIX, name_aside
from tidelog.log.environment import LogEnvironment
from tidelog.log.files.checkpoints import CheckpointCorruptError, read_partition_metadata
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import FileSystem, LogStorageError
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaStorageError

logger = logging.getLogger(__name__)


def is_of(topics: Mapping[bytes, str], file_system: FileSystem, partition: TopicPartition, path: str) -> bool:
    """Return whether the directory at ``path`` belongs to one of these topics, by topic id. Raises
    KafkaStorageError.
    """
    if partition.topic not in topics.values():
        return False
    try:
        return read_partition_metadata(file_system, path) in topics
    except CheckpointCorruptError:
        return False  # unknown owner: it is reported and left alone


def finish_deletion(environment: LogEnvironment, partition: TopicPartition, path: str) -> None:
    """Remove the directory of a deleted topic that an earlier process did not remove. Raises KafkaStorageError."""
    gone = os.path.join(os.path.dirname(path), name_aside(partition, DELETE_DIRECTORY_SUFFIX))
    environment.file_system.rename(path, gone)
    logger.info("%s is of a topic that was deleted before the broker started; removed", path)
    environment.deletions.schedule(0, partial(environment.file_system.remove_directory, gone))


def rename_away(file_system: FileSystem, path: str, gone: str) -> None:
    """Rename a deleted log's directory; a missing one was removed already. Raises KafkaStorageError."""
    try:
        file_system.rename(path, gone)
    except LogStorageError as error:
        if error.os_errno != errno.ENOENT or file_system.exists(path):
            raise


def doom(environment: LogEnvironment, entry: Entry, error: KafkaStorageError) -> None:
    """Note that the entry's log is deleted, although its directory still has its name. Under the entry's lock."""
    log, entry.log = entry.log, None
    entry.error, entry.is_doomed = error, True
    if log is not None:
        environment.deletions.schedule(log.config.file_delete_delay_ms, log.release_files)


def remove_deleted(file_system: FileSystem, log: UnifiedLog | None, path: str) -> None:
    """Remove the files of a deleted partition in its renamed directory, ``path``."""
    if log is not None:
        log.release_files()
    file_system.remove_directory(path)
