"""Snapshots of ``__cluster_metadata``: batches of records that build an image, between a header and a footer.

A file ``<end offset>-<epoch>.checkpoint`` holds batches like a segment's: a control batch with the header, batches of
records, a control batch with the footer. Their offsets begin at 0 in each file. A file without a footer is incomplete:
its writer was stopped. Sans-io: bytes in, bytes out. Source: RecordsSnapshotWriter and RecordsSnapshotReader of Kafka
4.3, KIP-630; KIP-853 for the protocol version and the voters in the header's batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidelog.broker.metadata.image_records import VersionedRecord, records_of_image
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.broker.metadata.quorum_state import STATIC_VOTERS, QuorumVoters, last_voters
from tidelog.broker.metadata.replay import MetadataReplay, SnapshotId
from tidelog.protocol.errors import CorruptMessageError
from tidelog.protocol.metadata_records.control_records import (
    BatchStart,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    build_control_batch,
    decode_control_record,
)
from tidelog.protocol.metadata_records.frames import encode_metadata_record
from tidelog.protocol.record.record_batch import BatchOptions, Record, RecordBatch, build_batch

RECORDS_PER_BATCH = 1024
"""Largest number of records in one batch of a snapshot; such a batch takes a few milliseconds to build."""


class SnapshotContent(NamedTuple):
    """Content of a snapshot: its image, unfinished deletions (topic id -> name), voters."""

    image: MetadataImage
    deletions: dict[bytes, str]
    voters: QuorumVoters = STATIC_VOTERS


def build_snapshot(
    image: MetadataImage, now_ms: int, deletions: Iterable[VersionedRecord] = (), voters: QuorumVoters = STATIC_VOTERS
) -> Iterator[bytearray]:
    """Yield the batches of a snapshot of ``image``; each is built when it is asked for.

    ``deletions`` are the records of topics whose deletion is not finished: no image has these topics. Raises what
    ``build_metadata_batch`` raises.
    """
    header = SnapshotHeaderRecord(last_contained_log_timestamp=image.timestamp_ms)
    quorum = list(voters.records())
    yield build_control_batch(header, BatchStart(0, image.epoch, now_ms), quorum)
    offset = 1 + len(quorum)
    held: list[VersionedRecord] = []
    for record in itertools.chain(records_of_image(image), deletions):
        held.append(record)
        if len(held) == RECORDS_PER_BATCH:
            yield build_metadata_batch(held, BatchStart(offset, image.epoch, now_ms))
            offset += len(held)
            held.clear()
    if held:
        yield build_metadata_batch(held, BatchStart(offset, image.epoch, now_ms))
        offset += len(held)
    yield build_control_batch(SnapshotFooterRecord(), BatchStart(offset, image.epoch, now_ms))


def build_metadata_batch(listed: Iterable[VersionedRecord], at: BatchStart) -> bytearray:
    """Return one batch of metadata records. Raises EncodeError, UnsupportedVersionError."""
    batch = [
        Record(at.base_offset + index, at.timestamp_ms, None, encode_metadata_record(record, version))
        for index, (record, version) in enumerate(listed)
    ]
    return build_batch(batch, BatchOptions(partition_leader_epoch=at.epoch))


def read_snapshot(batches: Iterable[RecordBatch], snapshot: SnapshotId) -> SnapshotContent:
    """Return the content of a snapshot; the caller has verified the checksums of its batches.

    Raises CorruptMessageError (no header, no footer, malformed or contradictory records), UnsupportedVersionError
    (records of a newer Kafka).
    """
    listed = list(batches)
    header = _first_control(listed[:1])
    if not isinstance(header, SnapshotHeaderRecord):
        raise CorruptMessageError(f"the snapshot {snapshot.file_name()} has no header")
    if not isinstance(_first_control(listed[-1:]), SnapshotFooterRecord):
        raise CorruptMessageError(f"the snapshot {snapshot.file_name()} has no footer: it is incomplete")
    replay = MetadataReplay()
    replay.take_snapshot(listed, snapshot, header.last_contained_log_timestamp)
    published = replay.publish()
    voters = last_voters(STATIC_VOTERS, replay.controls)
    if published is None:
        return SnapshotContent(replay.image, {}, voters)
    deletions = {topic_id: name for topic_id, name in published.delta.deletions.items() if name is not None}
    return SnapshotContent(published.image, deletions, voters)


def _first_control(batches: list[RecordBatch]) -> object:
    """Return the first message of a control batch, or None."""
    for batch in batches:
        if batch.is_control:
            return next((decode_control_record(record) for record in batch.records()), None)
    return None
