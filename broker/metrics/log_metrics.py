"""The logs' gauges: directories that are offline or full, partitions refused, and damage found (faults.md F5, F8)."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.broker.metrics.registry import Metrics, Sample
from tidelog.log.manager import LogManager


def register_log_metrics(metrics: Metrics, manager: LogManager) -> None:
    """Kafka's names where Kafka counts the same; ``tidelog_`` where it does not."""
    damage = manager.environment.damage
    metrics.gauge(
        "kafka_log_logmanager_offlinelogdirectorycount",
        lambda: sum(not directory.is_online for directory in manager.directories),
    )
    metrics.gauge("tidelog_log_refused_partitions", lambda: len(manager.refused))
    metrics.gauge(
        "tidelog_log_full_directories",
        lambda: sum(directory.state.shortage is not None for directory in manager.directories),
    )
    metrics.source(lambda: refused_samples(manager))
    metrics.gauge("tidelog_log_damaged_batches", lambda: damage.batches)
    metrics.gauge("tidelog_log_damaged_reads", lambda: damage.reads)
    metrics.gauge("tidelog_log_rebuilt_indices", lambda: damage.indices)
    metrics.gauge("tidelog_log_cut_bytes", lambda: damage.cut_bytes)


def refused_samples(manager: LogManager) -> Iterator[Sample]:
    """One value for each partition that is refused, with the reason."""
    for (topic, partition), reason in manager.refused.items():
        labels = {"topic": topic, "partition": str(partition), "reason": str(reason)}
        yield Sample("tidelog_log_refused", "gauge", labels, 1)
