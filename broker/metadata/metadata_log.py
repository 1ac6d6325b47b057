"""The log ``__cluster_metadata-0`` of a quorum of one: appended by the loop thread, synced by any thread.

    quorum-state                      this node as leader, and an epoch that grows at each start
    <base offset>.log ...             a ``UnifiedLog``; each start appends a control record of the new leader first
    <end offset>-<epoch>.checkpoint   snapshots; the newest one and the log after it give the image

A record counts once it is synced. A power loss may lose what was appended and not synced; no client has got an answer
about it by then. After a failed sync the content of the disk is unknown, so the log accepts no more records. On a full
disk the directory's reserve (``tidelog.log.system.reserve``) is given up first. A sync that failed before it began, for
want of disk space, descriptors or permission, is tried again.

Source: KafkaMetadataLog and KafkaRaftClient of Kafka 4.3, KIP-595, KIP-630.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from typing import NamedTuple

from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.metadata.log_reader import newest_snapshot, parse_snapshot_name
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.broker.metadata.quorum_state import (
    STATIC_VOTERS,
    QuorumState,
    QuorumVoters,
    read_quorum_state,
    write_quorum_state,
)
from tidelog.broker.metadata.replay import SnapshotId
from tidelog.broker.metadata.snapshot import build_metadata_batch, build_snapshot
from tidelog.log.config import LogConfig
from tidelog.log.directories.names import METADATA_DIRECTORY
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.recovery.loader import LoadRequest, load_log
from tidelog.log.retention import StartOffsetReason
from tidelog.log.system.file_system import LogStorageError
from tidelog.log.system.reserve import lacks_room, write_if_room
from tidelog.log.unified_log import UnifiedLog
from tidelog.log.validation.params import AppendOrigin
from tidelog.protocol.metadata_records.control_records import (
    BatchStart,
    LeaderChangeMessage,
    QuorumVoter,
    build_control_batch,
)
from tidelog.protocol.types import METADATA_TOPIC_ID

logger = logging.getLogger(__name__)

METADATA_PARTITION = TopicPartition("__cluster_metadata", 0)
MAX_RECORD_BYTES = 8 * 1024 * 1024
"""Largest batch in bytes, as in Kafka."""
_UNFINISHED_SUFFIX = ".part"


class MetadataLocation(NamedTuple):
    """Location of the log: the first log directory, its state, and the environment through which files are written."""

    log_directory: str
    state: DirectoryState
    environment: LogEnvironment
    name: str = METADATA_DIRECTORY

    @property
    def path(self) -> str:
        """The directory of the metadata log."""
        return os.path.join(self.log_directory, self.name)


class MetadataLog:
    """The metadata log of this node, which is the only voter and its leader. Loop thread only, except ``sync`` and the
    methods for snapshots.
    """

    __slots__ = ("_location", "_log", "epoch", "snapshot")

    def __init__(self, location: MetadataLocation, log: UnifiedLog, epoch: int) -> None:
        self._location = location
        self._log = log
        self.epoch = epoch
        """Epoch of the quorum in which this node leads."""
        self.snapshot = newest_snapshot(location.environment.file_system.list_names(location.path))

    @property
    def end_offset(self) -> int:
        """Offset that the next record gets. Any thread."""
        return self._log.log_end_offset

    @property
    def bytes_since_snapshot(self) -> int:
        """Size of the segments in bytes: a snapshot deletes the segments before its end. Any thread."""
        return self._log.size_bytes

    def append(self, records: Iterable[VersionedRecord], now_ms: int) -> int:
        """Append records as one batch, without syncing; return the offset of the last record.

        Raises KafkaStorageError, MessageTooLargeError above MAX_RECORD_BYTES, and what ``build_metadata_batch`` raises.
        Nothing was appended then.
        """
        return self._append(build_metadata_batch(records, self._next_batch_start(now_ms)))

    def append_leader_change(self, node_id: int, now_ms: int) -> None:
        """Append the control record of a new leader epoch, unless this node continues its last epoch or the disk is
        full. Raises KafkaStorageError.
        """
        if self._log.leader_epochs.latest_epoch == self.epoch:
            return
        voter = QuorumVoter(voter_id=node_id)
        # Version 0 always: no Kafka up to 4.3 reads 1, which would name the voters' directories.
        message = LeaderChangeMessage(leader_id=node_id, voters=[voter], granting_voters=[voter])
        batch = build_control_batch(message, self._next_batch_start(now_ms))
        write_if_room(lambda: self._append_now(batch), "the record of the new leader is not written")

    def _next_batch_start(self, now_ms: int) -> BatchStart:
        return BatchStart(self.end_offset, self.epoch, now_ms)

    def _append(self, batch: bytearray) -> int:
        return self._location.state.with_reserve(lambda: self._append_now(batch))

    def _append_now(self, batch: bytearray) -> int:
        return self._log.append_as_leader(memoryview(batch), self.epoch, AppendOrigin.COORDINATOR).last_offset

    def sync(self) -> None:
        """Make everything that was appended before the call durable. Any thread. Raises KafkaStorageError."""
        self._location.state.with_reserve(self._log.flush)

    def write_snapshot(
        self,
        image: MetadataImage,
        now_ms: int,
        deletions: Iterable[VersionedRecord] = (),
        voters: QuorumVoters = STATIC_VOTERS,
    ) -> SnapshotId:
        """Write the snapshot of an image whose records are synced. Any thread, one at a time. ``deletions``
        are those of ``build_snapshot``.

        Raises KafkaStorageError, and what ``build_snapshot`` raises. The file gets its name when it is complete and
        synced.
        """
        file_system = self._location.environment.file_system
        snapshot = SnapshotId(image.offset + 1, image.epoch)
        path = os.path.join(self._location.path, snapshot.file_name())
        file = file_system.open_file(path + _UNFINISHED_SUFFIX, create=True)
        try:
            file.truncate(0)
            position = 0
            for batch in build_snapshot(image, now_ms, deletions, voters):
                file.write_at(batch, position)
                position += len(batch)
            file.sync()
        finally:
            file.close()
        file_system.rename(path + _UNFINISHED_SUFFIX, path)
        file_system.sync_directory(self._location.path)
        return snapshot

    def cut_below(self, snapshot: SnapshotId) -> None:
        """Delete the segments before a snapshot's end, and older snapshots. Any thread. Raises KafkaStorageError."""
        self.snapshot = snapshot
        self._log.update_high_watermark(self.end_offset)
        self._log.roll()
        self._log.maybe_increment_log_start_offset(snapshot.end_offset, StartOffsetReason.SNAPSHOT)
        self._log.delete_old_segments(self._location.environment.time.milliseconds())
        file_system = self._location.environment.file_system
        for name in file_system.list_names(self._location.path):
            found = parse_snapshot_name(name)
            if found is not None and found < snapshot:
                file_system.unlink(os.path.join(self._location.path, name), missing_ok=True)

    def close(self) -> None:
        """Sync and close the log."""
        self.sync()
        self._log.close()


