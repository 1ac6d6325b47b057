"""Log directories of replicas: the metadata name the directory in which each log lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faulty_file_system import FaultyFileSystem
from tests.unit.broker.manual_loop import ManualLoop
from tidelog.broker.controller.embedded import EmbeddedController, open_controller
from tidelog.broker.controller.features import level_record
from tidelog.broker.controller.log_directories import ASSIGN_MS, MAX_AT_ONCE, DirectoryAssignments
from tidelog.broker.metadata.image_records import VersionedRecord, records_of_topic
from tidelog.broker.metadata.metadata_image import PartitionState, TopicState
from tidelog.broker.metadata.metadata_log import MetadataLocation
from tidelog.log.config import LogConfig
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.files.topic_partition import TopicPartition
from tidelog.log.manager import LogManager
from tidelog.log.system.file_system import OsFileSystem
from tidelog.log.system.time import ManualTime
from tidelog.protocol.metadata_records.records import RemoveTopicRecord

NODE, TOPIC_ID = 1, b"t" * 16
FIRST, SECOND, UNASSIGNED = b"a" * 16, b"b" * 16, bytes(16)


class World:
    """A controller and a log manager of two directories."""

    def __init__(self, directory: Path, *, level: int = 25, partitions: int = 2) -> None:
        paths = [str(directory / name) for name in "ab"]
        for path in paths:
            Path(path).mkdir(exist_ok=True)
        self.disk = FaultyFileSystem(str(directory))
        self.loop = ManualLoop()
        location = MetadataLocation(paths[0], DirectoryState(paths[0]), LogEnvironment(self.disk, ManualTime()))
        self.controller: EmbeddedController = open_controller(location, NODE, ManualTime())
        state = PartitionState((NODE,), (NODE,), NODE, 0, directories=(UNASSIGNED,))
        topic = TopicState("orders", TOPIC_ID, (state,) * partitions)
        self.controller.commit([level_record("metadata.version", level), *records_of_topic(topic, level)])
        ids = dict(zip(paths, (FIRST, SECOND), strict=True))
        self.logs = LogManager(paths, OsFileSystem(), ManualTime(), LogConfig({}), directory_ids=ids)
        self.logs.startup()
        self.directories = DirectoryAssignments(self.controller, self.logs, self.loop.timers)

    def make_log(self, partition: int) -> None:
        self.logs.get_or_create_log(TopicPartition("orders", partition), TOPIC_ID, LogConfig({}), is_new=True)

    def assigned(self) -> list[bytes]:
        """Return the directory of each partition according to the metadata."""
        return [one for state in self.controller.image.topics[TOPIC_ID].partitions for one in state.directories]


def test_a_log_is_assigned_soon_after_it_is_made(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=3)
    world.directories.begin()
    assert world.assigned() == [UNASSIGNED] * 3
    world.make_log(0)
    world.make_log(2)
    world.loop.advance(ASSIGN_MS + 1)
    assert world.assigned() == [FIRST, UNASSIGNED, SECOND]
    states = world.controller.image.topics[TOPIC_ID].partitions
    assert [(state.leader_epoch, state.partition_epoch) for state in states] == [(0, 1), (0, 0), (0, 1)]


def test_the_start_assigns_what_was_left_and_what_was_moved(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.make_log(0)
    world.make_log(1)
    world.directories.begin()
    assert world.assigned() == [FIRST, SECOND]
    end = world.controller.end_offset
    world.directories.begin()
    assert world.controller.end_offset == end, "nothing differs"


def test_many_logs_take_several_rounds(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.make_log(0)
    world.logs.placed.extend([TopicPartition("orders", 7)] * (MAX_AT_ONCE - 1))
    world.make_log(1)
    world.directories.assign_new()
    assert world.assigned() == [FIRST, UNASSIGNED]
    world.directories.assign_new()
    assert world.assigned() == [FIRST, SECOND]
    assert not world.logs.placed


def test_a_topic_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.make_log(0)
    world.controller.commit([VersionedRecord(RemoveTopicRecord(topic_id=TOPIC_ID))])
    end = world.controller.end_offset
    world.directories.assign_new()
    assert (world.controller.end_offset, len(world.logs.placed)) == (end, 0)


def test_a_disk_that_takes_nothing_is_tried_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.make_log(0)
    world.disk.fail_at[len(world.disk.calls)] = 28
    world.directories.assign_new()
    assert world.assigned() == [UNASSIGNED] * 2
    world.directories.assign_new()
    assert world.assigned() == [FIRST, UNASSIGNED]


@pytest.mark.parametrize(("level", "expected"), [(16, []), (17, [FIRST, UNASSIGNED])])
def test_older_levels_know_no_directories(tmp_path: Path, level: int, expected: list[bytes]) -> None:
    world = World(tmp_path, level=level)
    world.make_log(0)
    world.directories.begin()
    assert world.assigned() == expected
