"""A kill at every step of creating, filling, deleting and creating a topic again; then the broker starts again (fault
F1 of docs/internals/faults.md).

The store commits before directories are made or renamed, so a kill may leave a topic without directories, or
directories without their topic. After a start the directories are those of the topics that are there, and every
name is usable.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from tests.support.faulty_file_system import FaultyFileSystem, Killed
from tests.support.topics import create_topic, delete_topic
from tests.unit.broker.data_broker import DataBroker
from tidelog.log.directories.names import METADATA_DIRECTORY
from tidelog.log.system.file_system import OsFileSystem

PARTITIONS = 2


def life_of_topics(data: DataBroker) -> None:
    """Do the work that is killed: two topics, one of them deleted and created again with more partitions."""
    create_topic(data, "kept", 1)
    data.append("kept", b"kept")
    create_topic(data, "orders", PARTITIONS)
    data.append("orders", b"old")
    delete_topic(data, "orders")
    create_topic(data, "orders", PARTITIONS + 1)
    data.append("orders", b"new", partition=PARTITIONS)
    delete_topic(data, "orders")


def shown(directory: Path) -> set[str]:
    """Return the partition directories that are not being deleted."""
    names = {path.name for path in directory.iterdir() if path.is_dir() and not path.name.endswith("-delete")}
    return names - {METADATA_DIRECTORY}


def belonging(data: DataBroker) -> set[str]:
    topics = data.broker.metadata.topics.values()
    return {f"{image.name}-{index}" for image in topics for index in range(image.partition_count)}


def run_and_kill(directory: Path, number: int | None) -> int:
    """Run one process, killed at its N-th call of the file system; return the number of calls."""
    disk = FaultyFileSystem(str(directory))
    data = DataBroker(directory, file_system=disk)
    disk.kill_at = None if number is None else len(disk.calls) + number
    before = len(disk.calls)
    with contextlib.suppress(Killed):
        life_of_topics(data)
        data.broker.controller.close()
    disk.kill()
    return len(disk.calls) - before


def test_a_kill_at_every_step_leaves_topics_with_their_logs_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "count").mkdir()
    total = run_and_kill(tmp_path / "count", None)
    assert total > 20
    for number in range(total):
        directory = tmp_path / str(number)
        directory.mkdir()
        run_and_kill(directory, number)
        data = DataBroker(directory, file_system=OsFileSystem())
        assert shown(directory) <= belonging(data), f"killed at step {number}"
        for name, image in list(data.broker.metadata.topics.items()):
            for index in range(image.partition_count):
                data.append(name, b"after", partition=index)
        assert shown(directory) == belonging(data), f"killed at step {number}"
        if "orders" in data.broker.metadata.topics:
            delete_topic(data, "orders")
        create_topic(data, "orders", PARTITIONS)
        assert data.append("orders", b"again") == 0, f"killed at step {number}"
        data.close()


def test_a_directory_of_unknown_origin_is_kept_when_a_topic_of_its_name_is_created(tmp_path: Path) -> None:
    data = DataBroker(tmp_path)
    create_topic(data, "orders", 2)
    data.append("orders", b"whose?")
    data.close()
    shutil.rmtree(tmp_path / METADATA_DIRECTORY)
    data = DataBroker(tmp_path)
    assert shown(tmp_path) == {"orders-0", "orders-1"}, "left alone"
    create_topic(data, "orders", 1)
    assert data.append("orders", b"new") == 0
    data.close()
    aside = sorted(name for name in shown(tmp_path) if name.endswith("-stray"))
    assert [name.partition(".")[0] for name in aside] == ["orders-0", "orders-1"]
    assert b"whose?" in (tmp_path / aside[0] / "00000000000000000000.log").read_bytes()


def test_finished_deletions_are_forgotten(tmp_path: Path) -> None:
    data = DataBroker(tmp_path)
    for _ in range(5):
        create_topic(data, "orders")
        delete_topic(data, "orders")
    assert len(data.broker.controller.deletions) == 1, "the last one, until the next"
    data.close()
