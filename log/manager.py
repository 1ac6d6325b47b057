"""Manager of all logs of a broker, over its ``log.dirs``.

Start: after a clean stop only names are listed; a log opens at its first use (ten thousand
partitions start in a fraction of a second and hold no descriptor). All logs of a log directory without the
clean-shutdown marker, or with a damaged checkpoint, are recovered, in threads, before the broker serves.

A partition that cannot be loaded is refused: each request for it gets the error, while the others are served. If the
error may pass by itself (a full disk, no descriptors, no permission), ``room`` tries again each second; an
administrator can have every refused log tried again. A directory that fails is offline until the next start. If
two directories have a log of one partition, the partition is refused until a start finds only one.

A deletion is complete when ``delete_log`` returns: the partition's directory has another name
(``<topic>-<n>.<id>-delete``), unless its log directory is offline, and the partition may be created again. Its files
are removed after ``file.delete.delay.ms``, on a full disk sooner.

The manager's lock guards only the table of partitions and the directories' tables of offsets. Each partition's entry
has a lock of its own, under which the log is opened and deleted: rebuilding the indices of one log does not delay
callers of another. Order: the entry's lock, then the manager's. A thread that waited for an entry's lock looks the
partition up again if the entry was deleted meanwhile (``is_gone``). A deletion waits while the same log is being
opened, and for threads that work on its files (``tidelog.log.file_use``).

Any thread may call the methods; the slow ones (``run_retention``, ``flush_dirty_logs``, checkpoints, ``shutdown``)
belong in a worker thread.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from tidelog.log.config import LogConfig
from tidelog.log.directories.deletion import delete_copies, mark_deleted_unrenamed, remove_deleted, rename_away
from tidelog.log.directories.entries import (
    Entry,
    check_single,
    close_cleanly,
    copy_offsets,
    directory_id_of,
    entry_of,
    error_of,
    is_out_of_service,
    is_unopened,
    may_lie_offline,
    refuse,
    sizes_in,
)
from tidelog.log.directories.log_directory import LogDirectory, write_all
from tidelog.log.directories.names import DELETE_DIRECTORY_SUFFIX, name_aside
from tidelog.log.directories.room import RoomWatch
from tidelog.log.directories.startup import KnownTopics, TopicConfigs, find_logs, recover
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.checkpoints import (
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_OFFSET_FILE,
    UNKNOWN_BROKER_EPOCH,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.index_proof import note_proofs
from tidelog.log.producer.state import DEFAULT_PRODUCER_ID_EXPIRATION_MS
from tidelog.log.recovery.loader import LoadRequest, load_log
from tidelog.log.recovery.progress import RecoveryProgress
from tidelog.log.retention import move_start, remove_below_start
from tidelog.log.system.file_system import FileSystem
from tidelog.log.system.reserve import DEFAULT_RESERVE_BYTES, Reserve, lacks_room
from tidelog.log.system.retention_clock import RetentionClock
from tidelog.log.system.time import Time
from tidelog.log.unified_log import UnifiedLog
from tidelog.protocol.errors import KafkaError, KafkaStorageError, UnknownTopicOrPartitionError

logger = logging.getLogger(__name__)

#: Open logs for each thread that closes logs: closing waits for syncs, which a file system's journal groups.
_LOGS_PER_CLOSING_THREAD = 64
_MAX_CLOSING_THREADS = 16


class DirectoryDescription(NamedTuple):
    """A log directory as DescribeLogDirs describes it. All sizes are in bytes. The disk's are -1 if unknown, and
    ``sizes`` lacks partitions whose size is unknown."""

    path: str
    failure: KafkaStorageError | None
    sizes: dict[TopicPartition, int]
    total_bytes: int
    usable_bytes: int


class Opening(NamedTuple):
    """Facts that a caller knows of a log that is to be opened. Without ``saves_epochs`` the caller writes leader epochs
    that the opening has changed, before any append."""

    topic_id: bytes | None = None
    config: LogConfig | None = None
    progress: RecoveryProgress | None = None
    saves_epochs: bool = True


UNKNOWN = Opening()
"""Opening by a caller that knows nothing of the log."""


class LogManager:
    """The logs of a broker, in all log directories: opens, creates, deletes and flushes them, and applies retention."""

    def __init__(
        self, log_dirs: Iterable[str], file_system: FileSystem, time: Time, default_config: LogConfig,
        *, recovery_threads: Callable[[], int] = lambda: 2, reserve_bytes: int = DEFAULT_RESERVE_BYTES,
        producer_id_expiration_ms: int = DEFAULT_PRODUCER_ID_EXPIRATION_MS,
        directory_ids: Mapping[str, bytes] | None = None, commits_alone: bool = True,
    ) -> None:  # fmt: skip
        """``recovery_threads`` returns how many threads may recover the logs of a directory. ``commits_alone`` says
        that all records of a log are committed. In a cluster other replicas decide that; then only the checkpointed
        high watermark of an unopened log is known."""
        self.environment = LogEnvironment(file_system, time, producer_id_expiration_ms=producer_id_expiration_ms)
        ids = {os.path.abspath(path): directory_id for path, directory_id in (directory_ids or {}).items()}
        self.directories = [
            LogDirectory(
                path, DirectoryState(path, Reserve(file_system, path, reserve_bytes)), file_system, ids.get(path)
            )
            for path in map(os.path.abspath, dict.fromkeys(log_dirs))
        ]
        self.cordoned: frozenset[str] = frozenset()
        """Paths of directories that get a new log only if the caller names the directory or no others are online."""
        self.placed: deque[TopicPartition] = deque()
        """Partitions created since this was last emptied, for the caller that reports their log directories. It stays
        empty with a single log directory."""
        self.default_config = default_config
        self._commits_alone, self._recovery_threads = commits_alone, recovery_threads
        self._file_system, self._time = file_system, time
        self._lock = threading.Lock()
        self._entries: dict[TopicPartition, Entry] = {}
        self._configs: TopicConfigs = lambda _: None
        self.is_unopened: Callable[[TopicPartition], bool] = partial(is_unopened, self._entries)
        """Whether the next caller would open or create the partition's log."""
        self.directory_id_of: Callable[[TopicPartition], bytes | None] = partial(directory_id_of, self._entries)
        """The id of the log directory that holds a partition; None without a directory or a known id."""
        self.may_lie_offline = partial(may_lie_offline, self._entries, self.directories)
        """Whether a partition has no log in an online directory, but may have one in a directory that failed."""
        self.is_out_of_service = partial(is_out_of_service, self._entries)
        """Whether a partition's log was refused or has failed, although its directory works."""
        self.room = RoomWatch(
            self.environment, self.directories, self._entries, lambda one: self._open(one, self._entries[one])
        )
        self._retention_clock = RetentionClock(time)

    # ---- start and stop

    def startup(
        self,
        topic_configs: TopicConfigs | Mapping[str, LogConfig] | None = None,
        deleted_topics: Mapping[bytes, str] | None = None,
        topic_ids: Mapping[str, bytes] | None = None,
        found_ids: Mapping[str, bytes] | None = None,
    ) -> list[TopicPartition]:
        """Find the logs, and recover those in directories without the clean-shutdown marker, or with a damaged
        checkpoint. Return the partitions of unknown topics.

        ``topic_configs`` gives a topic's configuration whenever a log opens, in any thread. It gives None for a topic
        that does not exist, whose logs are reported and left as they are. ``topic_ids`` has the ids. ``deleted_topics``
        are ids and names of topics whose acknowledged deletion was not finished: their logs are removed now, even if a
        new topic has the name. ``found_ids`` are topic ids that this process has read from directories, by path. Raises
        KafkaStorageError if no directory works.
        """
        if topic_configs is None:
            self._configs = lambda _: self.default_config
        elif isinstance(topic_configs, Mapping):
            self._configs = topic_configs.get
        else:
            self._configs = topic_configs
        topics = KnownTopics(self._configs, topic_ids or {}, deleted_topics or {}, found_ids or {})
        strays: list[TopicPartition] = []
        for directory in self._online:
            try:
                strays += find_logs(self.environment, directory, self._entries, topics)
            except KafkaStorageError as error:
                directory.state.mark_offline(error)
        if not any(directory.is_online for directory in self.directories):
            failures = "; ".join(str(directory.state.failure) for directory in self.directories)
            raise KafkaStorageError(f"no log directory works: {failures}")
        self._recover_unclean()
        for directory in self._online:
            directory.state.check_room(self._file_system)
        return strays

    def _recover_unclean(self) -> None:
        unclean = [(p, e) for p, e in self._entries.items() if not e.clean and e.error is None]
        pending = [(p, e) for p, e in unclean if e.directory.is_online]
        if not pending:
            return
        threads = self._recovery_threads() * len(self.directories)
        recover(
            pending,
            lambda partition, entry, progress: self._load(partition, entry, Opening(progress=progress)),
            self._file_system,
            self._time,
            threads,
        )
        try:
            # A high watermark above the new end of a log would make the records that are appended next committed.
            self.checkpoint_high_watermarks()
        except KafkaStorageError as error:
            logger.error("the high watermarks of recovered logs could not be written yet: %s", error)

    def shutdown(self, broker_epoch: int = 0) -> None:
        """Flush and close every log, and write the checkpoints. A directory gets the clean-shutdown marker if all that
        succeeded in it, and none of its logs was refused. If any directory had failed before, no marker names the
        broker epoch, because the logs of the failed one may be created elsewhere (KIP-966)."""
        if not self.has_all_directories:
            broker_epoch = UNKNOWN_BROKER_EPOCH
        for directory in self._online:
            if directory.state.shortage is not None:
                directory.state.give_up_reserve()  # the last snapshots and checkpoints need space
        with self._lock:
            entries = list(self._entries.values())
        opened = [entry for entry in entries if entry.log is not None]
        threads = min(_MAX_CLOSING_THREADS, len(opened) // _LOGS_PER_CLOSING_THREAD)
        if threads > 1:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(threads, "closing") as pool:
                closed = list(pool.map(close_cleanly, opened))
        else:
            closed = [close_cleanly(entry) for entry in opened]
        dirty = {entry.directory.path for entry, is_clean in zip(opened, closed, strict=True) if not is_clean}
        dirty |= {entry.directory.path for entry in entries if entry.error is not None}
        for directory in self.directories:
            if directory.is_online:
                copy_offsets(directory, self._entries, self._lock)
                directory.finish(self._file_system, broker_epoch, self.partitions(), clean=directory.path not in dirty)

    # ---- find, create, delete

    def cordon(self, paths: Iterable[str]) -> None:
        """Make no new log in these directories from now on, unless a caller names one or no others are online."""
        cordoned = frozenset(map(os.path.abspath, paths))
        if cordoned != self.cordoned:
            logger.info("cordoned log directories: %s", ", ".join(sorted(cordoned)) or "none")
        self.cordoned = cordoned

    def get_log(self, partition: TopicPartition) -> UnifiedLog | None:
        """Return the log of a partition, which is opened if necessary; None when it has no directory.

        Raises the error because of which the log cannot be loaded: KafkaStorageError or InconsistentTopicIdError.
        """
        while (entry := self._entries.get(partition)) is not None:
            if entry.log is not None:
                return entry.log
            if entry.error is not None:
                return refuse(entry)  # without the lock, which a worker may hold to load the log again
            with entry.lock:
                if not entry.is_gone:
                    return self._load(partition, entry).log or refuse(entry)
        return None

    def get_or_create_log(
        self,
        partition: TopicPartition,
        topic_id: bytes | None,
        config: LogConfig,
        *,
        is_new: bool = False,
        directory_id: bytes | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
        saves_epochs: bool = True,
    ) -> UnifiedLog:
        """Return the log of a partition. If there is none, it is created in the directory with the id ``directory_id``;
        if that is not online, in the online one with the fewest partitions (see ``cordoned`` for those left out).

        While a directory is offline, a log that is not found may lie there: then none is created, unless ``is_new``
        says that the topic is new. None is created either if ``is_wanted`` returns False, as for a topic that is being
        deleted. Without ``saves_epochs`` the caller writes unsaved leader epochs before any append. Raises what
        ``get_log`` raises, and UnknownTopicOrPartitionError.
        """
        opening = Opening(topic_id, config, saves_epochs=saves_epochs)
        while True:
            entry = self._entries.get(partition)
            if entry is None:
                with self._lock:
                    if not is_wanted():
                        raise UnknownTopicOrPartitionError
                    entry = self._entries.get(partition)
                    entry = entry or self._make_entry(partition, topic_id, directory_id, is_new=is_new)
            if entry.is_deleted_unrenamed:
                self.delete_log(partition)
                continue
            if entry.error is not None and not entry.is_gone:
                return refuse(entry)
            with entry.lock:
                if entry.is_gone or entry.is_deleted_unrenamed:
                    continue
                log = self._load(partition, entry, opening).log or refuse(entry)
                if log.config is not config:
                    log.update_config(config)
                return log

    def _make_entry(
        self, partition: TopicPartition, topic_id: bytes | None, directory_id: bytes | None, *, is_new: bool
    ) -> Entry:
        online = [directory for directory in self.directories if directory.is_online]
        offline = [directory.path for directory in self.directories if not directory.is_online]
        if not online or (offline and not is_new):
            raise KafkaStorageError(f"{partition} may lie in an offline log directory: {', '.join(offline)}")
        named = [one for one in online if directory_id is not None and one.directory_id == directory_id]
        allowed = named or [directory for directory in online if directory.path not in self.cordoned] or online
        used = [entry.directory for entry in self._entries.values()] if len(allowed) > 1 else []
        directory = min(allowed, key=used.count)
        path = os.path.join(directory.path, partition.directory_name)
        self._file_system.make_directory(path)
        directory.forget(partition)
        entry = self._entries[partition] = Entry(directory, path, clean=True, topic_id=topic_id, is_new=True)
        if len(self.directories) > 1:
            self.placed.append(partition)  # after the entry is made, in which its directory is looked up
        return entry

    def _load(self, partition: TopicPartition, entry: Entry, opening: Opening = UNKNOWN) -> Entry:
        """Open the log and store it in ``entry``, or else the error, which later calls raise without another try. Under
        the entry's lock.
        """
        if entry.log is None and entry.error is None and entry.directory.is_online:
            try:
                entry.log = self._open(partition, entry, opening)
            except KafkaError as error:
                entry.error = error
                self.environment.service_changes.append(partition)
                logger.error("%s is refused: %s", entry.path, error)
        return entry

    def _open(self, partition: TopicPartition, entry: Entry, opening: Opening = UNKNOWN) -> UnifiedLog:
        check_single(entry)
        directory = entry.directory
        if entry.is_new:
            directory.erase(partition, self._file_system)
            entry.is_new = False
        log = load_log(
            LoadRequest(
                partition,
                entry.path,
                opening.config or self._configs(partition.topic) or self.default_config,
                self.environment,
                directory.state,
                topic_id=entry.topic_id if opening.topic_id is None else opening.topic_id,
                log_start_offset=directory.start_offsets.get(partition, 0),
                recovery_point=directory.recovery_points.get(partition, 0),
                clean=entry.clean,
                progress=opening.progress,
                saves_epochs=opening.saves_epochs,
                found_id=entry.found_id,
                index_digests=directory.index_digests.digests_of(partition),
            )
        )
        log.update_high_watermark(directory.high_watermarks.get(partition, log.log_start_offset))
        return log

    def delete_log(self, partition: TopicPartition) -> bool:
        """Remove a partition; return False if there is none. On return its name may be used again. The deletion is
        durable once the names of the log directory are synced. Raises KafkaStorageError.
        """
        while (entry := entry_of(self._entries, self._lock, partition)) is not None:
            with entry.lock:
                if entry.is_gone:
                    continue
                if entry.log is not None:
                    entry.log.abandon()
                path = os.path.join(entry.directory.path, name_aside(partition, DELETE_DIRECTORY_SUFFIX))
                if entry.directory.is_online:
                    rename = partial(rename_away, self._file_system, entry.path, path)
                    try:
                        entry.directory.state.with_reserve(rename)
                    except KafkaStorageError as error:
                        mark_deleted_unrenamed(self.environment, entry, error)
                        raise
                    entry.directory.state.note_directory_name()
                delete_copies(self.environment, partition, entry)
                with self._lock:
                    entry.is_gone = True
                    del self._entries[partition]
                    entry.directory.forget(partition)
            config = entry.log.config if entry.log is not None else self.default_config
            delete = partial(remove_deleted, self._file_system, entry.log, path)
            is_full = entry.directory.state.shortage is not None  # then the space is needed at once
            self.environment.deletions.schedule(0 if is_full else config.file_delete_delay_ms, delete)
            return True
        return False

    def open_logs(self) -> Iterator[UnifiedLog]:
        """Yield the open logs in online directories."""
        for entry in list(self._entries.values()):
            if entry.log is not None and entry.directory.is_online:
                yield entry.log

    def partitions(self) -> list[TopicPartition]:
        """Return every partition that has a directory."""
        return list(self._entries)

    @property
    def has_all_directories(self) -> bool:
        """True when every directory is online. The logs in one that failed at the start are not known."""
        return all(directory.is_online for directory in self.directories)

    @property
    def refused(self) -> dict[TopicPartition, KafkaError]:
        """The partitions that could not be loaded or were taken out of service, with their errors."""
        errors = {partition: error_of(entry) for partition, entry in list(self._entries.items())}
        return {partition: error for partition, error in errors.items() if error is not None}

    # ---- housekeeping

    def run_retention(self, now_ms: int) -> int:
        """Delete old segments of every log, forget idle producers, and unlink files whose deletion is due. Return the
        number of segments deleted.

        Logs that are not open are opened for this, and closed again if nothing is to be deleted. Call it at each
        ``log.retention.check.interval.ms``.
        """
        now_ms = self._retention_clock.believe(now_ms)
        moved = {}
        for partition, entry in list(self._entries.items()):
            if entry.directory.is_online:
                try:
                    log = self._retain(partition, entry, now_ms)
                except KafkaError as error:
                    logger.warning("retention of %s failed; the next round tries again: %s", partition, error)
                else:
                    moved.update({} if log is None else {partition: log})
        count = remove_old_segments(self, moved)
        self.environment.deletions.run()
        return count

    def _retain(self, partition: TopicPartition, entry: Entry, now_ms: int) -> UnifiedLog | None:
        """Move a log's start offset as far as retention asks; return the log if segments may be removed."""
        log = entry.log
        if log is None:
            with entry.lock:
                if entry.is_gone or entry.error is not None:
                    return None
                if (log := entry.log) is None:
                    log = self._open(partition, entry)
                    if self._commits_alone:
                        log.update_high_watermark(log.log_end_offset)
                    if move_start(log, now_ms):
                        entry.log = log  # stays open: its changes are flushed before the next clean-shutdown marker
                        return log
                    log.close()
                    return None
        log.producer_state.remove_expired(log.lock)
        with log.lock:
            return log if not log.is_closed and move_start(log, now_ms) else None

    def flush_dirty_logs(self) -> None:
        """Sync rolled segments, and all segments of logs whose ``flush.ms`` has passed. Call it each second, in a
        worker thread."""
        now = self._time.monotonic_ms()
        for log in self.open_logs():
            try:
                if log.flush_wanted:
                    log.flush_wanted = False
                    log.flush(log.segments.active.base_offset)
                if now - log.last_flushed_ms >= log.config.flush_ms:
                    log.flush()
            except KafkaStorageError as error:
                logger.error("flush of %s failed: %s", log.topic_partition, error)
                log.flush_wanted = log.is_serving  # after a full disk the next round tries again

    def checkpoint_recovery_points(self) -> None:
        """Write ``recovery-point-offset-checkpoint`` and the digests of proven transaction indices, where they changed.
        Raises KafkaStorageError."""
        for directory in self._online:
            copy_offsets(directory, self._entries, self._lock)
            directory.write(self._file_system, RECOVERY_POINT_FILE)
            for entry in list(self._entries.values()):
                if entry.directory is directory and entry.log is not None:
                    note_proofs(entry.log, directory.index_digests)
            directory.write_proofs(self.partitions())

    def checkpoint_log_start_offsets(self) -> None:
        """Write ``log-start-offset-checkpoint`` where it changed. Raises KafkaStorageError."""
        for directory in self._online:
            copy_offsets(directory, self._entries, self._lock)
        write_all(self._online, LOG_START_OFFSET_FILE, self._file_system)

    def checkpoint_high_watermarks(self) -> None:
        """Write ``replication-offset-checkpoint`` where it changed. Raises KafkaStorageError."""
        for directory in self._online:
            copy_offsets(directory, self._entries, self._lock)
        write_all(self._online, REPLICATION_OFFSET_FILE, self._file_system)

    @property
    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self.directories if directory.is_online]

    def describe(self) -> list[DirectoryDescription]:
        """Describe each directory's disk space and partition sizes, without opening logs (DescribeLogDirs)."""
        described = []
        for directory in self.directories:
            sizes: dict[TopicPartition, int] = {}
            total = usable = -1
            if directory.is_online:
                try:
                    total, usable = self._file_system.disk_space(directory.path)
                    sizes = sizes_in(self._file_system, directory, self._entries)
                except KafkaStorageError as error:
                    logger.warning("sizes in %s cannot be read: %s", directory.path, error)
            described.append(DirectoryDescription(directory.path, directory.state.failure, sizes, total, usable))
        return described


def count_failures(manager: LogManager) -> int:
    """Return a number that changes whenever a log or a directory fails."""
    return manager.environment.failed_logs + sum(not directory.is_online for directory in manager.directories)


def remove_old_segments(manager: LogManager, logs: Mapping[TopicPartition, UnifiedLog]) -> int:
    """Make the start offsets of these logs durable, then remove the segments below; return the number of segments.

    Without a durable start offset, a power loss that keeps only some of the removals would leave a gap. If a start
    offset moves on meanwhile, the next round removes the rest. On a full disk segments are removed even if the start
    offsets could not be written, to free space.
    """
    count = 0
    starts = {partition: log.log_start_offset for partition, log in logs.items()}
    if logs:
        try:
            manager.checkpoint_log_start_offsets()
        except KafkaStorageError as error:
            logger.warning("log start offsets could not be written: %s", error)
            if not lacks_room(error):
                return 0
    for partition, log in logs.items():
        try:
            with log.lock:
                count += 0 if log.is_closed else remove_below_start(log, starts[partition])
        except KafkaError as error:
            logger.warning("retention of %s failed; the next round tries again: %s", partition, error)
    return count
