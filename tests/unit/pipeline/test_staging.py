"""Staged files: whole or not there, read back as written, gone once published."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.staging import (
    BatchAddress,
    StagedFile,
    StagingError,
    StagingFile,
    TaskIdentity,
    directory_of,
    in_order,
    remove_files,
    remove_published,
)


def stage(root: Path, partition: int = 0, *, batch_id: int = 3, attempt: int = 0) -> StagedFile:
    with StagingFile(root, TaskIdentity("query", batch_id, partition, attempt)) as file:
        file.append("t", 1, b"first", 2)
        file.append("u", 0, bytearray(b"second one"), 3)
        return file.finish()


def files_below(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def test_what_was_staged_is_read_back(tmp_path: Path) -> None:
    staged = stage(tmp_path)
    assert staged.batches == (BatchAddress("t", 1, 0, 5, 2), BatchAddress("u", 0, 5, 10, 3))
    assert [bytes(staged.read(batch)) for batch in staged.batches] == [b"first", b"second one"]
    assert staged.path is not None
    assert staged.path.parent == directory_of(tmp_path, "query", 3)


def test_a_task_without_rows_leaves_nothing(tmp_path: Path) -> None:
    with StagingFile(tmp_path, TaskIdentity("query", 0, 0, 0)) as file:
        staged = file.finish()
    assert (staged.path, staged.batches, files_below(tmp_path)) == (None, (), [])


def test_a_task_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with StagingFile(tmp_path, TaskIdentity("query", 0, 0, 0)) as file:
        file.append("t", 0, b"x", 1)
        assert [name.endswith(".part") for name in files_below(tmp_path)] == [True]
    assert files_below(tmp_path) == []


def test_attempts_of_one_task_do_not_meet(tmp_path: Path) -> None:
    assert len({stage(tmp_path).path for _ in range(3)}) == 3


def test_publishing_removes_this_batch_and_those_before(tmp_path: Path) -> None:
    for batch_id in (1, 2, 3):
        stage(tmp_path, batch_id=batch_id)
    remove_published(tmp_path, "query", 2)
    assert [path.name for path in (tmp_path / "query").iterdir()] == [f"{3:020d}"]
    remove_published(tmp_path, "query", 3)
    assert not (tmp_path / "query").exists()
    remove_published(tmp_path, "query", 3)


def test_files_of_a_failed_batch_are_removed(tmp_path: Path) -> None:
    staged = stage(tmp_path)
    remove_files([staged, StagedFile(staged.task, None, ())])
    remove_files([staged])
    assert files_below(tmp_path) == []


def test_a_file_the_driver_does_not_see_says_what_is_wrong(tmp_path: Path) -> None:
    staged = stage(tmp_path)
    remove_files([staged])
    with pytest.raises(StagingError, match="stagingPath must be shared by driver and executors"):
        staged.read(staged.batches[0])


def test_a_file_cut_short_is_noticed(tmp_path: Path) -> None:
    staged = stage(tmp_path)
    assert staged.path is not None
    staged.path.write_bytes(b"firstsec")
    with pytest.raises(StagingError, match="3 bytes at 5, expected 10"):
        staged.read(staged.batches[1])


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        StagingFile(tmp_path / "file", TaskIdentity("query", 0, 0, 0)) as file,
        pytest.raises(StagingError, match="cannot stage below"),
    ):
        file.append("t", 0, b"x", 1)


def test_files_are_published_by_task(tmp_path: Path) -> None:
    staged = [stage(tmp_path, partition) for partition in (2, 0, 1)]
    assert [file.task.partition for file in in_order(staged)] == [0, 1, 2]
