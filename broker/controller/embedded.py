"""Controller of a node that is its own cluster: changes become records of the metadata log, and the records make up the
image.

    commit         records -> replayed onto the image -> appended in one batch (over 10,000: in one transaction)
                   -> publishers called, in their order
    when_synced    one fdatasync in a thread for all that was committed before it; clients are answered only then

``MetadataDelta.replay`` alone says what a record changes, for a commit as for a start and for a member of a cluster.
What was committed and not synced may be lost when the power fails; the client that asked for it has no answer by then.
Loop thread only, except ``sync`` and ``take_snapshot``.

Source: QuorumController of Kafka 4.3, KIP-631.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping

from tidelog.broker.controller.metadata_controller import ForwardedVersions, Publishers
from tidelog.broker.loop.deferred import Deferred
from tidelog.broker.loop.group_sync import GroupSync
from tidelog.broker.loop.threads import NO_LOOP, Threads
from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.image_records import METADATA_VERSION, VersionedRecord
from tidelog.broker.metadata.log_reader import LoadedMetadata, note_deletions, read_metadata_log
from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE
from tidelog.broker.metadata.metadata_log import MetadataLocation, MetadataLog, open_metadata_log
from tidelog.log.system.file_system import LogStorageError
from tidelog.log.system.reserve import write_if_room
from tidelog.log.system.time import Time
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.metadata_records.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    DeletedTopic,
    EndTransactionRecord,
    NoOpRecord,
)

logger = logging.getLogger(__name__)

RECORDS_PER_BATCH = 10_000
"""Largest number of records in a batch, as in Kafka's controller; more are appended as a transaction of several
batches.
"""
SNAPSHOT_BYTES = 20 * 1024 * 1024
"""Bytes of the log after which a snapshot is taken: Kafka's ``metadata.log.max.record.bytes.between.snapshots``."""
CLOSING_SNAPSHOT_BYTES = 256 * 1024
"""Largest log, in bytes since the last snapshot, that a clean stop leaves for the next start to read."""
ABORT = VersionedRecord(AbortTransactionRecord())


