"""A new topic may have the name of a stray log, and never gets the stray log's records."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.logs import NOW_MS
from tidelog.broker.replica.strays import STRAY_SUFFIX, StrayLogs
from tidelog.log.config import LogConfig
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.protocol.errors import KafkaStorageError

STRAYS = [TopicPartition("orders", number) for number in range(3)]


class FailingRename(OsFileSystem):
    """A file system whose second rename fails, as an I/O error does."""

    renames = 0

    def rename(self, old: str, new: str) -> None:
        self.renames += 1
        if self.renames == 2:
            raise KafkaStorageError(f"rename {old}")
        super().rename(old, new)


@pytest.fixture
def manager(tmp_path: Path) -> LogManager:
    for partition in STRAYS:
        (tmp_path / partition.directory_name).mkdir()
    return LogManager([str(tmp_path)], FailingRename(), ManualTime(NOW_MS), LogConfig())


def names_in(directory: Path, *, aside: bool) -> int:
    return sum(path.name.endswith(STRAY_SUFFIX) is aside for path in directory.glob("orders*"))


def test_a_rename_that_failed_is_tried_again(manager: LogManager, tmp_path: Path) -> None:
    strays = StrayLogs(manager)
    strays.note(STRAYS)
    with pytest.raises(KafkaStorageError):
        strays.make_way("orders")
    strays.make_way("orders")
    assert (names_in(tmp_path, aside=True), names_in(tmp_path, aside=False)) == (3, 0)


def test_a_failed_directory_holds_up_no_topic(manager: LogManager, tmp_path: Path) -> None:
    strays = StrayLogs(manager)
    strays.note(STRAYS)
    manager.directories[0].state.mark_offline(KafkaStorageError("the disk is gone"))
    assert not manager.directories[0].is_online
    strays.make_way("orders")
    assert names_in(tmp_path, aside=False) == 3
