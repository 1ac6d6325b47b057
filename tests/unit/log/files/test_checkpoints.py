"""Checkpoint files: Kafka's bytes, and errors for damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.log.files.checkpoints import (
    CheckpointCorruptError,
    MetaProperties,
    read_clean_shutdown_epoch,
    read_leader_epochs,
    read_meta_properties,
    read_offset_checkpoint,
    read_partition_metadata,
    take_clean_shutdown,
    write_clean_shutdown,
    write_meta_properties,
    write_offset_checkpoint,
    write_partition_metadata,
)
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import OsFileSystem
from tidelog.protocol.errors import KafkaStorageError

FILES = OsFileSystem()
TOPIC_ID = bytes(range(16))


def test_offset_checkpoint_has_kafkas_bytes(tmp_path: Path) -> None:
    path = str(tmp_path / "recovery-point-offset-checkpoint")
    offsets = {TopicPartition("a", 0): 42, TopicPartition("b-c", 13): 0}
    write_offset_checkpoint(FILES, path, offsets)
    assert Path(path).read_bytes() == b"0\n2\na 0 42\nb-c 13 0\n"
    assert read_offset_checkpoint(FILES, path) == offsets


def test_files_read_together_share_their_partitions(tmp_path: Path) -> None:
    for name, content in (("first", b"0\n2\na 0 1\nb- 2 3\n"), ("second", b"0\n3\na 0 5\nb- 2 7\nb 02 9\n")):
        (tmp_path / name).write_bytes(content)
    known: dict[str, TopicPartition] = {}
    first = read_offset_checkpoint(FILES, str(tmp_path / "first"), known)
    second = read_offset_checkpoint(FILES, str(tmp_path / "second"), known)
    assert second == {TopicPartition("a", 0): 5, TopicPartition("b-", 2): 7, TopicPartition("b", 2): 9}
    assert {id(partition) for partition in first} == {id(partition) for partition in second if partition in first}
    assert known == {"a-0": TopicPartition("a", 0), "b--2": TopicPartition("b-", 2)}


def test_missing_checkpoint_is_empty(tmp_path: Path) -> None:
    assert read_offset_checkpoint(FILES, str(tmp_path / "none")) == {}


def test_a_checkpoint_that_kafka_made_and_has_not_written_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "cleaner-offset-checkpoint"
    path.touch()
    assert read_offset_checkpoint(FILES, str(path)) == {}
    assert read_leader_epochs(FILES, str(path)) == []


@pytest.mark.parametrize(
    "content", [b"\n", b"0\n", b"1\n0\n", b"x\n0\n", b"0\n2\na 0 1\n", b"0\n1\na 0\n", b"0\n1\na b 1\n", b"\xff\n"]
)
def test_damaged_checkpoint_is_reported(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    with pytest.raises(CheckpointCorruptError, match="checkpoint"):
        read_offset_checkpoint(FILES, str(path))


def test_partition_metadata_has_kafkas_bytes(tmp_path: Path) -> None:
    assert read_partition_metadata(FILES, str(tmp_path)) is None
    write_partition_metadata(FILES, str(tmp_path), TOPIC_ID)
    assert (tmp_path / "partition.metadata").read_bytes() == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert read_partition_metadata(FILES, str(tmp_path)) == TOPIC_ID


def test_unreadable_topic_id_is_reported(tmp_path: Path) -> None:
    (tmp_path / "partition.metadata").write_text("version: 0\n")
    with pytest.raises(CheckpointCorruptError, match="topic_id"):
        read_partition_metadata(FILES, str(tmp_path))


def test_meta_properties_come_back(tmp_path: Path) -> None:
    assert read_meta_properties(FILES, str(tmp_path)) is None
    properties = MetaProperties("cluster", 3, TOPIC_ID)
    write_meta_properties(FILES, str(tmp_path), properties)
    assert read_meta_properties(FILES, str(tmp_path)) == properties


def test_meta_properties_of_kafka_are_read(tmp_path: Path) -> None:
    text = (
        "#\n#Fri Nov 20 10:00:00 UTC 2026\ncluster.id=abc\ndirectory.id=AAECAwQFBgcICQoLDA0ODw\nnode.id=1\nversion=1\n"
    )
    (tmp_path / "meta.properties").write_text(text)
    assert read_meta_properties(FILES, str(tmp_path)) == MetaProperties("abc", 1, TOPIC_ID)


def test_meta_properties_of_an_old_broker_are_read(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=7\ncluster.id=abc\n")
    assert read_meta_properties(FILES, str(tmp_path)) == MetaProperties("abc", 7, None)


def test_meta_properties_without_a_cluster_are_reported(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("node.id=7\n")
    with pytest.raises(CheckpointCorruptError, match=r"cluster\.id"):
        read_meta_properties(FILES, str(tmp_path))


def test_the_clean_shutdown_marker_counts_once(tmp_path: Path) -> None:
    write_clean_shutdown(FILES, str(tmp_path), 5)
    assert (tmp_path / ".kafka_cleanshutdown").read_bytes() == b'{"version":0,"brokerEpoch":5}'
    assert take_clean_shutdown(FILES, str(tmp_path))
    assert not take_clean_shutdown(FILES, str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 60_000, b"[]", b"{}", b'{"brokerEpoch":true}'], ids=range(6))
def test_a_clean_shutdown_marker_without_an_epoch_has_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".kafka_cleanshutdown").write_bytes(content)
    assert read_clean_shutdown_epoch(FILES, str(tmp_path)) is None


def test_an_unreadable_file_is_not_treated_as_missing(tmp_path: Path) -> None:
    assert read_leader_epochs(FILES, str(tmp_path / "leader-epoch-checkpoint")) == []
    assert read_partition_metadata(FILES, str(tmp_path)) is None
    (tmp_path / "partition.metadata").mkdir()
    with pytest.raises(KafkaStorageError):
        read_partition_metadata(FILES, str(tmp_path))
    (tmp_path / "leader-epoch-checkpoint").symlink_to(tmp_path / "nowhere")
    with pytest.raises(KafkaStorageError):
        read_leader_epochs(FILES, str(tmp_path / "leader-epoch-checkpoint"))
