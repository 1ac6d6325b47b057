"""Staged files: complete or absent, equal when read again, removed once published."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidelog.pipeline.sink.staging import (
    BatchAddress,
    StagedFile,
    StagingError,
    StagingFile,
    TaskIdentity,
    begin_run,
    directory_of,
    end_run,
    remove_files,
    remove_published,
    sort_by_task,
)


def stage(root: Path, partition: int = 0, *, batch_id: int = 3, attempt: int = 0) -> StagedFile:
    with StagingFile(root, TaskIdentity("query", batch_id, partition, attempt)) as file:
        file.append("t", 1, b"first", 2)
        file.append("u", 0, bytearray(b"second one"), 3)
        return file.finish()


def files_below(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def test_staged_batches_are_read_back(tmp_path: Path) -> None:
    staged = stage(tmp_path)
    assert staged.batches == (BatchAddress("t", 1, 0, 5, 2), BatchAddress("u", 0, 5, 10, 3))
    assert [bytes(staged.read(batch)) for batch in staged.batches] == [b"first", b"second one"]
    assert staged.path is not None
    assert staged.path.parent == directory_of(tmp_path, "query", 3)


@pytest.mark.parametrize("length", [255, 256, 345])
def test_a_writer_may_have_a_longer_name_than_a_directory(tmp_path: Path, length: int) -> None:
    """A replay's writer has the names of the run and of its source topic, of 60 and 249 characters."""
    writers = ["w" * (length - 1) + end for end in "ab"]
    staged = []
    for writer in writers:
        with StagingFile(tmp_path, TaskIdentity(writer, 3, 0, 0)) as file:
            file.append("t", 1, writer.encode(), 1)
            staged.append(file.finish())
    contents = [bytes(one.read(one.batches[0])).decode() for one in staged]
    assert contents == writers
    assert (tmp_path / writers[0]).exists() if length <= 255 else True
    end_run(tmp_path, writers[0], 4, begin_run(tmp_path, writers[0], 4))
    remove_published(tmp_path, writers[0], 3)
    assert [path.exists() for one in staged if (path := one.path)] == [False, True]
    remove_published(tmp_path, writers[1], 3)
    assert list(tmp_path.iterdir()) == []


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


def run_of(root: Path, *, partition: int = 0, run: str, batch_id: int = 3) -> StagingFile:
    return StagingFile(root, TaskIdentity("query", batch_id, partition, 0, run))


def test_a_run_that_ends_leaves_nothing_whatever_its_tasks_did(tmp_path: Path) -> None:
    run = begin_run(tmp_path, "query", 3)
    with run_of(tmp_path, run=run) as reported:
        reported.append("t", 0, b"x", 1)
        reported.finish()
    killed = run_of(tmp_path, run=run, partition=1)
    killed.append("t", 0, b"x", 1)  # and never left
    with run_of(tmp_path, run=run, partition=2) as late, run_of(tmp_path, run=run, partition=3) as later:
        late.append("t", 0, b"x", 1)
        end_run(tmp_path, "query", 3, run)
        assert list(tmp_path.iterdir()) == []
        late.append("t", 0, b"y", 1)
        with pytest.raises(StagingError, match="the write was aborted meanwhile"):
            late.finish()
        with pytest.raises(StagingError, match="does not exist: the write was aborted, or stagingPath is not shared"):
            later.append("t", 0, b"x", 1)
    assert list(tmp_path.iterdir()) == []


def test_runs_of_one_application_and_version_do_not_meet(tmp_path: Path) -> None:
    failed, working = (begin_run(tmp_path, "query", 3) for _ in range(2))
    with run_of(tmp_path, run=working) as file:
        file.append("t", 0, b"x", 1)
        end_run(tmp_path, "query", 3, failed)
        end_run(tmp_path, "query", 3, failed)
        staged = file.finish()
    assert staged.read(staged.batches[0]) == b"x"
    remove_published(tmp_path, "query", 3)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_a_killed_driver_was_removing_is_removed_with_the_next_batch(tmp_path: Path) -> None:
    stage(tmp_path, batch_id=1)
    directory = directory_of(tmp_path, "query", 1)
    directory.rename(f"{directory}.0123456789ab.removed")
    stage(tmp_path, batch_id=3)
    remove_published(tmp_path, "query", 2)
    assert [path.name for path in (tmp_path / "query").iterdir()] == [f"{3:020d}"]


def test_a_run_that_has_no_place_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StagingError, match=r"cannot stage below .*file: "):
        begin_run(tmp_path / "file", "query", 0)


def test_files_are_made_and_removed_at_once_without_rest(tmp_path: Path) -> None:
    """Tasks that begin, write and finish while their run ends; whichever comes first, nothing stays."""

    def task(run: str, number: int) -> None:
        with contextlib.suppress(StagingError), run_of(tmp_path, run=run, partition=number) as file:
            file.append("t", 0, b"x" * 100, 1)
            file.finish()

    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            run = begin_run(tmp_path, "query", 3)
            tasks = [pool.submit(task, run, number) for number in range(4)]
            tasks[0].result()
            end_run(tmp_path, "query", 3, run)
            for each in tasks:
                each.result()
            assert files_below(tmp_path) == []


def test_files_of_a_failed_batch_are_removed(tmp_path: Path) -> None:
    staged = stage(tmp_path)
    remove_files([staged, StagedFile(staged.task, None, ())])
    remove_files([staged])
    assert files_below(tmp_path) == []


def test_a_staged_file_that_the_driver_does_not_see_names_staging_path(tmp_path: Path) -> None:
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
    assert [file.task.partition for file in sort_by_task(staged)] == [0, 1, 2]


def test_publishing_succeeds_if_another_run_removes_the_directory_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage(tmp_path)
    home = tmp_path / "query"
    listed = Path.iterdir

    def remove_and_list(path: Path) -> Iterator[Path]:
        shutil.rmtree(home)
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", remove_and_list)
    remove_published(tmp_path, "query", 3)
    assert not home.exists()
