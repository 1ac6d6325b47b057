"""Entries of the log manager's table: one for each partition that has a directory, with its log once it is open."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from tidelog.log.directories.log_directory import LogDirectory
from tidelog.log.file_use import LogDeletedError
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.index_proof import note_proofs
from tidelog.log.segment.segment import LOG_SUFFIX
from tidelog.log.system.file_system import FileSystem
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaError, KafkaStorageError

logger = logging.getLogger(__name__)


class Entry:
    """A partition that has a directory, with its log once it is open, or the error that keeps it closed.

    ``tidelog.log.manager`` says what ``lock`` guards.
    """

    __slots__ = (
        "clean", "copies", "directory", "error", "found_id", "is_deleted_unrenamed", "is_gone", "is_new", "lock", "log",
        "path", "topic_id",
    )  # fmt: skip

    def __init__(
        self, directory: LogDirectory, path: str, *, clean: bool, topic_id: bytes | None = None, is_new: bool = False,
        found_id: bytes | None = None,
    ) -> None:  # fmt: skip
        """``clean`` says that the log needs no recovery: its log directory was shut down cleanly, or the log is new.
        ``topic_id``: the id of the partition's topic; an id from the caller that opens the log replaces it. The log
        gets the id if it has none, and is refused if it has another. ``is_new``: the directory was made for a new log,
        which was not opened yet. ``found_id``: the topic id in the directory's ``partition.metadata``, if that was read
        already."""
        self.found_id = found_id
        self.is_new = is_new
        self.directory = directory
        self.path = path
        self.copies: tuple[str, ...] = ()
        """Other directories that the start found with the name of this partition. Then its log is not opened."""
        self.topic_id = topic_id
        self.clean = clean
        self.log: UnifiedLog | None = None
        self.error: KafkaError | None = None
        self.lock = threading.Lock()
        self.is_gone = False
        """True once the partition is deleted and the table has this entry no more."""
        self.is_deleted_unrenamed = False
        """True if the log is deleted but its directory could not be renamed. The next caller that needs the partition's
        name tries the deletion again."""


def entry_of(entries: dict[TopicPartition, Entry], lock: threading.Lock, partition: TopicPartition) -> Entry | None:
    """Return the partition's entry, also one that another thread is creating now. ``lock`` is the manager's."""
    with lock:
        return entries.get(partition)


def directory_id_of(entries: dict[TopicPartition, Entry], partition: TopicPartition) -> bytes | None:
    entry = entries.get(partition)
    return None if entry is None else entry.directory.directory_id


def may_lie_offline(
    entries: dict[TopicPartition, Entry], directories: Iterable[LogDirectory], partition: TopicPartition
) -> bool:
    """Return whether a partition has no log in an online directory, but may have one in a directory that failed."""
    entry = entries.get(partition)
    has_failed = not all(directory.is_online for directory in directories)
    return has_failed and (entry is None or not entry.directory.is_online)


def is_unopened(entries: dict[TopicPartition, Entry], partition: TopicPartition) -> bool:
    """Return whether the partition's log is neither open nor refused, or there is none."""
    entry = entries.get(partition)
    return entry is None or (entry.log is None and entry.error is None)


def error_of(entry: Entry) -> KafkaError | None:
    """Return the error that keeps a partition of an online directory from being served."""
    if entry.log is None or entry.is_gone or not entry.directory.is_online:
        return entry.error
    return entry.log.failure


def refuse(entry: Entry) -> UnifiedLog:
    """Raise the error because of which the entry has no log."""
    if entry.error is not None:
        raise entry.error
    entry.directory.state.ensure_online()
    raise KafkaStorageError(f"{entry.path} is not loaded")


def check_single(entry: Entry) -> None:
    """Raise KafkaStorageError if the start found several logs of the partition. Which one has all committed records is
    not known, so none is opened."""
    if entry.copies:
        found = ", ".join((entry.path, *entry.copies))
        raise KafkaStorageError(f"there are several logs of one partition, {found}: move all but one away, and restart")


def size_of(file_system: FileSystem, entry: Entry) -> int:
    if entry.log is not None:
        return entry.log.size_bytes
    return sum(file.size for file in file_system.list_directory(entry.path) if file.name.endswith(LOG_SUFFIX))


def sizes_in(
    file_system: FileSystem, directory: LogDirectory, entries: dict[TopicPartition, Entry]
) -> dict[TopicPartition, int]:
    """Return the bytes of records of each partition in a directory; one that cannot be read is left out and logged."""
    sizes = {}
    for partition, entry in list(entries.items()):
        if entry.directory is directory:
            try:
                sizes[partition] = size_of(file_system, entry)
            except KafkaStorageError as error:
                if entries.get(partition) is entry:  # else it was deleted meanwhile
                    logger.warning("the size of %s cannot be read: %s", partition, error)
    return sizes


def is_out_of_service(entries: dict[TopicPartition, Entry], partition: TopicPartition) -> bool:
    """Return whether the log of a partition was refused or has failed, although its directory works."""
    entry = entries.get(partition)
    if entry is None or entry.is_gone or entry.is_deleted_unrenamed or not entry.directory.is_online:
        return False
    error = error_of(entry)
    return error is not None and not isinstance(error, LogDeletedError)


def close_cleanly(entry: Entry) -> bool:
    """Flush and close an open log; return False if that failed."""
    try:
        if entry.log is not None:
            entry.log.flush()
            note_proofs(entry.log, entry.directory.index_digests, is_closing=True)
            entry.log.close()
            if entry.log.failure is not None:
                return False
    except KafkaStorageError as error:
        logger.error("%s was not closed cleanly: %s", entry.path, error)
        return False
    return True


def copy_offsets(directory: LogDirectory, entries: dict[TopicPartition, Entry], lock: threading.Lock) -> None:
    """Copy the offsets of the directory's open logs into its tables. ``lock`` is the manager's; it is taken for one log
    at a time, because the event loop may wait for it.
    """
    for partition, entry in list(entries.items()):
        log = entry.log
        if log is None or entry.directory is not directory:
            continue
        with lock:
            if not entry.is_gone:
                directory.note_offsets(partition, log)
