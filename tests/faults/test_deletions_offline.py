"""Deletions that are acknowledged while a log directory is offline: they are completed when it is back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.topics import create_topic, delete_topic
from tests.unit.broker.data_broker import DataBroker
from tidelog.log.system.file_system import OsFileSystem
from tidelog.protocol.errors import KafkaStorageError

PARTITIONS = 4


class TwoDisks:
    """A broker over two directories, the second of which fails and comes back."""

    def __init__(self, directory: Path) -> None:
        self.first, self.second = directory / "a", directory / "b"
        self.first.mkdir()
        self.second.mkdir()
        self.start()

    def start(self, *, offline: bool = False) -> None:
        files = _WithoutSecond(str(self.second)) if offline else OsFileSystem()
        self.data = DataBroker(self.first, None, files, self.directories)

    @property
    def directories(self) -> list[str]:
        return [str(self.first), str(self.second)]

    def restart(self, *, offline: bool = False, clean: bool = True) -> None:
        if clean:
            self.data.close()
        else:
            self.data.broker.controller.close()
        self.start(offline=offline)

    def take_offline(self) -> None:
        self.data.log_manager.directories[1].state.mark_offline(KafkaStorageError("gone"))

    def shown(self) -> list[str]:
        """List the partition directories on both disks."""
        return sorted(path.name for disk in (self.first, self.second) for path in disk.glob("[!_]*-[0-9]"))


class _WithoutSecond(OsFileSystem):
    """A file system on which no directory can be created below the second log directory."""

    __slots__ = ("_gone",)

    def __init__(self, gone: str) -> None:
        self._gone = gone

    def make_directory(self, path: str) -> None:
        if path.startswith(self._gone):
            raise KafkaStorageError("gone")
        super().make_directory(path)


@pytest.fixture
def disks(tmp_path: Path) -> TwoDisks:
    disks = TwoDisks(tmp_path)
    create_topic(disks.data, "t", PARTITIONS)
    for index in range(PARTITIONS):
        disks.data.append("t", b"old", partition=index)
    assert len(list(disks.second.glob("t-*"))) == PARTITIONS // 2
    return disks


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("away", ["when it ran", "at the start"])
@pytest.mark.parametrize("others", [0, 3])
def test_deletions_are_finished_when_the_directory_returns(
    disks: TwoDisks, away: str, clean: bool, others: int
) -> None:
    if away == "at the start":
        disks.restart(offline=True)
    else:
        disks.take_offline()
    delete_topic(disks.data, "t")
    for number in range(others):  # each deletion forgets those before it that are finished
        create_topic(disks.data, f"other{number}")
        delete_topic(disks.data, f"other{number}")
    disks.restart(offline=True, clean=clean)
    disks.restart(clean=clean)
    assert disks.shown() == []
    assert not disks.data.broker.metadata.topics
    create_topic(disks.data, "t", PARTITIONS)
    assert [disks.data.append("t", b"new", partition=index) for index in range(PARTITIONS)] == [0] * PARTITIONS
    disks.data.close()


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_new_topic_of_that_name_is_left_as_it_is(disks: TwoDisks, clean: bool) -> None:
    disks.take_offline()
    delete_topic(disks.data, "t")
    create_topic(disks.data, "t", PARTITIONS)
    assert [disks.data.append("t", b"new", partition=index) for index in range(PARTITIONS)] == [0] * PARTITIONS
    disks.restart(clean=clean)
    assert disks.data.log_manager.has_all_directories
    assert disks.shown() == [f"t-{index}" for index in range(PARTITIONS)]
    assert [disks.data.append("t", b"next", partition=index) for index in range(PARTITIONS)] == [1] * PARTITIONS
    disks.data.close()


def test_finished_deletions_are_forgotten_when_all_directories_are_there(disks: TwoDisks) -> None:
    disks.take_offline()
    delete_topic(disks.data, "t")
    disks.restart()
    create_topic(disks.data, "u")
    delete_topic(disks.data, "u")
    assert list(disks.data.broker.controller.deletions.values()) == ["u"], "the last one, until the next"
    disks.data.close()