def open_metadata_log(location: MetadataLocation, node_id: int) -> MetadataLog:
    """Open or create the log, with this node as leader of a new epoch.

    The epoch is written to ``quorum-state`` and synced before a record carries it. Raises KafkaStorageError, and
    InconsistentTopicIdError if ``partition.metadata`` has another id.
    """
    file_system = location.environment.file_system
    file_system.make_directory(location.path)
    with contextlib.suppress(OSError):  # holds SCRAM keys: only for the owner
        os.chmod(location.path, 0o700)
    for name in file_system.list_names(location.path):
        if name.endswith(_UNFINISHED_SUFFIX):
            file_system.unlink(os.path.join(location.path, name), missing_ok=True)
    snapshot = newest_snapshot(file_system.list_names(location.path))
    log = load_log(_load_request(location, 0 if snapshot is None else snapshot.end_offset))
    # From here on, the broker uses content that a killed process may have left only in the page cache.
    write_if_room(log.flush, "the metadata log is synced later")
    return MetadataLog(
        location,
        log,
        begin_epoch(location, node_id, max(log.leader_epochs.latest_epoch, snapshot.epoch if snapshot else 0)),
    )


def begin_epoch(location: MetadataLocation, node_id: int, latest: int) -> int:
    """Write a new epoch with this node as leader to ``quorum-state``, later than ``latest`` and the one written last;
    return it.

    On a full disk this node continues its last epoch, so that the start succeeds. Raises KafkaStorageError.
    """
    file_system = location.environment.file_system
    state = read_quorum_state(file_system, location.path)
    last = max(latest, state.leader_epoch if state else 0)
    try:
        version = state.version if state else 0
        write_quorum_state(file_system, location.path, QuorumState(node_id, last + 1, (node_id,), version=version))
    except LogStorageError as error:
        if not lacks_room(error) or not last:
            raise
        logger.warning("the metadata log continues its last epoch, as a new one cannot be written: %s", error)
        return last
    return last + 1


def _load_request(location: MetadataLocation, start_offset: int) -> LoadRequest:
    config = LogConfig(
        {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete",
         "max.message.bytes": str(MAX_RECORD_BYTES), "file.delete.delay.ms": "0"}
    )  # fmt: skip
    # A state of its own: on a full disk, where other appends are refused, the records of deletions are appended.
    state = DirectoryState(location.log_directory)
    return LoadRequest(
        METADATA_PARTITION, location.path, config, location.environment, state, topic_id=METADATA_TOPIC_ID,
        log_start_offset=start_offset,
    )  # fmt: skip
