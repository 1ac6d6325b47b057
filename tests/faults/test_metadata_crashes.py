"""A kill or a power loss at every call of the metadata log: in starts, commits, syncs, snapshots and stops. These are
faults F2 and F3 of docs/internals/faults.md.

What the next start finds is the state after the last change that was answered, or after a later one; a topic is there
whole or not at all.
"""

from __future__ import annotations

import random
from copy import copy
from pathlib import Path

import pytest

from tests.support.faulty_file_system import DiskImage, FaultyFileSystem
from tests.support.kafka_directories import format_standalone
from tidelog.broker.cluster_membership import check_is_alone
from tidelog.broker.config.broker_config import BrokerConfig
from tidelog.broker.controller.activation import activation_records
from tidelog.broker.controller.embedded import EmbeddedController, open_controller
from tidelog.broker.metadata.image_records import VersionedRecord
from tidelog.broker.metadata.metadata_image import MetadataImage
from tidelog.broker.metadata.metadata_log import MetadataLocation
from tidelog.broker.metadata.quorum_state import STATIC_VOTERS
from tidelog.log.environment import DirectoryState, LogEnvironment
from tidelog.log.system.time import ManualTime
from tidelog.protocol.metadata_records import records

NODE = 1
PARTITIONS = 3
STEPS = "cuuNcusSuuRuSux"
"""c: commit and sync, u: commit only, s: sync, S: snapshot, N: a topic, R: stop and start, x: stop."""


class Life:
    """A node over several starts, with or without voters in its log. ``answered`` is the number of the last change that
    a client got an answer to."""

    def __init__(self, directory: Path, *, is_standalone: bool = False) -> None:
        directory.mkdir()
        self.voters = format_standalone(directory, NODE) if is_standalone else STATIC_VOTERS
        self.disk, self.directory = FaultyFileSystem(str(directory)), directory
        self.made = self.answered = 0
        self.is_topic_answered = False
        self.image = DiskImage(frozenset(), frozenset())
        """What the end of this life left on the disk."""

    def ended(self, image: DiskImage) -> Life:
        """Return a copy of this life as it is now, for a disk that its end leaves."""
        found = copy(self)
        found.image = image
        return found

    def resume(self, directory: Path, seed: int) -> None:
        """Go on with the disk of the end, in a new directory."""
        self.image.write(directory)
        self.disk, self.directory = FaultyFileSystem(str(directory), seed=seed), directory

    def start(self) -> EmbeddedController:
        """Start the node's metadata log."""
        found = check_is_alone(BrokerConfig({"log.dirs": str(self.directory)}), self.disk)
        assert self.voters == (STATIC_VOTERS if found is None else found.voters)
        environment = LogEnvironment(self.disk, ManualTime())
        location = MetadataLocation(str(self.directory), DirectoryState(str(self.directory)), environment)
        controller = open_controller(location, NODE, environment.time)
        controller.commit(activation_records(location, controller.image, NODE))
        return controller

    def run(self, steps: str) -> None:
        controller = self.start()
        has_topic = False
        for step in steps:
            if step in "cu":
                self.made += 1
                controller.commit([config(self.made)])
            elif step == "N":
                controller.commit(topic())
                has_topic = True
            elif step == "S":
                controller.take_snapshot(min_bytes=0)
            elif step in "Rx":
                controller.close()
            if step in "csRx":
                controller.sync() if step in "cs" else None
                self.answered, self.is_topic_answered = self.made, has_topic
            if step == "R":
                controller = self.start()

    def check(self, image: MetadataImage) -> None:
        """Compare what a start found with what was answered."""
        found = int(image.configs.get((2, "orders"), {}).get("retention.ms", "0"))
        assert self.answered <= found <= self.made
        partitions = [len(state.partitions) for state in image.topics.values()]
        assert partitions in ([[PARTITIONS]] if self.is_topic_answered else [[], [PARTITIONS]])


def config(number: int) -> VersionedRecord:
    record = records.ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value=str(number))
    return VersionedRecord(record)


def topic() -> list[VersionedRecord]:
    partitions = [
        records.PartitionRecord(partition_id=number, topic_id=b"t" * 16, replicas=[NODE], isr=[NODE], leader=NODE)
        for number in range(PARTITIONS)
    ]
    return [VersionedRecord(each) for each in (records.TopicRecord(name="orders", topic_id=b"t" * 16), *partitions)]


def ends(life: Life, kind: str) -> list[Life]:
    """Run a life; return it as it would have ended at each of its calls, which is what one run for each call gives."""
    disk = life.disk

    def end() -> DiskImage:
        if kind == "killed":  # the page cache outlives the process
            return disk.page_cache()
        return disk.image(torn="torn" in kind, keep_names="names" in kind)

    return disk.at_each_call(lambda: life.run(STEPS), lambda: life.ended(end()))


@pytest.mark.parametrize("kind", ["killed", "powerless", "torn", "torn, names kept"])
def test_a_start_finds_all_that_was_answered(tmp_path: Path, kind: str) -> None:
    lives = [ends(Life(tmp_path / f"standalone {alone}", is_standalone=alone), kind) for alone in (False, True)]
    for call in range(len(lives[0])):
        life = lives[call % 2][call]
        life.resume(tmp_path / str(call), seed=call)
        controller = life.start()
        life.check(controller.image)
        life.answered = life.made = life.made + 1
        controller.commit([config(life.made)])
        controller.sync()
        life.disk.crash(torn=random.Random(call).random() < 0.5)
        life.check(life.start().image)
