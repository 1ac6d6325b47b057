"""Two attempts of one task, as Spark runs them: the later one, which fails or reads other rows, does not damage the
files of the first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from tests.support.pipelines import DataDirectory, fill
from tidelog.pipeline.decode.past_damage import read_past_damage
from tidelog.pipeline.export import file as export_file
from tidelog.pipeline.export import latest
from tidelog.pipeline.export.file import FilePlan, FileResult, write_file
from tidelog.pipeline.export.latest import MergePlan, merge_files
from tidelog.pipeline.export.store import LOCAL, ObjectStore, TableStore
from tidelog.pipeline.job_errors import JobError
from tidelog.pipeline.jobs.export import ExportRequest, export
from tidelog.pipeline.jobs.exporting import commits

READ = read_past_damage
Batches = Iterator[pa.RecordBatch]


class FolderStore(ObjectStore):
    """Objects below a folder."""

    def _locate(self, path: str) -> tuple[Any, str]:
        return LocalFileSystem(), path


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataDirectory]:
    made = DataDirectory(tmp_path / "data")
    fill(made.log("t"), 40)
    yield made
    made.close()


def fewer(*arguments: Any) -> Batches:
    """Yield the records but not the last one, as if it had been removed between the two attempts."""
    yield from list(READ(*arguments))[:-1]


def failing(*arguments: Any) -> Batches:
    """Yield the records but not the last one, and then fail."""
    yield from fewer(*arguments)
    raise OSError("the log is away")


def with_second(
    monkeypatch: pytest.MonkeyPatch, store: TableStore, reads: Callable[..., Batches]
) -> Callable[[FilePlan], FileResult]:
    """Return a task that runs twice: the second attempt reads by ``reads``, and the result is that of the first."""

    def work(plan: FilePlan) -> FileResult:
        plan = replace(plan, store=store)
        result = write_file(plan)
        with monkeypatch.context() as patch:
            patch.setattr(export_file, "read_past_damage", reads)
            with contextlib.suppress(OSError):
                write_file(plan)
        return result

    return work


def offsets(table: Path) -> list[int]:
    found: list[int] = pq.read_table(table / "data").column("offset").to_pylist()
    return sorted(found)


@pytest.mark.parametrize(
    ("store", "reads"),
    [(LOCAL, failing), (FolderStore(), failing), (FolderStore(), fewer)],
    ids=["mounted, fails", "objects, fails", "objects, fewer rows"],
)
def test_a_second_attempt_changes_nothing(
    data: DataDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    store: TableStore,
    reads: Callable[..., Batches],
) -> None:
    monkeypatch.setattr(commits, "write_file", with_second(monkeypatch, store, reads))
    export(None, ExportRequest(data.source(), str(tmp_path / "table")))
    assert offsets(tmp_path / "table") == list(range(200))


def test_a_second_attempt_with_other_rows_ends_the_run_and_the_next_one_has_all(
    data: DataDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(commits, "write_file", with_second(monkeypatch, LOCAL, fewer))
        with pytest.raises(JobError, match="another attempt of the task"):
            export(None, ExportRequest(data.source(), str(tmp_path / "table")))
    assert not list((tmp_path / "table" / "data").iterdir())
    export(None, ExportRequest(data.source(), str(tmp_path / "table")))
    assert offsets(tmp_path / "table") == list(range(200))


@pytest.mark.parametrize("store", [LOCAL, FolderStore()], ids=["mounted", "objects"])
def test_a_second_attempt_of_a_merge_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: TableStore
) -> None:
    """It fails after it has written the rows of the first of two files."""
    rows = {"topic": ["t"], "partition": [0], "offset": [0], "timestamp": [0], "value": [b"v"]}
    keys = {"old": b"a", "older": b"b", "new": b"c"}
    for name, key in keys.items():
        pq.write_table(pa.table({**rows, "key": [key]}), tmp_path / name)
    old = (str(tmp_path / "old"), str(tmp_path / "older"))
    plan = MergePlan(old, (str(tmp_path / "new"),), str(tmp_path / "latest.parquet"), is_new=False, store=store)
    merge_files(plan)
    (first,) = tmp_path.glob("latest*")
    written, complete = first.read_bytes(), set(tmp_path.iterdir())
    begun: set[Path] = set()

    def read(path: str, *more: Any) -> Batches:
        if path.endswith("older"):
            begun.update(set(tmp_path.iterdir()) - complete)
            raise OSError("the store is away")
        return read_batches(path, *more)

    read_batches = latest._read_batches
    monkeypatch.setattr(latest, "_read_batches", read)
    with pytest.raises(OSError, match="the store is away"):
        merge_files(plan)
    assert len(begun) == 1, "the second attempt was writing a file of its own"
    assert first.read_bytes() == written
    assert set(tmp_path.iterdir()) == complete
