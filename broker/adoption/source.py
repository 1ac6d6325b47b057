"""Partition directories of a stopped Apache Kafka: their list, and their check with ``tidelog.log.check``. Read-only.

Damage that a start of Kafka would repair is repaired in the copy. Damaged indices and snapshots are not copied but
rebuilt. Without the clean-shutdown marker recovery reads everything from the recovery point on: records there may be
torn, and the indices (which Kafka allocates at full size) are not copied. Any other damage forbids the adoption.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidelog.broker.config.sources import PropertiesError, parse_properties
from tidelog.broker.metadata.log_reader import METADATA_DIRECTORY
from tidelog.log.check import Finding, check_directory
from tidelog.log.files.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_FILE,
    LEADER_EPOCH_FILE,
    LOG_START_OFFSET_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    CheckpointCorruptError,
    read_offset_checkpoint,
    read_partition_metadata,
)
from tidelog.log.files.segment_names import base_offset_of
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.segment.batch_scan import iter_headers
from tidelog.log.segment.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_FILE_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
)
from tidelog.log.system.file_system import FileEntry, FileSystem
from tidelog.protocol.errors import CorruptMessageError

_REBUILT_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
_LOG_FILE_SUFFIXES = (*SEGMENT_FILE_SUFFIXES, SNAPSHOT_SUFFIX, LEADER_EPOCH_FILE, PARTITION_METADATA_FILE)
_LEFTOVER_SUFFIXES = (".deleted", ".tmp")
"""Suffixes of files that Kafka was about to delete, and of half-written ones. ``.swap`` is not among them: opening the
log completes or undoes the swap that Kafka's cleaner began."""
_NOT_SERVED = {
    "-delete": "was being deleted",
    "-stray": "belonged to no topic of Kafka's",
    "-future": "was being moved between disks",
}
"""Suffixes of directories that are not partitions in use -> the reason that is reported."""
_AFTER_ALL_OFFSETS = 2**63


@dataclass(slots=True)
class SourcePartition:
    """One partition directory of a source, with its offsets in the checkpoint files. ``clean``: the source has the
    clean-shutdown marker. ``omit`` has the names of files that are not copied."""

    partition: TopicPartition
    directory: str
    clean: bool
    recovery_point: int
    log_start_offset: int | None
    cleaner_offset: int | None
    topic_id: bytes | None
    files: list[FileEntry]
    omit: set[str] = field(default_factory=set)

    @property
    def copied(self) -> list[FileEntry]:
        """The files to copy."""
        return [file for file in self.files if file.name not in self.omit]

    @property
    def size_bytes(self) -> int:
        """Bytes to copy."""
        return sum(file.size for file in self.copied)

    def bases(self) -> list[int]:
        """Return the base offsets of the segments, ascending."""
        found = (offset_of(file.name) for file in self.files if file.name.endswith(LOG_SUFFIX))
        return sorted(base for base in found if base >= 0)

    def first_recovered(self) -> int:
        """Return the base offset of the first segment that recovery may change; after a clean shutdown, an offset above
        all others.
        """
        if self.clean:
            return _AFTER_ALL_OFFSETS
        return max((base for base in self.bases() if base <= self.recovery_point), default=0)


@dataclass(slots=True)
class SourceListing:
    """The partitions of one source. ``others`` has its other directories, except the metadata log's: path -> reason why
    it is left out."""

    clean: bool
    partitions: list[SourcePartition] = field(default_factory=list)
    others: dict[str, str] = field(default_factory=dict)


def is_of_kraft(file_system: FileSystem, source: str) -> bool:
    """Return whether a KRaft broker wrote ``meta.properties``: the file's version is then 1, and 0 with ZooKeeper.
    Raises KafkaStorageError."""
    path = os.path.join(source, META_PROPERTIES_FILE)
    if not file_system.exists(path):
        return False
    try:
        return parse_properties(file_system.read_file(path).decode("latin-1")).get("version") == "1"
    except PropertiesError as error:
        raise CheckpointCorruptError(f"{path}: {error}") from error


