"""Gauges of logs: offline and full directories, refused partitions, and damage that was found (faults.md F5, F8)."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.broker.metrics.registry import Sample
from tidelog.log.manager import LogManager


def log_manager_samples(manager: LogManager) -> Iterator[Sample]:
    """Yield metrics of logs: under Kafka's names if Kafka has the same, else with the prefix ``tidelog_``. Any thread:
    with many logs it is too slow for the loop.
    """
    refused, directories, damage = manager.refused, manager.directories, manager.environment.damage
    values = {
        "kafka_log_logmanager_offlinelogdirectorycount": sum(not directory.is_online for directory in directories),
        "kafka_server_replicamanager_partitioncount": len(manager.partitions()),
        "tidelog_log_refused_partitions": len(refused),
        "tidelog_log_full_directories": sum(directory.state.shortage is not None for directory in directories),
        "tidelog_log_damaged_batches": damage.batches,
        "tidelog_log_damaged_reads": damage.reads,
        "tidelog_log_rebuilt_indices": damage.indices,
        "tidelog_log_cut_bytes": damage.cut_bytes,
    }
    for name, value in values.items():
        yield Sample(name, "gauge", {}, value)
    for (topic, partition), reason in refused.items():
        labels = {"topic": topic, "partition": str(partition), "reason": str(reason)}
        yield Sample("tidelog_log_refused", "gauge", labels, 1)
