"""Reader of a ``__cluster_metadata-0`` directory: it replays the newest snapshot and the log after it, and writes
nothing.

The directory holds segments like any partition's, and snapshots beside them. The newest snapshot has the metadata
before its end offset; the log goes on from there. A torn batch and what follows it were not synced, so no client has
got an answer about them, and they are not read. Source: KafkaMetadataLog of Kafka 4.3, KIP-630, KIP-631.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import NamedTuple

from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.broker.metadata.quorum_state import STATIC_VOTERS, QuorumVoters, last_voters
from tidelog.broker.metadata.replay import MetadataReplay, SnapshotId
from tidelog.broker.metadata.snapshot import read_snapshot
from tidelog.log.directories.names import METADATA_DIRECTORY as METADATA_DIRECTORY
from tidelog.log.files.segment_names import base_offset_of
from tidelog.log.segment.batch_scan import BatchHeader, crc_matches, iter_batches, parse_header
from tidelog.log.system.file_system import FileSystem, OpenFile
from tidelog.protocol.errors import CorruptMessageError, KafkaStorageError, UnsupportedVersionError
from tidelog.protocol.record.record_batch import MAGIC_OFFSET, RECORD_BATCH_OVERHEAD, RecordBatch

SNAPSHOT_SUFFIX = ".checkpoint"
_OFFSET_DIGITS = 20
_EPOCH_DIGITS = 10
_SNAPSHOT_NAME_LENGTH = _OFFSET_DIGITS + 1 + _EPOCH_DIGITS + len(SNAPSHOT_SUFFIX)


class LoadedMetadata(NamedTuple):
    """Content of a metadata log: its image, topics whose deletion may be unfinished (id -> name), its end offset, and
    its voters. ``is_unsafe_for_kafka`` is the field of that name of the delta with the changes after the snapshot.
    """

    image: MetadataImage
    deletions: dict[bytes, str]
    end_offset: int
    voters: QuorumVoters = STATIC_VOTERS
    is_unsafe_for_kafka: bool = False

    @property
    def is_in_transaction(self) -> bool:
        """True if the log ends in a transaction that is neither committed nor aborted."""
        return self.end_offset > self.image.offset + 1


def read_metadata_image(file_system: FileSystem, directory: str) -> MetadataImage:
    """Return the image of the metadata log in ``directory``. Raises as ``read_metadata_log``."""
    return read_metadata_log(file_system, directory).image


def read_metadata_log(file_system: FileSystem, directory: str) -> LoadedMetadata:
    """Return the content of the metadata log in ``directory``.

    Raises KafkaStorageError if the log is unreadable, damaged where it was synced, or written by a newer Kafka; also if
    its records contradict each other.
    """
    names = file_system.list_names(directory)
    replay, deletions, voters = MetadataReplay(), dict[bytes, str](), STATIC_VOTERS
    snapshot = newest_snapshot(names)
    if snapshot is not None:
        path = os.path.join(directory, snapshot.file_name())
        try:
            content = read_snapshot(read_batches(file_system, path), snapshot)
            replay, deletions, voters = MetadataReplay(content.image), content.deletions, content.voters
        except (CorruptMessageError, UnsupportedVersionError) as error:
            raise KafkaStorageError(f"{path}: {error}") from error
    _take_segments(replay, file_system, list(_segments_from(names, directory, replay.next_offset)))
    try:
        published = replay.publish()
    except CorruptMessageError as error:
        raise KafkaStorageError(f"{directory}: {error}") from error
    if published is not None:
        note_deletions(deletions, published.delta)
    is_unsafe = published is not None and published.delta.is_unsafe_for_kafka
    return LoadedMetadata(replay.image, deletions, replay.next_offset, last_voters(voters, replay.controls), is_unsafe)


def note_deletions(deletions: dict[bytes, str], delta: MetadataDelta) -> None:
    """Add the topics that a delta deletes to the unfinished deletions, and remove those that it calls finished."""
    for topic_id, name in delta.deletions.items():
        if name is None:
            deletions.pop(topic_id, None)
        else:
            deletions[topic_id] = name


def newest_snapshot(names: list[str]) -> SnapshotId | None:
    """Return the newest snapshot among the names in a directory, None if there is none."""
    found = [snapshot for name in names if (snapshot := parse_snapshot_name(name)) is not None]
    return max(found, default=None)


def parse_snapshot_name(name: str) -> SnapshotId | None:
    """Return the id of the snapshot with this file name, None for another file."""
    if len(name) != _SNAPSHOT_NAME_LENGTH or not name.endswith(SNAPSHOT_SUFFIX):
        return None
    offset, _, epoch = name.removesuffix(SNAPSHOT_SUFFIX).partition("-")
    is_number = (offset + epoch).isascii() and offset.isdigit() and epoch.isdigit()
    return SnapshotId(int(offset), int(epoch)) if is_number else None


def read_batches(file_system: FileSystem, path: str) -> Iterator[RecordBatch]:
    """Yield the batches of a segment or snapshot. Raises CorruptMessageError, KafkaStorageError."""
    file = file_system.open_file(path, writable=False)
    try:
        for header, view in iter_batches(file, 0, file.size()):
            if not crc_matches(header, view):
                raise CorruptMessageError(f"wrong checksum in the batch at byte {header.position}")
            yield RecordBatch(view)
    finally:
        file.close()


def _segments_from(names: list[str], directory: str, offset: int) -> Iterator[str]:
    """Yield the paths of the segments that may hold ``offset`` or later offsets."""
    found = (base_offset_of(name) for name in names if name.endswith(".log"))
    bases = sorted(base for base in found if base is not None)
    for base, next_base in itertools.zip_longest(bases, bases[1:]):
        if next_base is None or next_base > offset:
            yield os.path.join(directory, f"{base:020d}.log")


def _take_segments(replay: MetadataReplay, file_system: FileSystem, paths: list[str]) -> None:
    """Replay the batches that were not replayed yet, up to the first damaged one.

    Raises KafkaStorageError.
    """
    for number, path in enumerate(paths):
        file = file_system.open_file(path, writable=False)
        try:
            damage = _take_segment(replay, file)
        except (CorruptMessageError, UnsupportedVersionError) as error:
            raise KafkaStorageError(f"{path}: {error}") from error
        finally:
            file.close()
        if damage is not None:
            for later in paths[number:]:
                _refuse_synced_damage(file_system, later, damage)
            return


class _Damage(NamedTuple):
    """Description of the first damaged batch, and the epoch of the batch before it."""

    text: str
    epoch: int


def _take_segment(replay: MetadataReplay, file: OpenFile) -> _Damage | None:
    """Replay a segment's batches; return the damage at which it stopped, if any. Raises KafkaStorageError, and what
    ``MetadataReplay.take_batch`` raises.
    """
    batches = iter_batches(file, 0, file.size())
    epoch = replay.epoch
    while True:
        try:
            header, view = next(batches, (None, None))
        except CorruptMessageError as error:
            return _Damage(str(error), epoch)
        if header is None or view is None:
            return None
        if not crc_matches(header, view):
            return _Damage(f"wrong checksum in the batch at byte {header.position} of {file.path}", epoch)
        epoch = max(epoch, header.leader_epoch)
        if header.last_offset >= replay.next_offset:
            replay.take_batch(RecordBatch(view))


def _refuse_synced_damage(file_system: FileSystem, path: str, damage: _Damage) -> None:
    """Raise KafkaStorageError if a complete batch of a later epoch follows the damage. A start syncs what it has read
    before it appends in a new epoch, so the damaged batch was synced, and is lost.
    """
    content = file_system.read_file(path)
    data = memoryview(content)
    magic = content.find(b"\x02", MAGIC_OFFSET)
    while magic >= 0:
        header = _header_at(data, magic - MAGIC_OFFSET, path)
        if header is not None and header.leader_epoch > damage.epoch and crc_matches(header, _bytes_of(header, data)):
            raise KafkaStorageError(f"{damage.text}, and good batches follow it")
        magic = content.find(b"\x02", magic + 1)


def _bytes_of(header: BatchHeader, data: memoryview) -> memoryview:
    return data[header.position : header.position + header.size]


def _header_at(data: memoryview, position: int, path: str) -> BatchHeader | None:
    """Return the header of what may be a batch at ``position``."""
    if position + RECORD_BATCH_OVERHEAD > len(data):
        return None
    try:
        header = parse_header(data, position, position, path)
    except CorruptMessageError:
        return None
    return header if position + header.size <= len(data) else None
