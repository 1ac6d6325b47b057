"""Replay of the metadata log: batches in, images out, records of an open transaction held back (KIP-868).

Batches come in the order of their offsets, of a snapshot or of the log after it. A snapshot's records make the image at
the snapshot's end offset, whatever offsets its own batches have. Not thread-safe; sans-io.

Source: MetadataBatchLoader and MetadataLoader of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidelog.broker.metadata.delta import MetadataDelta
from tidelog.broker.metadata.metadata_image import EMPTY_IMAGE, MetadataImage
from tidelog.log.records.engine import record_values
from tidelog.protocol.errors import (
    CorruptMessageError,
    InvalidRecordError,
    MessageTooLargeError,
    UnsupportedCompressionTypeError,
)
from tidelog.protocol.metadata_records.control_records import ControlMessage, decode_control_record
from tidelog.protocol.metadata_records.frames import decode_metadata_record
from tidelog.protocol.metadata_records.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)
from tidelog.protocol.record.record_batch import RecordBatch
from tidelog.protocol.schema.fields import Message

MAX_BATCH_BYTES = 64 * 1024 * 1024
"""Largest decompressed size of a batch of the metadata log, in bytes."""


class SnapshotId(NamedTuple):
    """Snapshot of the metadata before ``end_offset``; the last record of this metadata was appended in ``epoch``."""

    end_offset: int
    epoch: int

    def file_name(self) -> str:
        """Return the name of the snapshot's file."""
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"


class LogPosition(NamedTuple):
    """Offset of a record of the metadata log, the epoch it was appended in, and its batch's time (ms)."""

    offset: int
    epoch: int
    timestamp_ms: int


class PublishedImage(NamedTuple):
    """A new image and what changed since the one before."""

    delta: MetadataDelta
    image: MetadataImage


class MetadataReplay:
    """The state of a replay: the newest image, changes not yet published, records of an open transaction."""

    __slots__ = ("_delta", "_end", "_held", "_publishable", "controls", "image")

    def __init__(self, image: MetadataImage = EMPTY_IMAGE) -> None:
        self.image = image
        self.controls: list[ControlMessage] = []
        """Control records in the order they came: leaders, voters, protocol versions, begin and end of a snapshot."""
        self._delta = MetadataDelta(image)
        self._end = self._publishable = LogPosition(image.offset, image.epoch, image.timestamp_ms)
        """``_publishable`` is the end of the batches, or the last record before an open transaction."""
        self._held: list[Message] | None = None

    @property
    def next_offset(self) -> int:
        """Offset of the record after the last batch that was taken."""
        return self._end.offset + 1

    @property
    def epoch(self) -> int:
        """Epoch of the last batch that was taken."""
        return self._end.epoch

    def take_batch(self, batch: RecordBatch) -> None:
        """Replay the records of one batch, whose checksum the caller has verified.

        Raises CorruptMessageError (malformed, contradictory, or out of order), UnsupportedVersionError (records of a
        newer Kafka).
        """
        if batch.base_offset < self.next_offset:
            raise CorruptMessageError(f"a batch at offset {batch.base_offset} came after offset {self._end.offset}")
        self._take_records(batch)
        self._end = LogPosition(batch.last_offset, batch.partition_leader_epoch, batch.max_timestamp)
        if self._held is None:
            self._publishable = self._end

    def take_snapshot(self, batches: Iterable[RecordBatch], snapshot: SnapshotId, timestamp_ms: int) -> None:
        """Begin again with the records of a snapshot; the next delta is one of the empty image.

        Raises what ``take_batch`` raises.
        """
        self._delta = MetadataDelta(EMPTY_IMAGE)
        self._held = None
        self.controls.clear()
        for batch in batches:
            self._take_records(batch)
        self._end = self._publishable = LogPosition(snapshot.end_offset - 1, snapshot.epoch, timestamp_ms)

    def publish(self) -> PublishedImage | None:
        """Return the image after all batches that were taken, without the records of an open transaction, and what
        changed since the last call. None if there is nothing new. Raises what ``MetadataDelta.build`` raises.
        """
        if self._publishable.offset == self.image.offset:
            return None
        published = PublishedImage(self._delta, self._delta.build(*self._publishable))
        self.image = published.image
        self._delta = MetadataDelta(self.image)
        return published

    def _take_records(self, batch: RecordBatch) -> None:
        try:
            if batch.is_control:
                messages = map(decode_control_record, batch.records(MAX_BATCH_BYTES))
                self.controls.extend(message for message in messages if message is not None)
                return
            for offset, value in record_values(batch, MAX_BATCH_BYTES):
                if value is not None:
                    self._take_record(decode_metadata_record(value), batch, offset)
        except (InvalidRecordError, MessageTooLargeError, UnsupportedCompressionTypeError) as error:
            raise CorruptMessageError(f"the batch at offset {batch.base_offset} cannot be read: {error}") from error

    def _take_record(self, record: Message, batch: RecordBatch, offset: int) -> None:
        """Apply a record, or hold it back while a transaction is open."""
        if isinstance(record, BeginTransactionRecord):
            self._held = []
            if offset == batch.base_offset:
                self._publishable = self._end
            else:
                self._publishable = LogPosition(offset - 1, batch.partition_leader_epoch, batch.max_timestamp)
        elif isinstance(record, EndTransactionRecord | AbortTransactionRecord):
            held, self._held = self._held or [], None
            if isinstance(record, EndTransactionRecord):
                for one in held:
                    self._delta.replay(one)
        elif self._held is not None:
            self._held.append(record)
        else:
            self._delta.replay(record)
