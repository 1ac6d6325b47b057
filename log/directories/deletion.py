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


def belongs_to(topics: Mapping[bytes, str], file_system: FileSystem, partition: TopicPartition, path: str) -> bool:
    """Return whether the partition's directory at ``path`` belongs to one of these topics, by topic id. Raises
    KafkaStorageError.
    """
    if partition.topic not in topics.values():
        return False
    try:
        return read_partition_metadata(file_system, path) in topics
    except CheckpointCorruptError:
        return False  # the owner is not known, so the directory is not deleted


def finish_deletion(environment: LogEnvironment, partition: TopicPartition, path: str) -> None:
    """Remove the partition directory of a deleted topic, which an earlier process left. Raises KafkaStorageError."""
    gone = os.path.join(os.path.dirname(path), name_aside(partition, DELETE_DIRECTORY_SUFFIX))
    environment.file_system.rename(path, gone)
    logger.info("removing %s: its topic was deleted before the broker started", path)
    environment.deletions.schedule(0, partial(environment.file_system.remove_directory, gone))


def rename_away(file_system: FileSystem, path: str, gone: str) -> None:
    """Rename a deleted log's directory to ``gone``, unless it is missing. Raises KafkaStorageError."""
    try:
        file_system.rename(path, gone)
    except LogStorageError as error:
        if error.os_errno != errno.ENOENT or file_system.exists(path):
            raise


def delete_copies(environment: LogEnvironment, partition: TopicPartition, entry: Entry) -> None:
    """Remove the other logs of a deleted partition, so that none is there when the partition is created again. One that
    cannot be renamed is logged."""
    for path in entry.copies:
        gone = os.path.join(os.path.dirname(path), name_aside(partition, DELETE_DIRECTORY_SUFFIX))
        try:
            rename_away(environment.file_system, path, gone)
        except KafkaStorageError as error:
            logger.error("%s stays, although its partition is deleted: %s", path, error)
        else:
            environment.deletions.schedule(0, partial(environment.file_system.remove_directory, gone))


def mark_deleted_unrenamed(environment: LogEnvironment, entry: Entry, error: KafkaStorageError) -> None:
    """Mark the entry's log as deleted, although its directory could not be renamed. Under the entry's lock."""
    log, entry.log = entry.log, None
    entry.error, entry.is_deleted_unrenamed = error, True
    if log is not None:
        environment.deletions.schedule(log.config.file_delete_delay_ms, log.release_files)


def remove_deleted(file_system: FileSystem, log: UnifiedLog | None, path: str) -> None:
    """Remove a deleted partition's files and its renamed directory, ``path``."""
    if log is not None:
        log.release_files()
    file_system.remove_directory(path)
