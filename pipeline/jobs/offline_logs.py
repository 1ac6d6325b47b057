"""The opening of a stopped broker's logs for changes: locks directories, reads checkpoints, and removes and restores
the clean-shutdown marker.

    lock       the broker's own lock of each data directory: no broker runs there, and none can start while it is held
    plan       the settings with which a worker opens one log; picklable
    marker     the clean-shutdown marker is removed before the work and restored once it has succeeded; after an error
               or a kill of the work, the broker's next start recovers from the recovery points, as after any crash

Records count as committed up to the high watermark in ``replication-offset-checkpoint``: in a cluster, a new leader may
truncate later ones. A lone node writes its logs' ends there, with ``flush.messages=1`` the ends of what is synced.
After a kill of the broker the file is up to ``replica.high.watermark.checkpoint.interval.ms`` old, by default 5 s. If
the directory has no such file, as a copy of logs, all records count; if the file does not name a log, none of that log
does. A log that was not closed cleanly is recovered when it is opened, as by a start of the broker.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self

from tidelog.log.config import LogConfig
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_OFFSET_FILE,
    read_offset_checkpoint,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.recovery.loader import LoadRequest, load_log
from tidelog.log.system.file_system import OpenFile, OsFileSystem
from tidelog.log.system.time import SystemTime
from tidelog.log.unified_log import UnifiedLog
from tidelog.pipeline.files.storage import require_mounted
from tidelog.pipeline.job_errors import JobError
from tidelog.pipeline.plan.selection import PartitionDirectory

LOCK_FILE = ".lock"

TopicConfigs = Mapping[str, Mapping[str, str]]
"""Topic -> its own configuration, by Kafka's keys."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Topic configurations: ``topics`` from the broker's metadata, ``overrides`` for all topics of the job."""

    topics: TopicConfigs = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)

    def of(self, topic: str) -> dict[str, str]:
        """Return the configuration of a topic. Raises ConfigError when a value is invalid."""
        values = {**self.topics.get(topic, {}), **self.overrides}
        LogConfig(values)
        return values


@dataclass(frozen=True, slots=True)
class LogPlan:
    """Settings to open one log with.

    ``topic_id`` is None if the directory has no ``partition.metadata``; ``config`` is the topic's. ``high_watermark``
    None: all records count as committed. ``was_closed_cleanly``: whether the data directory has the clean-shutdown
    marker. ``size``: bytes of the log's segments.
    """

    topic: str
    partition: int
    topic_id: bytes | None
    path: str
    config: Mapping[str, str]
    log_start_offset: int
    recovery_point: int
    high_watermark: int | None
    was_closed_cleanly: bool
    size: int

    @property
    def name(self) -> str:
        """``topic-partition``."""
        return f"{self.topic}-{self.partition}"


def open_log(plan: LogPlan) -> UnifiedLog:
    """Open a log, recovered if it was not closed cleanly. The high watermark is the plan's, or the log's end. The
    caller closes the log with :func:`close_log`. Raises KafkaError, ConfigError."""
    log = load_log(
        LoadRequest(
            topic_partition=TopicPartition(plan.topic, plan.partition),
            directory=plan.path,
            config=LogConfig(dict(plan.config)),
            environment=LogEnvironment(OsFileSystem(), SystemTime()),
            directory_state=DirectoryState(os.path.dirname(plan.path)),
            topic_id=plan.topic_id,
            log_start_offset=plan.log_start_offset,
            recovery_point=plan.recovery_point,
            clean=plan.was_closed_cleanly,
        )
    )
    log.update_high_watermark(log.log_end_offset if plan.high_watermark is None else plan.high_watermark)
    return log


def close_log(log: UnifiedLog) -> None:
    """Flush and close the log, and delete the files that were replaced. Raises KafkaStorageError."""
    log.flush()
    log.close()
    log.environment.deletions.run(everything=True)


class _Checkpoints(NamedTuple):
    """Checkpoints of a data directory: log start offsets, recovery points and high watermarks (None if that file is
    missing); and whether the directory has the clean-shutdown marker."""

    starts: Mapping[TopicPartition, int]
    recovery_points: Mapping[TopicPartition, int]
    high_watermarks: Mapping[TopicPartition, int] | None
    has_marker: bool


class OfflineLogs:
    """The data directories of one job, as a context manager that locks them. One thread of the driver."""

    def __init__(self, directories: list[PartitionDirectory], configuration: Configuration) -> None:
        self._directories = directories
        self._configuration = configuration
        self._file_system = OsFileSystem()
        self._locks: list[OpenFile] = []
        self._markers: dict[str, bytes] = {}
        self.data_directories = sorted(
            {require_mounted(os.path.dirname(directory.path), "path") for directory in directories}
        )

    def __enter__(self) -> Self:
        """Lock the data directories. Raises JobError if one is locked, as by a broker, and KafkaStorageError."""
        try:
            for path in self.data_directories:
                self._claim(path)
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the markers if the work has succeeded, and unlock the directories."""
        try:
            if error is None:
                for path, content in self._markers.items():
                    self._file_system.replace_file(os.path.join(path, CLEAN_SHUTDOWN_FILE), content)
        finally:
            self._release()

    def _claim(self, path: str) -> None:
        lock = self._file_system.lock_file(os.path.join(path, LOCK_FILE))
        if lock is None:
            raise JobError(f"a broker uses {path} ({LOCK_FILE} is locked): stop it first")
        self._locks.append(lock)

    def _release(self) -> None:
        for lock in self._locks:
            lock.close()
        self._locks.clear()

    def plan_logs(self) -> list[LogPlan]:
        """Plan the opening of each log; nothing is changed. Raises KafkaStorageError, ConfigError."""
        configs = {directory.topic: self._configuration.of(directory.topic) for directory in self._directories}
        checkpoints = {path: self._read_checkpoints(path) for path in self.data_directories}
        return [
            self._plan(directory, configs[directory.topic], checkpoints[os.path.dirname(directory.path)])
            for directory in self._directories
        ]

    def require_clean(self) -> None:
        """Raise JobError if a data directory has no clean-shutdown marker: opening its logs would recover them."""
        for path in self.data_directories:
            if not self._has_marker(path):
                raise JobError(
                    f"{path} was not stopped cleanly (no {CLEAN_SHUTDOWN_FILE}), and reading its logs would recover "
                    "them, which changes files: start and stop the broker there first, or leave out --dry-run"
                )

    def begin_changes(self) -> None:
        """Remove the clean-shutdown markers; the context restores them if it ends without an error. Call it when
        nothing can be refused any more. Raises KafkaStorageError."""
        for path in self.data_directories:
            if self._has_marker(path):
                self._remove_marker(path)

    def _has_marker(self, path: str) -> bool:
        return self._file_system.exists(os.path.join(path, CLEAN_SHUTDOWN_FILE))

    def _read_checkpoints(self, path: str) -> _Checkpoints:
        def read(name: str) -> dict[TopicPartition, int]:
            return read_offset_checkpoint(self._file_system, os.path.join(path, name))

        has_watermarks = self._file_system.exists(os.path.join(path, REPLICATION_OFFSET_FILE))
        return _Checkpoints(
            read(LOG_START_OFFSET_FILE),
            read(RECOVERY_POINT_FILE),
            read(REPLICATION_OFFSET_FILE) if has_watermarks else None,
            self._has_marker(path),
        )

    def _plan(self, directory: PartitionDirectory, config: Mapping[str, str], checkpoints: _Checkpoints) -> LogPlan:
        partition = TopicPartition(directory.topic, directory.partition)
        files = self._file_system.list_directory(directory.path)
        return LogPlan(
            directory.topic,
            directory.partition,
            directory.topic_id,
            directory.path,
            config,
            checkpoints.starts.get(partition, 0),
            checkpoints.recovery_points.get(partition, 0),
            None if checkpoints.high_watermarks is None else checkpoints.high_watermarks.get(partition, 0),
            checkpoints.has_marker,
            sum(entry.size for entry in files if entry.name.endswith(".log")),
        )

    def _remove_marker(self, path: str) -> None:
        marker = os.path.join(path, CLEAN_SHUTDOWN_FILE)
        self._markers[path] = self._file_system.read_file(marker)
        self._file_system.unlink(marker)
        self._file_system.sync_directory(path)
