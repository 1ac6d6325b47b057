"""A member's start while log directories fail: which failures end it, and that the other directories are served."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.failed_directories import READ_ONLY, UNLOCKABLE, UNREADABLE, FailedDirectories
from tests.unit.broker.member.test_joining import CLUSTER, NODE, OTHER, TOPIC_ID, config, formatted, image, manager
from tidelog.broker.errors import StartError
from tidelog.broker.member.directories import (
    MemberDirectories,
    claim_member_directories,
    move_strays,
    read_position,
)
from tidelog.log.files.checkpoints import read_meta_properties, write_clean_shutdown, write_partition_metadata
from tidelog.log.system.file_system import LogStorageError
from tidelog.protocol.errors import KafkaStorageError

FAILURES = [UNREADABLE, READ_ONLY, UNLOCKABLE]
STOPPED_EPOCH = 5


@pytest.fixture
def disk(tmp_path: Path) -> FailedDirectories:
    """A file system with two directories of this node, which stopped cleanly."""
    disk = FailedDirectories()
    for name in "ab":
        formatted(tmp_path / name, uuid=name.encode() * 16)
        write_clean_shutdown(disk, str(tmp_path / name), STOPPED_EPOCH)
    return disk


@pytest.fixture
def claims(tmp_path: Path, disk: FailedDirectories) -> Iterator[list[MemberDirectories]]:
    """Yield a list of the directories that the test claims; their locks are released after the test."""
    claimed: list[MemberDirectories] = []
    yield claimed
    for lock in (lock for one in claimed for lock in one.claimed.locks):
        lock.close()


@pytest.mark.parametrize("how", FAILURES)
def test_a_start_continues_without_a_directory_that_fails(
    tmp_path: Path, disk: FailedDirectories, how: str, claims: list[MemberDirectories]
) -> None:
    """Its id is not registered, and the last stop counts as unclean: no log of this broker stays eligible (KIP-966)."""
    second = str(tmp_path / "b")
    disk.failed[second] = how
    claims.append(claim_member_directories(disk, config(tmp_path)))
    (found,) = claims
    assert (found.ids, found.previous_epoch) == ((b"a" * 16,), -1)
    assert list(found.claimed.failures) == [second]
    assert found.claimed.directory_ids == {str(tmp_path / "a"): b"a" * 16}
    assert found.claimed.cluster_id == CLUSTER


@pytest.mark.parametrize("content", ["", "cluster.id", "cluster.id=x\nnode.id=seven\n"])
def test_a_damaged_identity_is_a_directory_that_fails(
    tmp_path: Path, disk: FailedDirectories, content: str, claims: list[MemberDirectories]
) -> None:
    (tmp_path / "b" / "meta.properties").write_text(content)
    claims.append(claim_member_directories(disk, config(tmp_path)))
    assert claims[0].ids == (b"a" * 16,)


@pytest.mark.parametrize("how", FAILURES)
def test_the_first_directory_ends_a_start_and_so_do_all(tmp_path: Path, disk: FailedDirectories, how: str) -> None:
    """The first directory has the last position in the metadata: without it an older quorum would not be detected."""
    disk.failed[str(tmp_path / "a")] = how
    with pytest.raises(StartError, match=r"the first log directory, .*/a, .*cannot be used: .*/a"):
        claim_member_directories(disk, config(tmp_path))
    disk.failed[str(tmp_path / "b")] = how
    with pytest.raises(StartError, match=r"no log directory can be used: .*/a.*; .*/b"):
        claim_member_directories(disk, config(tmp_path))


def test_an_empty_mount_point_is_no_disk_that_fails(tmp_path: Path, disk: FailedDirectories) -> None:
    """The disk may be intact and not mounted. Kafka's broker ends the start, too."""
    (tmp_path / "b" / "meta.properties").unlink()
    with pytest.raises(StartError, match=r"b/meta\.properties is missing"):
        claim_member_directories(disk, config(tmp_path))