class EmbeddedController:
    """Controller that commits records to the local metadata log and keeps their image."""

    __slots__ = (
        "_deletions", "_failure", "_is_in_transaction", "_log", "_synced_end", "_syncs", "_time", "_voters",
        "_wants_snapshot", "image", "node_id", "publishers",
    )  # fmt: skip

    def __init__(
        self, log: MetadataLog, loaded: LoadedMetadata, time: Time, node_id: int, threads: Threads = NO_LOOP
    ) -> None:
        self.node_id = node_id
        self._log = log
        self._time = time
        self.publishers = Publishers()
        self._failure: KafkaStorageError | None = None
        self._syncs = GroupSync(self.sync, lambda: self._synced_end >= log.end_offset, threads)
        self._synced_end = -1
        """End of the log at the last sync."""
        self._deletions = loaded.deletions
        self._wants_snapshot = loaded.is_unsafe_for_kafka
        self._voters = loaded.voters
        self._is_in_transaction = loaded.is_in_transaction
        self.image = loaded.image
        """The image of all committed records, immutable; any thread may read it."""

    @property
    def epoch(self) -> int:
        """Epoch of the quorum that this node leads."""
        return self._log.epoch

    @property
    def end_offset(self) -> int:
        """Offset that the next record gets."""
        return self._log.end_offset

    @property
    def level(self) -> int:
        """Level of metadata.version in force: it says which versions the records have."""
        return self.image.features[METADATA_VERSION]

    @property
    def deletions(self) -> Mapping[bytes, str]:
        """Ids and names of deleted topics whose logs may still be there."""
        return self._deletions

    def forwarded_versions(self) -> ForwardedVersions:
        """Return no API: nothing is forwarded."""
        return {}

    def commit(self, records: Iterable[VersionedRecord]) -> None:
        """Commit records, all or none of them; they are durable once ``when_synced`` or ``sync`` says so.

        Raises KafkaStorageError, CorruptMessageError for records that contradict the image, MessageTooLargeError for a
        batch above ``metadata_log.MAX_RECORD_BYTES``. Nothing has changed then.
        """
        listed = list(records)
        if not listed:
            return
        self._refuse_after_failure()
        delta = MetadataDelta(self.image)
        for record, _ in listed:
            delta.replay(record)
        now = self._time.milliseconds()
        self.abort_transaction(now)
        last_offset = self._log.end_offset + len(listed) - 1 + (2 if len(listed) > RECORDS_PER_BATCH else 0)
        image = delta.build(last_offset, self.epoch, now)  # raises for contradictions, before anything is appended
        self._append(listed, now)
        note_deletions(self._deletions, delta)  # first: a snapshot of the image without the topic names its deletion
        self.image = image
        self._wants_snapshot |= delta.is_unsafe_for_kafka
        self.publishers.publish(delta, self.image)

    def when_synced(self) -> Deferred[None]:
        """Return a Deferred that settles once everything committed before the call is durable; it fails if a sync
        fails.
        """
        return self._syncs.when_synced()

    def _append(self, listed: list[VersionedRecord], now: int) -> None:
        if len(listed) <= RECORDS_PER_BATCH:
            self._log.append(listed, now)
            return
        self._log.append([VersionedRecord(BeginTransactionRecord())], now)
        self._is_in_transaction = True
        try:
            for start in range(0, len(listed), RECORDS_PER_BATCH):
                self._log.append(listed[start : start + RECORDS_PER_BATCH], now)
            self._log.append([VersionedRecord(EndTransactionRecord())], now)
            self._is_in_transaction = False
        except BaseException:
            with contextlib.suppress(KafkaStorageError):  # the next commit tries again
                self.abort_transaction(now)
            raise

    def abort_transaction(self, now_ms: int) -> None:
        """Abort a transaction that was left open: later commits would belong to it and never take effect.

        Raises KafkaStorageError.
        """
        if self._is_in_transaction:
            self._log.append([ABORT], now_ms)
            self._is_in_transaction = False

    def sync(self) -> None:
        """Make everything that was committed before the call durable. Any thread, but not the loop's while it serves.

        Raises KafkaStorageError.
        """
        self._refuse_after_failure()
        end = self._log.end_offset
        try:
            self._log.sync()
            self._synced_end = end  # another thread may have synced further: then the next sync is superfluous
        except KafkaStorageError as error:
            if isinstance(error, LogStorageError) and error.is_recoverable:
                raise  # nothing is lost: the next sync may find room, or descriptors
            self._failure = error
            self._refuse_after_failure()

    def _refuse_after_failure(self) -> None:
        """Raise KafkaStorageError after a failure of the metadata log. Any thread."""
        if self._failure is not None:
            raise KafkaStorageError(f"the metadata log accepts no records until a restart: {self._failure}")

    def take_snapshot(self, min_bytes: int = SNAPSHOT_BYTES) -> bool:
        """Write a snapshot and delete the log before it, unless the log has grown by less than ``min_bytes`` since
        the last one, or has failed. Return whether one was written.

        For a log that Kafka may not replay (``MetadataDelta.is_unsafe_for_kafka``) there is no such limit. Any thread,
        one at a time. Raises KafkaStorageError.
        """
        is_short = self._log.bytes_since_snapshot < min_bytes and not self._wants_snapshot
        if self._failure is not None or is_short:
            return False
        wanted, self._wants_snapshot = self._wants_snapshot, False  # reset first: a change meanwhile may set it again
        try:
            self._write_snapshot()
        except BaseException:
            self._wants_snapshot |= wanted
            raise
        return True

    def _write_snapshot(self) -> None:
        """Write a snapshot of all that is committed, and delete the log before it. Any thread."""
        image = self.image  # read before the deletions: the record of one that begins now follows the snapshot
        unfinished = self._deletion_records()
        self._log.sync()
        self._log.cut_below(self._log.write_snapshot(image, self._time.milliseconds(), unfinished, self._voters))

    def _deletion_records(self) -> list[VersionedRecord]:
        """Return a record with the unfinished deletions, if there are any. Any thread."""
        if not self._deletions:
            return []
        deleted = [DeletedTopic(name=name, topic_id=topic_id) for topic_id, name in list(self._deletions.items())]
        return [VersionedRecord(NoOpRecord(unfinished_deletions=deleted))]

    def close(self) -> None:
        """Sync and close the log, with a snapshot where the next start would have much to read. Raises
        KafkaStorageError if the sync fails.
        """
        try:
            self.take_snapshot(CLOSING_SNAPSHOT_BYTES)
        except KafkaStorageError as error:
            logger.warning("no snapshot of the metadata was taken: %s", error)
        finally:
            self._log.close()


def open_controller(
    location: MetadataLocation,
    node_id: int,
    time: Time,
    loaded: LoadedMetadata | None = None,
    threads: Threads = NO_LOOP,
) -> EmbeddedController:
    """Open or create the metadata log with this node as its leader, and read its content.

    ``loaded`` is the log's content as read a moment ago; the log is read again if its end has moved since. A
    transaction that a kill left open is aborted, on a full disk with the first commit that finds room. Raises
    KafkaStorageError.
    """
    log = open_metadata_log(location, node_id)
    if loaded is None or loaded.end_offset != log.end_offset:
        loaded = read_metadata_log(location.environment.file_system, location.path)
    now_ms = time.milliseconds()
    log.append_leader_change(node_id, now_ms)
    image = loaded.image if loaded.image.offset >= 0 else EMPTY_IMAGE
    controller = EmbeddedController(log, loaded._replace(image=image), time, node_id, threads)
    write_if_room(
        lambda: controller.abort_transaction(now_ms), "an interrupted metadata change is aborted with the next one"
    )
    return controller
