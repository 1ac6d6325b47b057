"""A stopped Apache Kafka's partition directories: found, and checked with ``tidelog.log.check``. Read-only.

What a start of Kafka would mend is mended on the copy. Indices and snapshots that are wrong are not copied but
rebuilt. Without the clean-shutdown marker recovery reads everything from the recovery point on: what lies there may be
torn, and its indices (which Kafka allocates at full size) are not copied. Anything else that is wrong stays wrong, and
nothing is taken over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidelog.broker.config.sources import parse_properties
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
    read_offset_checkpoint,
    read_partition_metadata,
)
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

_MENDED_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
_OWNED_SUFFIXES = (*SEGMENT_FILE_SUFFIXES, SNAPSHOT_SUFFIX, LEADER_EPOCH_FILE, PARTITION_METADATA_FILE)
_LEFT_BEHIND = (".deleted", ".tmp")
"""What Kafka was about to delete, and half-written files that its start removes. A cleaner's ``.swap`` is not among
them: the loader finishes or undoes it."""
_NOT_SERVED = {
    "-delete": "was being deleted",
    "-stray": "belonged to no topic of Kafka's",
    "-future": "was being moved between disks",
}
_NEVER = 2**63


@dataclass(slots=True)
class SourcePartition:
    """One partition directory of a source and what is known of it. ``omit`` are names of files that are not copied."""

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
        """Return base offsets of the segments, sorted."""
        found = (offset_of(file.name) for file in self.files if file.name.endswith(LOG_SUFFIX))
        return sorted(base for base in found if base >= 0)

    def first_recovered(self) -> int:
        """Return the base offset of the first segment that may change when the log is opened without a clean
        shutdown.
        """
        if self.clean:
            return _NEVER
        return max((base for base in self.bases() if base <= self.recovery_point), default=0)


@dataclass(slots=True)
class SourceListing:
    """The partitions of one source directory, and its other directories (path: reason)."""

    clean: bool
    partitions: list[SourcePartition] = field(default_factory=list)
    others: dict[str, str] = field(default_factory=dict)


def is_of_kraft(file_system: FileSystem, source: str) -> bool:
    """Tell whether a KRaft broker wrote ``meta.properties``: version 1 is theirs, version 0 of those that used
    ZooKeeper.
    """
    path = os.path.join(source, META_PROPERTIES_FILE)
    if not file_system.exists(path):
        return False
    return parse_properties(file_system.read_file(path).decode()).get("version") == "1"


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
            listing.others[path] = reason or "is no partition directory"
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
    """Return (what is rebuilt, what forbids taking the partition over); sets ``omit``. Raises KafkaStorageError."""
    if irregular := _irregular_files(file_system, partition.directory):
        return [], irregular
    first_recovered = partition.first_recovered()
    for file in partition.files:
        is_index = file.name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX))
        if file.name.endswith(_LEFT_BEHIND) or (is_index and offset_of(file.name) >= first_recovered):
            partition.omit.add(file.name)
    mended, wrong = [], []
    for finding in check_directory(file_system, partition.directory):
        name = os.path.basename(finding.path)
        if name in partition.omit:
            continue
        if name.endswith(_MENDED_SUFFIXES):
            if name.endswith(SNAPSHOT_SUFFIX):
                file_system.read_file(finding.path)  # raises: one that may not be read is not damaged
            mended.append(finding)
            partition.omit.add(name)
        elif offset_of(name) < first_recovered and not (name == LEADER_EPOCH_FILE and not partition.clean):
            wrong.append(finding)
    return mended, wrong


def _irregular_files(file_system: FileSystem, directory: str) -> list[Finding]:
    """Find links, FIFOs and the like in the place of a log's files. Left out, they would take their records with
    them.
    """
    return [
        Finding(os.path.join(directory, entry.name), -1, "is not a regular file")
        for entry in file_system.list_directory(directory)
        if not entry.is_file and entry.name.endswith(_OWNED_SUFFIXES)
    ]


def producer_ids(file_system: FileSystem, partition: SourcePartition) -> Iterator[int]:
    """Yield the producer id of every batch (-1: none). Raises KafkaStorageError, CorruptMessageError."""
    for base in partition.bases():
        path = os.path.join(partition.directory, f"{base:020d}{LOG_SUFFIX}")
        file = file_system.open_file(path, writable=False)
        try:
            for header in iter_headers(file, 0, file.size()):
                yield header.producer_id
        finally:
            file.close()


def _partition_of(name: str) -> TopicPartition | None:
    try:
        return TopicPartition.parse(name)
    except ValueError:
        return None


def offset_of(name: str) -> int:
    """Return the offset that a segment's file is named by, -1 for another name."""
    stem = name.partition(".")[0]
    return int(stem) if len(stem) == 20 and stem.isascii() and stem.isdigit() else -1
