"""Exports into Iceberg tables whose warehouse is an object store: each record once, no object that no snapshot refers
to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.support.iceberg import NAME, closed_catalogs, offsets, run, table_of, target_below
from tests.support.moto_store import BUCKET, MotoStore, moto_store
from tests.support.pipelines import DataDirectory, damage_first_batch, fill, killed_at
from tests.support.requirements import require_packages
from tidelog.pipeline.job_errors import ConflictError
from tidelog.pipeline.jobs import iceberg as iceberg_job
from tidelog.pipeline.jobs.audit import AuditRequest, audit
from tidelog.pipeline.jobs.exporting import commits
from tidelog.pipeline.jobs.iceberg import IcebergTarget

require_packages("moto")


@pytest.fixture(scope="module")
def store() -> Iterator[MotoStore]:
    with moto_store() as running:
        yield running


@pytest.fixture
def target(tmp_path: Path, store: MotoStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[IcebergTarget]:
    """A table in a folder of its own."""
    warehouse = f"s3://{BUCKET}/{tmp_path.name}"
    with closed_catalogs(monkeypatch):
        yield replace(target_below(tmp_path), warehouse=warehouse, properties=store.properties)


def left_over(store: MotoStore, target: IcebergTarget) -> set[str]:
    """List objects that no snapshot has, and traces of runs."""
    table = table_of(target)
    folder = table.location().removeprefix(f"s3://{BUCKET}/")
    known = set(table.inspect.all_files().column("file_path").to_pylist())
    return (store.names_below(f"{folder}/data") - known) | store.names_below(f"{folder}/_tidelog")


def test_runs_add_each_record_once_and_the_audit_agrees(
    data: DataDirectory, target: IcebergTarget, store: MotoStore
) -> None:
    fill(data.log("orders"), 20)
    assert run(data, target, file_bytes=1000, commit_files=4).rows == 100
    fill(data.log("orders"), 2)
    assert run(data, target).rows == 10
    assert run(data, target).committed is False
    assert table_of(target).location().startswith(f"s3://{BUCKET}/")
    assert offsets(target) == list(range(110))
    assert left_over(store, target) == set()
    assert not audit(None, AuditRequest(data.source(), NAME, iceberg=target)).is_wrong


KILLS = {
    "while files are written": (commits, "run_tasks"),
    "before the commit": (iceberg_job, "_commit"),
    "in the commit": (iceberg_job, "add_files"),
    "before the catalog knows": (SqlCatalog, "commit_table"),
    "before the dead letters": (iceberg_job._IcebergCommits, "_add_dead_letters"),
}


@pytest.mark.parametrize("moment", KILLS)
def test_a_run_that_was_killed_is_run_again_and_leaves_no_object(
    data: DataDirectory, target: IcebergTarget, store: MotoStore, moment: str
) -> None:
    fill(data.log("orders"), 2)
    run(data, target)
    fill(data.log("orders"), 4)
    with killed_at(*KILLS[moment]):
        run(data, target)
    fill(data.log("orders"), 4)
    run(data, target, file_bytes=1000)
    assert offsets(target) == list(range(50))
    assert left_over(store, target) == set()


def test_of_two_runs_one_wins_and_the_others_objects_go(
    data: DataDirectory, target: IcebergTarget, store: MotoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(data.log("orders"), 4)
    real = commits._write

    def slow(*arguments: Any) -> None:
        real(*arguments)
        monkeypatch.setattr(commits, "_write", real)
        run(data, target)

    monkeypatch.setattr(commits, "_write", slow)
    with pytest.raises(ConflictError):
        run(data, target)
    assert offsets(target) == list(range(20))
    assert left_over(store, target) == set()


def test_the_objects_of_a_run_that_may_still_commit_stay(
    data: DataDirectory, target: IcebergTarget, store: MotoStore
) -> None:
    fill(data.log("orders"), 2)
    run(data, target)
    fill(data.log("orders"), 2)
    with killed_at(iceberg_job, "_commit"):
        run(data, target)
    found = left_over(store, target)
    assert len(found) == 2
    run(data, target)
    assert left_over(store, target) == set()


def test_a_table_in_a_store_has_the_latest_values(data: DataDirectory, target: IcebergTarget, store: MotoStore) -> None:
    fill(data.log("orders"), 4)
    run(data, target, mode="upsert", file_bytes=200)
    fill(data.log("orders"), 1)
    run(data, target, mode="upsert")
    rows = table_of(target).scan().to_arrow().to_pylist()
    assert sorted((row["key"], row["offset"]) for row in rows) == [
        (b"key-0", 20), (b"key-1", 21), (b"key-2", 22), (b"key-3", 23), (b"key-4", 24), (b"key-5", 17), (b"key-6", 18),
    ]  # fmt: skip
    assert left_over(store, target) == set()


def test_dead_letters_of_a_killed_run_are_added_by_the_next_run(
    data: DataDirectory, target: IcebergTarget, store: MotoStore
) -> None:
    fill(data.log("orders"), 4)
    data.close()
    path = data.path / "orders-0" / f"{0:020d}.log"
    damage_first_batch(path)
    with killed_at(iceberg_job._IcebergCommits, "_add_dead_letters"):
        run(data, target)
    assert run(data, target).committed is False
    letters = table_of(target, NAME + "_dead_letter").scan().to_arrow().to_pylist()
    assert [letter["position"] for letter in letters] == [0]
    assert left_over(store, target) == set()


def test_dead_letters_of_a_run_that_did_not_commit_go(
    data: DataDirectory, target: IcebergTarget, store: MotoStore
) -> None:
    fill(data.log("orders"), 4)
    data.close()
    path = data.path / "orders-0" / f"{0:020d}.log"
    damage_first_batch(path)
    with killed_at(iceberg_job, "_commit"):
        run(data, target)
    run(data, target)
    folder = table_of(target).location().removeprefix(f"s3://{BUCKET}/")
    known = table_of(target, NAME + "_dead_letter").inspect.all_files().column("file_path").to_pylist()
    assert store.names_below(f"{folder}/dead-letter") == set(known)
    assert len(known) == 1
