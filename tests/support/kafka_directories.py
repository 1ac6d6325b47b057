"""Data directories as Apache Kafka leaves them, written without Java: partitions, metadata log, small files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.logs import NOW_MS, append, producer_batch
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.metadata.log_reader import METADATA_DIRECTORY
from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE
from tidelog.broker.metadata.quorum_state import QuorumVoters
from tidelog.broker.metadata.replay import SnapshotId
from tidelog.broker.metadata.snapshot import build_metadata_batch, build_snapshot
from tidelog.log.config import LogConfig
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    META_PROPERTIES_FILE,
    MetaProperties,
    write_clean_shutdown,
    write_meta_properties,
    write_partition_metadata,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.recovery.loader import LoadRequest, load_log
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.protocol.metadata_records.control_records import (
    BatchStart,
    RegisteredVoter,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VoterEndpoint,
    VotersRecord,
    VoterVersions,
    build_control_batch,
)
from tidelog.protocol.schema.fields import Message

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
FILE_SYSTEM = OsFileSystem()


class KafkaDirectory:
    """One entry of a stopped Kafka's ``log.dirs``."""

    def __init__(self, path: Path, *, cluster_id: str = CLUSTER_ID, zookeeper: bool = False) -> None:
        self.path = path
        path.mkdir(parents=True)
        write_meta_properties(FILE_SYSTEM, str(path), MetaProperties(cluster_id, 3, bytes(16)))
        if zookeeper:
            (path / META_PROPERTIES_FILE).write_text(f"#\nbroker.id=3\nversion=0\ncluster.id={cluster_id}\n")
        write_clean_shutdown(FILE_SYSTEM, str(path), 1)
        (path / ".lock").touch()

    def add_partition(
        self, topic: str, index: int, topic_id: bytes | None, *, epoch: int = 0, producer_id: int = 7, batches: int = 60
    ) -> Path:
        """Add a partition of ``batches`` batches with one record each, about 26 to a segment."""
        topic_partition = TopicPartition(topic, index)
        directory = self.path / topic_partition.directory_name
        directory.mkdir()
        if topic_id is not None:
            write_partition_metadata(FILE_SYSTEM, str(directory), topic_id)
        environment = LogEnvironment(FILE_SYSTEM, ManualTime(NOW_MS))
        config = LogConfig({"segment.bytes": "2000", "index.interval.bytes": "200"})
        request = LoadRequest(topic_partition, str(directory), config, environment, DirectoryState(str(self.path)))
        log = load_log(request)
        for sequence in range(batches):
            append(log, producer_batch(sequence, producer_id=producer_id, timestamp=NOW_MS + sequence), epoch=epoch)
        log.flush()
        log.close()
        return directory

    def add_metadata(self, records: Iterable[tuple[Message, int]], *, snapshot_at: int | None = None) -> None:
        """Add ``__cluster_metadata-0`` with these records; those before ``snapshot_at`` are in a snapshot only."""
        directory = self.path / METADATA_DIRECTORY
        directory.mkdir()
        listed = [VersionedRecord(message, version) for message, version in records]
        split = snapshot_at or 0
        if snapshot_at is not None:
            header = build_control_batch(SnapshotHeaderRecord(), BatchStart(0, 1, NOW_MS))
            footer = build_control_batch(SnapshotFooterRecord(), BatchStart(split + 1, 1, NOW_MS))
            path = directory / SnapshotId(split, 1).file_name()
            path.write_bytes(bytes(header) + _batches(listed[:split], 1) + bytes(footer))
        (directory / f"{split:020d}.log").write_bytes(_batches(listed[split:], split))

    def kill(self) -> None:
        """Remove the marker of a clean shutdown, as after kill -9."""
        (self.path / CLEAN_SHUTDOWN_FILE).unlink()

    def contents(self) -> Mapping[str, bytes]:
        """Read every file."""
        return {str(path): path.read_bytes() for path in self.path.rglob("*") if path.is_file()}


def format_standalone(directory: Path, node_id: int) -> QuorumVoters:
    """Write the metadata log as ``kafka-storage format --standalone`` does; returns the voters."""
    voter = RegisteredVoter(
        voter_id=node_id, voter_directory_id=b"d" * 16,
        endpoints=[VoterEndpoint(name="CONTROLLER", host="h", port=9093)],
        k_raft_version_feature=VoterVersions(min_supported_version=0, max_supported_version=1),
    )  # fmt: skip
    voters = QuorumVoters(1, VotersRecord(voters=[voter]))
    metadata = directory / METADATA_DIRECTORY
    metadata.mkdir(parents=True)
    (metadata / SnapshotId(0, 0).file_name()).write_bytes(b"".join(build_snapshot(EMPTY_IMAGE, 0, voters=voters)))
    return voters


def _batches(listed: list[VersionedRecord], base_offset: int) -> bytes:
    """Encode records as batches of two records each."""
    return b"".join(
        build_metadata_batch(listed[start : start + 2], BatchStart(base_offset + start, 1, NOW_MS))
        for start in range(0, len(listed), 2)
    )
