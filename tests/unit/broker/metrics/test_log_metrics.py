"""The gauges of logs agree with the log manager."""

from __future__ import annotations

from pathlib import Path

from tidelog.broker.metrics.log_metrics import log_manager_samples
from tidelog.log.config import LogConfig
from tidelog.log.manager import LogManager
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import KafkaStorageError


def test_damage_and_offline_directories_are_counted(tmp_path: Path) -> None:
    manager = LogManager([str(tmp_path / "a"), str(tmp_path / "b")], OsFileSystem(), ManualTime(0), LogConfig())
    manager.startup()
    damage = manager.environment.damage
    damage.batches, damage.reads, damage.indices, damage.cut_bytes = 1, 2, 3, 4
    manager.directories[1].state.mark_offline(KafkaStorageError("the disk is gone"))
    found = {sample.name: sample.value for sample in log_manager_samples(manager) if "_log_" in sample.name}
    assert found == {
        "kafka_log_logmanager_offlinelogdirectorycount": 1,
        "tidelog_log_full_directories": 0,
        "tidelog_log_refused_partitions": 0,
        "tidelog_log_damaged_batches": 1,
        "tidelog_log_damaged_reads": 2,
        "tidelog_log_rebuilt_indices": 3,
        "tidelog_log_cut_bytes": 4,
    }
