"""The disk of one simulated broker: real log files, which lose their unsynced bytes when the power is lost."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Mapping

from tests.simulation.clock import Clock
from tests.support.faulty_file_system import FaultyFileSystem
from tidelog.log.config import LogConfig
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.checkpoints import (
    read_clean_shutdown_epoch,
    read_offset_checkpoint,
    take_clean_shutdown,
    write_clean_shutdown,
    write_offset_checkpoint,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.recovery.loader import LoadRequest, load_log
from tidelog.log.unified_log import UnifiedLog

HIGH_WATERMARKS = "replication-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
CONFIG = {"segment.bytes": 1500, "index.interval.bytes": 200, "file.delete.delay.ms": 0}
"""Segments of a few batches: rolls and truncations over several of them are common."""


class Disk:
    """A log directory. Open logs end with the process; a power loss also takes unsynced bytes."""

    THREAD_MS = (0.0, 0.0, 1.0, 1.0, 30.0, 250.0)
    """Times that work in a thread may take."""

    def __init__(self, root: str, clock: Clock, chance: random.Random, configs: Mapping[str, object]) -> None:
        """``configs`` are those of all logs."""
        os.makedirs(root)
        self._root = root
        self._config = LogConfig({**CONFIG, **configs})
        self._random = chance
        self._clock = clock
        self._files = FaultyFileSystem(root, chance.randrange(1 << 30))
        self.environment = LogEnvironment(self._files, clock)
        self.state = DirectoryState(root)
        self._is_clean = False
        self._watermarks: dict[TopicPartition, int] = {}
        self._logs: dict[TopicPartition, UnifiedLog] = {}

    def start(self) -> int:
        """Read the directory for a new process; return the broker epoch in the clean-shutdown file, -1 without one."""
        self.state = DirectoryState(self._root)
        epoch = read_clean_shutdown_epoch(self._files, self._root)
        self._is_clean = take_clean_shutdown(self._files, self._root)
        self._watermarks = read_offset_checkpoint(self._files, os.path.join(self._root, HIGH_WATERMARKS))
        return -1 if epoch is None else epoch

    def open_log(self, partition: TopicPartition, topic_id: bytes) -> UnifiedLog:
        """Open or create a partition's log, with its checkpointed high watermark."""
        directory = os.path.join(self._root, partition.directory_name)
        self._files.make_directory(directory)
        self._files.sync_directory(self._root)
        points = read_offset_checkpoint(self._files, os.path.join(self._root, RECOVERY_POINTS))
        log = load_log(
            LoadRequest(
                partition,
                directory,
                self._config,
                self.environment,
                self.state,
                topic_id,
                recovery_point=points.get(partition, 0),
                clean=self._is_clean,
            )
        )
        log.update_high_watermark(self._watermarks.get(partition, 0))
        self._logs[partition] = log
        self.checkpoint()
        return log

    def checkpoint(self) -> None:
        """Write the high watermarks, as a broker does every few seconds."""
        if self._logs:
            self._watermarks |= {partition: log.high_watermark for partition, log in self._logs.items()}
            write_offset_checkpoint(self._files, os.path.join(self._root, HIGH_WATERMARKS), self._watermarks)

    def flush(self) -> None:
        """Sync all logs, and write their recovery points."""
        for log in self._logs.values():
            if log.is_serving:
                log.flush()
        self.write_recovery_points()

    def write_recovery_points(self) -> None:
        """Write the offsets up to which the logs are synced; recovery scans a log from there on."""
        points = {partition: log.recovery_point for partition, log in self._logs.items()}
        write_offset_checkpoint(self._files, os.path.join(self._root, RECOVERY_POINTS), points)

    def stop(self, broker_epoch: int) -> None:
        """Flush and close the logs, as the log manager does, and write the clean-shutdown file unless a log has
        failed."""
        self.checkpoint()
        is_clean = all(log.is_serving for log in self._logs.values())
        for log in self._logs.values():
            if log.is_serving:
                log.flush()
            log.close()
        self.write_recovery_points()
        if is_clean:
            write_clean_shutdown(self._files, self._root, broker_epoch)
        self._logs.clear()

    def kill(self) -> None:
        """Kill the process: its writes stay, and its descriptors are closed."""
        for log in self._logs.values():
            log.abandon()
        self._logs.clear()
        self._files.kill()
        self._files.fail_operation.clear()

    def lose_power(self) -> None:
        """Kill the process, and discard what was not synced: all of it, or some sectors."""
        self.kill()
        self._files.crash(torn=self._random.random() < 0.3, keep_names=True)

    def replace(self) -> None:
        """Replace the disk by an empty one, between two processes."""
        shutil.rmtree(self._root)
        os.makedirs(self._root)
        self._files = FaultyFileSystem(self._root, self._random.randrange(1 << 30))
        self.environment = LogEnvironment(self._files, self._clock)
        self._watermarks.clear()
