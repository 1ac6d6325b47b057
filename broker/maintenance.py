"""The jobs that come round in a broker: retention, flushing, checkpoints, deletions, snapshots of the metadata.

``BackgroundJobs`` runs each in a thread; what they do is the log manager's and the controller's.
"""

from __future__ import annotations

from tidelog.broker.broker import Broker
from tidelog.broker.loop.background_jobs import Job

FLUSH_MS = 1_000
"""Rolled segments are synced this soon, whatever the scheduler's interval: recovery begins after them."""
DELETIONS_MS = 1_000
"""Files go at most this much later than ``file.delete.delay.ms`` says. With the rounds of retention, five minutes
apart, they kept their room on the disk and a descriptor each."""
SNAPSHOT_MS = 10_000
"""How often the metadata log is looked at for whether it is long enough for a snapshot."""
ROOM_MS = 1_000
"""How soon a disk that is full, or has room again, is noticed."""


def maintenance_jobs(broker: Broker) -> list[Job]:
    """Return the jobs that keep a broker's logs in order."""
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
