"""The logs' gauges: directories that went offline, partitions refused, and damage found (faults.md F5)."""

from __future__ import annotations

from broker.metrics import Metrics
from log.manager import LogManager


def register_log_metrics(metrics: Metrics, manager: LogManager) -> None:
    """Kafka's names where Kafka counts the same; ``tidelog_`` where it does not."""
    damage = manager.environment.damage
    metrics.gauge(
        "kafka_log_logmanager_offlinelogdirectorycount",
        lambda: sum(not directory.is_online for directory in manager.directories),
    )
    metrics.gauge("tidelog_log_refused_partitions", lambda: len(manager.refused))
    metrics.gauge("tidelog_log_damaged_batches", lambda: damage.batches)
    metrics.gauge("tidelog_log_damaged_reads", lambda: damage.reads)
    metrics.gauge("tidelog_log_rebuilt_indices", lambda: damage.indices)
    metrics.gauge("tidelog_log_cut_bytes", lambda: damage.cut_bytes)
