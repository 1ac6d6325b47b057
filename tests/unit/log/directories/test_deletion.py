"""Deletion of directories: a deleted topic's is known by its id, and one that is missing is gone already."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.log.directories.deletion import is_of, rename_away
from tidelog.log.files.checkpoints import write_partition_metadata
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.system.file_system import OsFileSystem
from tidelog.protocol.errors import KafkaStorageError

FILES = OsFileSystem()
PARTITION = TopicPartition("t", 0)
ID = bytes(range(16))


def test_a_directory_is_of_a_deleted_topic_by_its_id_alone(tmp_path: Path) -> None:
    assert not is_of({ID: "t"}, FILES, PARTITION, str(tmp_path))
    write_partition_metadata(FILES, str(tmp_path), ID)
    assert is_of({ID: "t"}, FILES, PARTITION, str(tmp_path))
    assert not is_of({bytes(16 * [7]): "t"}, FILES, PARTITION, str(tmp_path))
    assert not is_of({ID: "u"}, FILES, PARTITION, str(tmp_path))
    (tmp_path / "partition.metadata").write_bytes(b"")
    assert not is_of({ID: "t"}, FILES, PARTITION, str(tmp_path))


def test_a_missing_directory_is_gone_already_and_one_that_cannot_move_is_not(tmp_path: Path) -> None:
    rename_away(FILES, str(tmp_path / "missing"), str(tmp_path / "away"))
    (tmp_path / "there").mkdir()
    with pytest.raises(KafkaStorageError):
        rename_away(FILES, str(tmp_path / "there"), str(tmp_path / "no" / "way"))
    assert (tmp_path / "there").is_dir()
