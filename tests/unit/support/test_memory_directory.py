"""Tests whose directories are in memory, and tests whose directories are on a disk."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support import memory_directory
from tests.support.memory_directory import (
    IN_MEMORY,
    MEMORY,
    ON_DISK,
    basetemp_of,
    has_room,
    is_in_memory,
    module_directory,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(not has_room(), reason="no file system in memory, or a small one")
def test_directories_are_in_memory_except_for_tests_of_the_file_system() -> None:
    assert is_in_memory("tests/unit/log/recovery/test_walk.py::test_a")
    assert not is_in_memory("tests/unit/log/system/test_files.py::test_a")
    assert not is_in_memory("tests/unit/broker/network/test_send_queue.py::test_pages_that_left_memory_are_cold[100]")
    assert not is_in_memory("tests/clients/test_cluster.py::test_a")


def test_all_lie_on_the_disk_where_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_directory, "MEMORY", "/nowhere")
    assert not is_in_memory("tests/unit/log/recovery/test_walk.py::test_a")


def test_all_lie_on_the_disk_where_memory_has_little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container of Docker has 64 MB in /dev/shm."""
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=16_384, f_frsize=4096))
    assert not is_in_memory("tests/unit/log/recovery/test_walk.py::test_a")


def test_modules_and_packages_are_there() -> None:
    assert [place for place in (*IN_MEMORY, *ON_DISK) if not (ROOT / place).exists()] == []


@pytest.mark.skipif(not has_room(), reason="no file system in memory, or a small one")
def test_directories_in_memory_are_removed_after_their_module(tmp_path: Path) -> None:
    assert MEMORY in map(str, tmp_path.parents)
    with module_directory() as directory:
        assert MEMORY in map(str, directory.parents)
        (directory / "file").touch()
    assert not directory.exists()


@pytest.mark.parametrize("given", [None, "/there"])
def test_a_worker_knows_whether_a_place_was_asked_for(given: str | None) -> None:
    """pytest-xdist gives each worker a --basetemp of its own: no directory of a whole run was in memory."""
    worker = SimpleNamespace(option=SimpleNamespace(basetemp="/of/this/worker"), workerinput={})
    memory_directory.pytest_configure_node(
        SimpleNamespace(config=SimpleNamespace(option=SimpleNamespace(basetemp=given)), workerinput=worker.workerinput)
    )
    assert basetemp_of(cast(pytest.Config, worker)) == given