def test_a_directory_of_another_cluster_ends_a_start_even_if_another_one_fails(
    tmp_path: Path, disk: FailedDirectories
) -> None:
    formatted(tmp_path / "c", cluster=OTHER, uuid=b"c" * 16)
    three = config(log_dirs=",".join(str(tmp_path / name) for name in "abc"))
    disk.failed[str(tmp_path / "b")] = UNREADABLE
    with pytest.raises(StartError, match=f"c/meta.properties has cluster.id={OTHER}"):
        claim_member_directories(disk, three)
    assert not (tmp_path / "a" / ".lock").exists(), "nothing is written before"


def test_an_unreadable_disk_does_not_count_as_empty(tmp_path: Path, disk: FailedDirectories) -> None:
    """A lone node would give the directory another identity; a member would take an older quorum for new."""
    disk.failed[str(tmp_path / "b")] = UNREADABLE
    with pytest.raises(LogStorageError, match="failed"):
        read_meta_properties(disk, str(tmp_path / "b"))
    with pytest.raises(LogStorageError, match="failed"):
        read_position(disk, str(tmp_path / "b"))
    (tmp_path / "file").touch()
    with pytest.raises(LogStorageError, match=os.strerror(errno.ENOTDIR)):
        read_meta_properties(disk, str(tmp_path / "file"))


def log_of(directory: Path, name: str, topic_id: bytes = TOPIC_ID) -> Path:
    """Make the directory of a log."""
    path = directory / name
    path.mkdir()
    write_partition_metadata(FailedDirectories(), str(path), topic_id)
    return path


@pytest.mark.parametrize("how", [UNREADABLE, READ_ONLY])
def test_strays_of_a_directory_that_fails_keep_no_other_from_being_looked_through(
    tmp_path: Path, disk: FailedDirectories, how: str
) -> None:
    for name in "ab":
        log_of(tmp_path / name, "gone-0", b"g" * 16)
    disk.failed[str(tmp_path / "a")] = how
    logs = manager(tmp_path, disk)
    move_strays(logs, NODE, image((NODE,)))
    assert [one.is_online for one in logs.directories] == [False, True]
    assert (tmp_path / "a" / "gone-0").exists()
    assert not (tmp_path / "b" / "gone-0").exists()


@pytest.mark.parametrize(("place", "kept"), [(b"a", "a"), (b"b", "b"), (b"c", "ab")])
def test_of_two_copies_the_one_that_the_metadata_name_stays(
    tmp_path: Path, disk: FailedDirectories, place: bytes, kept: str
) -> None:
    """A directory that failed was out of log.dirs, its logs were created again in the other one, and it is back."""
    for name in "ab":
        log_of(tmp_path / name, "t-0")
    (topic,) = image((NODE,)).topics.values()
    (state,) = topic.partitions
    named = topic._replace(partitions=(state._replace(directories=(place * 16,)),))
    move_strays(manager(tmp_path, disk), NODE, image((NODE,))._replace(topics={TOPIC_ID: named}))
    assert [name for name in "ab" if (tmp_path / name / "t-0").exists()] == list(kept)
    assert len(list(tmp_path.glob("?/t-0.*-stray"))) == 2 - len(kept)


def test_no_stop_while_a_directory_has_failed_is_a_clean_one(
    tmp_path: Path, disk: FailedDirectories, claims: list[MemberDirectories]
) -> None:
    """Once the directory is out of log.dirs its logs are copied again: half a copy would stay eligible (KIP-966)."""
    logs = manager(tmp_path, disk)
    logs.startup()
    logs.directories[1].state.mark_offline(KafkaStorageError("the disk is gone"))
    logs.shutdown(STOPPED_EPOCH)
    claims.append(claim_member_directories(disk, config(log_dirs=str(tmp_path / "a"))))
    assert claims[0].previous_epoch == -1
