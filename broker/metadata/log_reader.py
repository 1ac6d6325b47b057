"""Reader of a ``__cluster_metadata-0`` directory: the image after its newest snapshot and the log behind it. Read-only.

The directory holds segments like any partition's, and snapshots beside them. The newest snapshot holds all that was
true before its end offset; the log goes on from there. What follows the last complete batch was not acknowledged and
is not read. Source: KafkaMetadataLog of Kafka 4.3, KIP-630, KIP-631.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import NamedTuple

from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.broker.metadata.replay import MetadataReplay, SnapshotId
from tidelog.broker.metadata.snapshot import read_snapshot
from tidelog.log.manager import METADATA_DIRECTORY as METADATA_DIRECTORY
from tidelog.log.segment.batch_scan import crc_matches, iter_batches
from tidelog.log.segment.resync import find_resume_position
from tidelog.log.system.file_system import FileSystem
from tidelog.protocol.errors import CorruptMessageError, KafkaStorageError, UnsupportedVersionError
from tidelog.protocol.record.record_batch import RecordBatch

SNAPSHOT_SUFFIX = ".checkpoint"
_OFFSET_DIGITS = 20
_EPOCH_DIGITS = 10
_SNAPSHOT_NAME_LENGTH = _OFFSET_DIGITS + 1 + _EPOCH_DIGITS + len(SNAPSHOT_SUFFIX)


class LoadedMetadata(NamedTuple):
    """Content of a metadata log: its image, and topics whose deletion may not be finished (id -> name)."""

    image: MetadataImage
    deletions: dict[bytes, str]


def read_metadata_image(file_system: FileSystem, directory: str) -> MetadataImage:
    """Return the image that the ``__cluster_metadata-0`` in ``directory`` makes. Raises as ``read_metadata_log``."""
    return read_metadata_log(file_system, directory).image


def read_metadata_log(file_system: FileSystem, directory: str) -> LoadedMetadata:
    """Return what the ``__cluster_metadata-0`` in ``directory`` holds.

    Raises KafkaStorageError: unreadable, damaged in front of good batches, or written by a newer Kafka.
    """
    names = file_system.list_names(directory)
    replay, deletions = MetadataReplay(), dict[bytes, str]()
    snapshot = newest_snapshot(names)
    if snapshot is not None:
        path = os.path.join(directory, snapshot.file_name())
        try:
            content = read_snapshot(read_batches(file_system, path), snapshot)
            replay, deletions = MetadataReplay(content.image), content.deletions
        except (CorruptMessageError, UnsupportedVersionError) as error:
            raise KafkaStorageError(f"{path}: {error}") from error
    for path in _segments_from(names, directory, replay.next_offset):
        try:
            _take_segment(replay, read_batches(file_system, path, may_be_torn=path == _last_segment(names, directory)))
        except (CorruptMessageError, UnsupportedVersionError) as error:
            raise KafkaStorageError(f"{path}: {error}") from error
    published = replay.publish()
    if published is None:
        return LoadedMetadata(replay.image, deletions)
    note_deletions(deletions, published.delta)
    return LoadedMetadata(published.image, deletions)


def note_deletions(deletions: dict[bytes, str], delta: MetadataDelta) -> None:
    """Add the topics that a delta deletes to those that are not finished, and take out those it says are."""
    for topic_id, name in delta.deletions.items():
        if name is None:
            deletions.pop(topic_id, None)
        else:
            deletions[topic_id] = name


def newest_snapshot(names: list[str]) -> SnapshotId | None:
    """Return the newest snapshot among a directory's names, None without any."""
    found = [snapshot for name in names if (snapshot := parse_snapshot_name(name)) is not None]
    return max(found, default=None)


def parse_snapshot_name(name: str) -> SnapshotId | None:
    """Return the snapshot that a file's name stands for, None for another file."""
    if len(name) != _SNAPSHOT_NAME_LENGTH or not name.endswith(SNAPSHOT_SUFFIX):
        return None
    offset, _, epoch = name.removesuffix(SNAPSHOT_SUFFIX).partition("-")
    return SnapshotId(int(offset), int(epoch)) if offset.isdigit() and epoch.isdigit() else None


def read_batches(file_system: FileSystem, path: str, *, may_be_torn: bool = False) -> Iterator[RecordBatch]:
    """Yield the batches of a segment or snapshot.

    Raises CorruptMessageError, KafkaStorageError. In a log that ``may_be_torn`` damage without a whole batch after it
    is the end: what a power loss left of records that were not acknowledged.
    """
    file = file_system.open_file(path, writable=False)
    position, end = 0, file.size()
    try:
        for header, view in iter_batches(file, 0, end):
            if not crc_matches(header, view):
                raise CorruptMessageError(f"wrong checksum in the batch at byte {header.position}")
            yield RecordBatch(view)
            position += header.size
    except CorruptMessageError:
        if not may_be_torn or find_resume_position(file, position, end, ()) < end:
            raise
    finally:
        file.close()


def _last_segment(names: list[str], directory: str) -> str:
    return os.path.join(directory, max(name for name in names if name.endswith(".log")))


def _segments_from(names: list[str], directory: str, offset: int) -> Iterator[str]:
    """Yield the paths of the segments that may hold ``offset`` or later ones."""
    bases = sorted(int(name[:_OFFSET_DIGITS]) for name in names if name.endswith(".log"))
    for base, next_base in itertools.zip_longest(bases, bases[1:]):
        if next_base is None or next_base > offset:
            yield os.path.join(directory, f"{base:020d}.log")


def _take_segment(replay: MetadataReplay, batches: Iterator[RecordBatch]) -> None:
    """Take the batches that the replay has not taken yet."""
    for batch in batches:
        if batch.last_offset >= replay.next_offset:
            replay.take_batch(batch)
