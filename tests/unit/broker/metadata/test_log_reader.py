"""The metadata log of a KRaft cluster, read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kafka_directories import KafkaDirectory
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.metadata.log_reader import METADATA_DIRECTORY, read_metadata_image, read_metadata_log
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.broker.metadata.snapshot import build_metadata_batch
from tidelog.log.system.file_system import OsFileSystem
from tidelog.protocol.errors import KafkaStorageError
from tidelog.protocol.metadata_records.control_records import BatchStart
from tidelog.protocol.metadata_records.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ClientQuotaRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntityData,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from tidelog.protocol.schema.fields import Message

ID = bytes(range(16))


def read(tmp_path: Path, *records: Message, snapshot_at: int | None = None) -> MetadataImage:
    source = KafkaDirectory(tmp_path / "kafka")
    source.add_metadata([(record, 0) for record in records], snapshot_at=snapshot_at)
    return read_metadata_image(OsFileSystem(), str(source.path / METADATA_DIRECTORY))


def topic(name: str = "orders") -> TopicRecord:
    return TopicRecord(name=name, topic_id=ID)


def config(value: str | None, name: str = "retention.ms") -> ConfigRecord:
    return ConfigRecord(resource_type=2, resource_name="orders", name=name, value=value)


@pytest.mark.parametrize("snapshot_at", [None, 1, 2, 3])
def test_topics_and_configs_are_read_from_snapshot_and_log(tmp_path: Path, snapshot_at: int | None) -> None:
    found = read(
        tmp_path, topic(), PartitionRecord(partition_id=0, topic_id=ID, leader_epoch=3), config("5"),
        PartitionChangeRecord(partition_id=0, topic_id=ID, leader=1), config("6"), config("1", "segment.ms"),
        config(None, "segment.ms"), FeatureLevelRecord(name="metadata.version", feature_level=25),
        ProducerIdsRecord(next_producer_id=2000),
        snapshot_at=snapshot_at,
    )  # fmt: skip
    known = found.topic_by_name("orders")
    assert known is not None
    assert (known.topic_id, [state.leader_epoch for state in known.partitions]) == (ID, [4])
    assert found.configs == {(2, "orders"): {"retention.ms": "6"}}
    assert (found.features, found.producer_ids) == ({"metadata.version": 25}, 2000)


@pytest.mark.parametrize("snapshot_at", [None, 2])
def test_partition_numbers_with_a_gap_are_an_error_of_storage(tmp_path: Path, snapshot_at: int | None) -> None:
    with pytest.raises(KafkaStorageError, match="kafka"):
        read(tmp_path, topic(), PartitionRecord(partition_id=1, topic_id=ID, replicas=[1], isr=[1], leader=1),
             snapshot_at=snapshot_at)  # fmt: skip


def test_a_deleted_topic_is_gone(tmp_path: Path) -> None:
    found = read(tmp_path, topic(), config("5"), RemoveTopicRecord(topic_id=ID))
    assert (found.topics, found.configs) == ({}, {})


def test_an_aborted_metadata_transaction_never_was(tmp_path: Path) -> None:
    found = read(
        tmp_path, BeginTransactionRecord(), topic("aborted"), AbortTransactionRecord(),
        BeginTransactionRecord(), topic("committed"), EndTransactionRecord(),
        BeginTransactionRecord(), config("5"),
    )  # fmt: skip
    assert [known.name for known in found.topics.values()] == ["committed"]
    assert found.configs == {}


def test_credentials_and_quotas_can_be_removed(tmp_path: Path) -> None:
    entity = [QuotaEntityData(entity_type="user", entity_name=None)]
    found = read(
        tmp_path,
        UserScramCredentialRecord(name="ann", mechanism=2), UserScramCredentialRecord(name="bob", mechanism=1),
        RemoveUserScramCredentialRecord(name="ann", mechanism=2),
        ClientQuotaRecord(entity=entity, key="a", value=1.0), ClientQuotaRecord(entity=entity, key="b", value=2.0),
        ClientQuotaRecord(entity=entity, key="a", remove=True),
    )  # fmt: skip
    assert list(found.scram) == [("bob", 1)]
    assert found.quotas == {(("user", None),): {"b": 2.0}}


def test_record_of_a_newer_kafka_is_reported(tmp_path: Path) -> None:
    class RecordOfTomorrow(Message, api_key=99, versions="0", flexible="0+"):
        """No fields."""

    with pytest.raises(KafkaStorageError, match="newer than this release"):
        read(tmp_path, RecordOfTomorrow())


def test_snapshot_that_is_not_whole_is_reported(tmp_path: Path) -> None:
    source = KafkaDirectory(tmp_path / "kafka")
    source.add_metadata([(topic(), 0)], snapshot_at=1)
    path = next((source.path / METADATA_DIRECTORY).glob("*.checkpoint"))
    path.write_bytes(path.read_bytes()[:-80])
    with pytest.raises(KafkaStorageError, match="has no footer"):
        read_metadata_image(OsFileSystem(), str(source.path / METADATA_DIRECTORY))


LAST = [(topic(), 0), (config("5"), 0), (config("6"), 0), (config("7"), 0)]


def damaged(tmp_path: Path, position: int) -> MetadataImage:
    """Read the image of a log of two batches with one flipped bit; a negative position counts from its end."""
    source = KafkaDirectory(tmp_path / "kafka")
    source.add_metadata(LAST)
    path = source.path / METADATA_DIRECTORY / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    return read_metadata_image(OsFileSystem(), str(source.path / METADATA_DIRECTORY))


def test_a_torn_tail_was_not_acknowledged(tmp_path: Path) -> None:
    assert damaged(tmp_path, -1).configs == {(2, "orders"): {"retention.ms": "5"}}


@pytest.mark.parametrize("tail", [bytes(1), bytes(100), b"\x01" * 100, bytes(5000)])
def test_whatever_follows_the_last_whole_batch_is_not_read(tmp_path: Path, tail: bytes) -> None:
    source = KafkaDirectory(tmp_path / "kafka")
    source.add_metadata(LAST)
    path = source.path / METADATA_DIRECTORY / f"{0:020d}.log"
    path.write_bytes(path.read_bytes() + tail)
    image = read_metadata_image(OsFileSystem(), str(source.path / METADATA_DIRECTORY))
    assert image.configs == {(2, "orders"): {"retention.ms": "7"}}


@pytest.mark.parametrize("later_epoch", [1, 2])
def test_damage_before_a_later_start_is_an_error_and_a_torn_end_is_not_read(tmp_path: Path, later_epoch: int) -> None:
    source = KafkaDirectory(tmp_path / "kafka")
    source.add_metadata([(topic(), 0), (config("5"), 0), (config("6"), 0)])
    path = source.path / METADATA_DIRECTORY / f"{0:020d}.log"
    later = build_metadata_batch([VersionedRecord(config("7"))], BatchStart(3, later_epoch, 0))
    data = bytearray(path.read_bytes() + later)
    data[-len(later) - 1] ^= 1
    path.write_bytes(data)
    if later_epoch > 1:
        with pytest.raises(KafkaStorageError, match="wrong checksum"):
            read_metadata_log(OsFileSystem(), str(path.parent))
    else:
        loaded = read_metadata_log(OsFileSystem(), str(path.parent))
        assert (loaded.end_offset, loaded.image.configs) == (2, {(2, "orders"): {"retention.ms": "5"}})
