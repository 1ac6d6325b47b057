"""Periodic jobs of a broker: retention, flushing, checkpoints, deletions, free space, snapshots of the metadata.

``BackgroundJobs`` runs each in a thread; the work is in the log manager and the controller.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.loop.background_jobs import Job

FLUSH_MS = 1_000
"""Longest interval at which rolled segments are synced, whatever ``log.flush.scheduler.interval.ms`` is: recovery skips
synced segments.
"""
DELETIONS_MS = 1_000
"""Interval at which files are deleted whose ``file.delete.delay.ms`` is over. At the interval of retention, five
minutes, they would keep their disk space and descriptors for longer.
"""
SNAPSHOT_MS = 10_000
"""Interval at which a snapshot of the metadata is written, if one is due."""
ROOM_MS = 1_000
"""Interval at which the free space of the disks is checked."""


def maintenance_jobs(broker: Broker) -> list[Job]:
    """Return the periodic jobs of a broker."""
    config, logs = broker.config, broker.log_manager
    return [
        Job(
            "retention",
            config.get_int("log.retention.check.interval.ms"),
            lambda: logs.run_retention(broker.time.milliseconds()),
        ),
        Job("metadata-snapshot", SNAPSHOT_MS, broker.controller.take_snapshot),
        Job("room", ROOM_MS, logs.room.run),
        Job("deletions", DELETIONS_MS, logs.environment.deletions.run),
        Job("flush", min(config.get_int("log.flush.scheduler.interval.ms"), FLUSH_MS), logs.flush_dirty_logs),
        Job(
            "recovery-point-checkpoint",
            config.get_int("log.flush.offset.checkpoint.interval.ms"),
            logs.checkpoint_recovery_points,
        ),
        Job(
            "log-start-offset-checkpoint",
            config.get_int("log.flush.start.offset.checkpoint.interval.ms"),
            logs.checkpoint_log_start_offsets,
        ),
        Job(
            "high-watermark-checkpoint",
            config.get_int("replica.high.watermark.checkpoint.interval.ms"),
            logs.checkpoint_high_watermarks,
        ),
    ]