def list_source(file_system: FileSystem, source: str) -> SourceListing:
    """List the partitions in one entry of Kafka's ``log.dirs``. Raises KafkaStorageError."""
    listing = SourceListing(file_system.exists(os.path.join(source, CLEAN_SHUTDOWN_FILE)))
    recovery_points, start_offsets, cleaner_offsets = (
        read_offset_checkpoint(file_system, os.path.join(source, name))
        for name in (RECOVERY_POINT_FILE, LOG_START_OFFSET_FILE, CLEANER_OFFSET_FILE)
    )
    for entry in file_system.list_directory(source):
        if not entry.is_directory or entry.name == METADATA_DIRECTORY:
            continue
        path = os.path.join(source, entry.name)
        reason = next((text for suffix, text in _NOT_SERVED.items() if entry.name.endswith(suffix)), None)
        partition = None if reason else _partition_of(entry.name)
        if partition is None:
            listing.others[path] = reason or "is not a partition directory"
            continue
        found = SourcePartition(
            partition,
            path,
            listing.clean,
            recovery_points.get(partition, 0),
            start_offsets.get(partition),
            cleaner_offsets.get(partition),
            read_partition_metadata(file_system, path),
            [file for file in file_system.list_directory(path) if file.is_file],
        )
        listing.partitions.append(found)
    return listing


def check_partition(file_system: FileSystem, partition: SourcePartition) -> tuple[list[Finding], list[Finding]]:
    """Return two lists: damaged indices and snapshots, which are rebuilt, and damage that forbids the adoption. Sets
    ``omit``. Raises KafkaStorageError."""
    if irregular := _irregular_files(file_system, partition.directory):
        return [], irregular
    first_recovered = partition.first_recovered()
    for file in partition.files:
        is_index = file.name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX))
        if file.name.endswith(_LEFTOVER_SUFFIXES) or (is_index and offset_of(file.name) >= first_recovered):
            partition.omit.add(file.name)
    repaired, wrong = [], []
    for finding in check_directory(file_system, partition.directory):
        name = os.path.basename(finding.path)
        if name in partition.omit:
            continue
        if name.endswith(_REBUILT_SUFFIXES):
            if name.endswith(SNAPSHOT_SUFFIX):
                # Raises KafkaStorageError if the disk cannot read the file: that is not damage of the snapshot.
                file_system.read_file(finding.path)
            repaired.append(finding)
            partition.omit.add(name)
        elif offset_of(name) < first_recovered and not (name == LEADER_EPOCH_FILE and not partition.clean):
            wrong.append(finding)
    return repaired, wrong


def _irregular_files(file_system: FileSystem, directory: str) -> list[Finding]:
    """Find links, FIFOs and the like that have the names of a log's files. The copy would lack their records."""
    return [
        Finding(os.path.join(directory, entry.name), -1, "is not a regular file")
        for entry in file_system.list_directory(directory)
        if not entry.is_file and entry.name.endswith(_LOG_FILE_SUFFIXES)
    ]


def producer_ids(file_system: FileSystem, partition: SourcePartition) -> Iterator[int]:
    """Yield the producer id of every batch up to the first impossible header, where recovery cuts the copy; -1 for a
    batch without one. Raises KafkaStorageError."""
    for base in partition.bases():
        path = os.path.join(partition.directory, f"{base:020d}{LOG_SUFFIX}")
        file = file_system.open_file(path, writable=False)
        try:
            for header in iter_headers(file, 0, file.size()):
                yield header.producer_id
        except CorruptMessageError:
            return
        finally:
            file.close()


def _partition_of(name: str) -> TopicPartition | None:
    try:
        return TopicPartition.parse(name)
    except ValueError:
        return None


def offset_of(name: str) -> int:
    """Return the offset in the name of a segment's file, -1 for any other name."""
    base = base_offset_of(name)
    return -1 if base is None else base
