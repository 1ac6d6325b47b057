"""Start of the logs: partitions are found in the directories; after an unclean stop, threads recover their logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from tidelog.log.config import LogConfig
from tidelog.log.directories.deletion import belongs_to, finish_deletion
from tidelog.log.directories.entries import Entry, check_single
from tidelog.log.directories.log_directory import LogDirectory
from tidelog.log.directories.names import DELETE_DIRECTORY_SUFFIX, METADATA_DIRECTORY, partition_of_name
from tidelog.log.environment import LogEnvironment
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.recovery.progress import RecoveryProgress, unsynced_bytes
from tidelog.log.system.file_system import FileSystem
from tidelog.log.system.time import Time
from tidelog.protocol.errors import KafkaStorageError

logger = logging.getLogger(__name__)

_PROGRESS_SECONDS = 2.0

TopicConfigs = Callable[[str], LogConfig | None]
Entries = dict[TopicPartition, Entry]


class KnownTopics(NamedTuple):
    """The topics at the start. ``configs`` and ``ids`` are by topic name; ``deleted`` has names by id of topics whose
    deletion is unfinished; ``found_ids`` has ids that were read from partition directories already, by path.
    """

    configs: TopicConfigs
    ids: Mapping[str, bytes]
    deleted: Mapping[bytes, str]
    found_ids: Mapping[str, bytes]


def find_logs(
    environment: LogEnvironment, directory: LogDirectory, entries: Entries, topics: KnownTopics
) -> list[TopicPartition]:
    """Add the entries of a directory's partitions; return the partitions of unknown topics. A partition of which
    another directory has a log, too, is refused. Raises KafkaStorageError.
    """
    file_system = environment.file_system
    file_system.make_directory(directory.path)
    known = directory.read(file_system)
    strays = []
    for name in file_system.list_names(directory.path):
        path = f"{directory.path}/{name}"
        if name.endswith(DELETE_DIRECTORY_SUFFIX):
            environment.deletions.schedule(0, partial(file_system.remove_directory, path))
            continue
        partition = known.get(name) or partition_of_name(name)
        if partition is None or name == METADATA_DIRECTORY:
            continue
        if belongs_to(topics.deleted, file_system, partition, path):
            finish_deletion(environment, partition, path)
            continue
        if topics.configs(partition.topic) is None:
            logger.warning("%s belongs to no known topic; it is left as it is", path)
            strays.append(partition)
        elif partition in entries:
            refuse_copies(entries[partition], path)
        else:
            entries[partition] = Entry(
                directory, path, clean=directory.was_clean, topic_id=topics.ids.get(partition.topic),
                found_id=topics.found_ids.get(path),
            )  # fmt: skip
    return strays


def refuse_copies(entry: Entry, path: str) -> None:
    """Note another log of an entry's partition, and refuse the partition. The other logs of both directories are
    served."""
    entry.copies += (path,)
    try:
        check_single(entry)
    except KafkaStorageError as error:
        entry.error = error
        logger.error("%s is refused: %s", entry.path, error)


def recover(
    pending: Sequence[tuple[TopicPartition, Entry]],
    load: Callable[[TopicPartition, Entry, RecoveryProgress], object],
    file_system: FileSystem,
    time: Time,
    threads: int,
) -> None:
    """Load the logs of these entries in threads, each under its entry's lock. Raises what ``load`` raises."""
    from concurrent.futures import ThreadPoolExecutor, wait

    waiting_bytes = {
        partition: unsynced_bytes(file_system, entry.path, entry.directory.recovery_points.get(partition, 0))
        for partition, entry in pending
    }
    total_bytes = sum(waiting_bytes.values())
    progress = RecoveryProgress(total_bytes, len(waiting_bytes))
    # The largest first, so that no thread is still busy with it when all others are done.
    largest_first = sorted(pending, key=lambda item: waiting_bytes[item[0]], reverse=True)
    logger.info("recovering %d logs after an unclean stop, %.1f MB to walk", len(waiting_bytes), total_bytes / 1e6)
    started = time.monotonic_ms()

    def load_locked(partition: TopicPartition, entry: Entry) -> None:
        with entry.lock:
            load(partition, entry, progress)
        progress.log_done()

    with ThreadPoolExecutor(threads, "recovery") as pool:
        running = {pool.submit(load_locked, *item) for item in largest_first}
        while running:
            done, running = wait(running, _PROGRESS_SECONDS)
            for future in done:
                future.result()
            logger.info("%s", progress.line((time.monotonic_ms() - started) / 1000))
