"""Replay of the metadata log: images are published between transactions, a snapshot replaces the image, damage is an
error."""

from __future__ import annotations

import pytest

from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.metadata.replay import MetadataReplay, SnapshotId
from tidelog.broker.metadata.snapshot import build_metadata_batch, build_snapshot, read_snapshot
from tidelog.protocol.errors import CorruptMessageError, UnsupportedVersionError
from tidelog.protocol.metadata_records import records
from tidelog.protocol.metadata_records.control_records import BatchStart, LeaderChangeMessage, build_control_batch
from tidelog.protocol.record.record_batch import ATTRIBUTES_OFFSET, BatchOptions, Record, RecordBatch, build_batch
from tidelog.protocol.schema.fields import Message

LEVEL = records.FeatureLevelRecord(name="metadata.version", feature_level=25)


def batch_of(offset: int, *given_records: Message, epoch: int = 3) -> RecordBatch:
    listed = [VersionedRecord(record) for record in given_records]
    return RecordBatch(build_metadata_batch(listed, BatchStart(offset, epoch, 1000 + offset)))


def test_image_says_where_it_ends() -> None:
    replay = MetadataReplay()
    replay.take_batch(batch_of(0, LEVEL, records.NoOpRecord()))
    published = replay.publish()
    assert published is not None
    assert published.image[:4] == (1, 3, 1000, {"metadata.version": 25})
    assert published.delta.features.changed == {"metadata.version": 25}


def test_nothing_new_publishes_nothing() -> None:
    replay = MetadataReplay()
    assert replay.publish() is None
    replay.take_batch(batch_of(0, LEVEL))
    replay.publish()
    assert replay.publish() is None


@pytest.mark.parametrize(("end", "levels"), [
    (records.EndTransactionRecord(), {"metadata.version": 25}),
    (records.AbortTransactionRecord(), {}),
])  # fmt: skip
def test_records_of_a_transaction_count_when_it_is_committed(end: Message, levels: dict[str, int]) -> None:
    replay = MetadataReplay()
    replay.take_batch(batch_of(0, records.NoOpRecord(), records.BeginTransactionRecord(), LEVEL))
    before = replay.publish()
    assert before is not None
    assert (before.image.offset, before.image.features) == (0, {})
    assert replay.publish() is None
    replay.take_batch(batch_of(3, end))
    published = replay.publish()
    assert published is not None
    assert published.image.features == levels
    assert published.image.offset == 3


@pytest.mark.parametrize("published_between", [False, True])
def test_image_before_a_transaction_has_the_time_of_its_own_last_batch(published_between: bool) -> None:
    replay = MetadataReplay()
    replay.take_batch(batch_of(0, LEVEL))
    if published_between:
        replay.publish()
    replay.take_batch(batch_of(1, records.BeginTransactionRecord(), epoch=4))
    replay.publish()
    assert (replay.image.offset, replay.image.epoch, replay.image.timestamp_ms) == (0, 3, 1000)


def test_control_records_are_kept_apart() -> None:
    replay = MetadataReplay()
    change = LeaderChangeMessage(version=1, leader_id=7)
    replay.take_batch(RecordBatch(build_control_batch(change, BatchStart(0, 1, 0))))
    assert [type(control) for control in replay.controls] == [LeaderChangeMessage]
    published = replay.publish()
    assert published is not None
    assert published.image.offset == 0


def test_batch_that_goes_back_is_an_error() -> None:
    replay = MetadataReplay()
    replay.take_batch(batch_of(5, LEVEL))
    with pytest.raises(CorruptMessageError, match="offset 5 came after offset 5"):
        replay.take_batch(batch_of(5, LEVEL))


@pytest.mark.parametrize("value", [b"\x01\x63\x00", b"\x01\x02\x09\x00", b"\x02\x02\x00"])
def test_record_of_a_newer_kafka_is_refused(value: bytes) -> None:
    batch = build_batch([Record(0, 0, None, value)], BatchOptions(partition_leader_epoch=1))
    with pytest.raises(UnsupportedVersionError):
        MetadataReplay().take_batch(RecordBatch(batch))


@pytest.mark.parametrize("value", [b"", b"\x01\x02", b"\x01\x02\x00\xff", b"\x01\x17\x00\x00\x00"])
def test_malformed_record_is_corrupt(value: bytes) -> None:
    batch = build_batch([Record(0, 0, None, value)], BatchOptions(partition_leader_epoch=1))
    with pytest.raises(CorruptMessageError):
        MetadataReplay().take_batch(RecordBatch(batch))


@pytest.mark.parametrize("is_control", [False, True])
def test_a_batch_that_was_written_wrong_raises_only_the_errors_of_replay(is_control: bool) -> None:
    """Its checksum covers the wrong bytes, so nothing has refused it before: counts, codecs and lengths are any."""
    if is_control:
        good = build_control_batch(LeaderChangeMessage(leader_id=1), BatchStart(0, 3, 1000))
    else:
        good = build_metadata_batch([VersionedRecord(LEVEL)] * 2, BatchStart(0, 3, 1000))
    errors = set()
    for position in range(ATTRIBUTES_OFFSET, len(good)):
        for bit in range(8):
            damaged = bytearray(good)
            damaged[position] ^= 1 << bit
            try:
                MetadataReplay().take_batch(RecordBatch(damaged))
            except (CorruptMessageError, UnsupportedVersionError) as error:
                errors.add(type(error))
    assert errors == {CorruptMessageError, UnsupportedVersionError}


def test_log_continues_after_a_snapshot() -> None:
    replay = MetadataReplay()
    replay.take_batch(batch_of(0, LEVEL, records.FeatureLevelRecord(name="share.version", feature_level=1)))
    published = replay.publish()
    assert published is not None
    batches = [RecordBatch(batch) for batch in build_snapshot(published.image, now_ms=9)]
    content = read_snapshot(batches, SnapshotId(2, 3))
    assert content.image == published.image
    follower = MetadataReplay(content.image)
    assert follower.next_offset == 2
    follower.take_batch(batch_of(2, records.FeatureLevelRecord(name="share.version", feature_level=0)))
    follower_published = follower.publish()
    assert follower_published is not None
    assert follower_published.image.features == {"metadata.version": 25}


def test_every_snapshot_that_was_cut_short_is_refused() -> None:
    replay = MetadataReplay()
    replay.take_batch(batch_of(0, LEVEL))
    published = replay.publish()
    assert published is not None
    batches = [RecordBatch(batch) for batch in build_snapshot(published.image, now_ms=9)]
    assert len(batches) == 3
    for count in range(len(batches)):
        with pytest.raises(CorruptMessageError, match="has no"):
            read_snapshot(batches[:count], SnapshotId(1, 3))


def test_snapshot_is_named_as_kafka_names_it() -> None:
    assert SnapshotId(274, 3).file_name() == "00000000000000000274-0000000003.checkpoint"
