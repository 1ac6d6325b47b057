"""Deletion of directories: the topic id alone tells whether a directory belongs to the deleted topic, and a missing one
counts as deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.logs import NOW_MS
from tidelog.log.config import LogConfig
from tidelog.log.directories.deletion import belongs_to, rename_away
from tidelog.log.files.checkpoints import write_partition_metadata
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import KafkaStorageError

FILES = OsFileSystem()
PARTITION = TopicPartition("t", 0)
ID = bytes(range(16))


def test_a_directory_is_of_a_deleted_topic_by_its_id_alone(tmp_path: Path) -> None:
    assert not belongs_to({ID: "t"}, FILES, PARTITION, str(tmp_path))
    write_partition_metadata(FILES, str(tmp_path), ID)
    assert belongs_to({ID: "t"}, FILES, PARTITION, str(tmp_path))
    assert not belongs_to({bytes(16 * [7]): "t"}, FILES, PARTITION, str(tmp_path))
    assert not belongs_to({ID: "u"}, FILES, PARTITION, str(tmp_path))
    (tmp_path / "partition.metadata").write_bytes(b"")
    assert not belongs_to({ID: "t"}, FILES, PARTITION, str(tmp_path))


def test_a_missing_directory_is_gone_already_and_one_that_cannot_move_is_not(tmp_path: Path) -> None:
    rename_away(FILES, str(tmp_path / "missing"), str(tmp_path / "away"))
    (tmp_path / "there").mkdir()
    with pytest.raises(KafkaStorageError):
        rename_away(FILES, str(tmp_path / "there"), str(tmp_path / "no" / "way"))
    assert (tmp_path / "there").is_dir()


def outside(tmp_path: Path) -> Path:
    """Make a directory outside of the data directory, which no deletion may change."""
    directory = tmp_path / "outside"
    (directory / "below").mkdir(parents=True)
    for path in (directory / "00000000000000000000.log", directory / "below" / "notes"):
        path.write_bytes(b"kept")
    return directory


def names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


KINDS = ("file", "sub-directory", "link to a file", "link to a directory", "link as a segment", "the directory itself")


@pytest.mark.parametrize("kind", KINDS)
def test_foreign_files_are_deleted_with_their_partition_and_targets_of_links_stay(tmp_path: Path, kind: str) -> None:
    kept, data = outside(tmp_path), tmp_path / "data"
    before = names(kept)
    manager = LogManager([str(data)], FILES, ManualTime(NOW_MS), LogConfig())
    manager.startup()
    log = manager.get_or_create_log(PARTITION, ID, LogConfig())
    directory = Path(log.directory)
    if kind == "file":
        (directory / "notes").write_bytes(b"x")
    elif kind == "sub-directory":
        (directory / "of a user" / "below").mkdir(parents=True)
        (directory / "of a user" / "notes").write_bytes(b"x")
    elif kind == "link to a file":
        (directory / "link").symlink_to(kept / "below" / "notes")
    elif kind == "link to a directory":
        (directory / "link").symlink_to(kept)
    elif kind == "the directory itself":
        directory.rename(kept / "moved")
        directory.symlink_to(kept / "moved")
        before = names(kept)
    else:
        (directory / "00000000000000000009.log").symlink_to(kept / "00000000000000000000.log")
    assert manager.delete_log(PARTITION)
    manager.environment.deletions.run(everything=True)
    assert names(kept) == before
    assert not [name for name in names(data) if name.startswith("t-0")]
    assert manager.has_all_directories
    manager.shutdown()


@pytest.mark.parametrize("name", ["t-0.0123456789abcdef0123456789abcdef-delete", "of-a-user-delete"])
def test_a_link_in_the_place_of_a_partitions_directory_is_not_followed(tmp_path: Path, name: str) -> None:
    """The start removed all that one of a deleted partition's name pointed at."""
    kept, data = outside(tmp_path), tmp_path / "data"
    before = names(kept)
    data.mkdir()
    (data / name).symlink_to(kept)
    manager = LogManager([str(data)], FILES, ManualTime(NOW_MS), LogConfig())
    manager.startup()
    manager.environment.deletions.run(everything=True)
    manager.shutdown()
    assert names(kept) == before
